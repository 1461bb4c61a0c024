"""One suite for every kind of sandbox: what it must do, and what must be impossible in it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import fcntl
import inspect
import io
import json
import socket
import subprocess
import sys
import tarfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import ImageNotFound

from taskgen.errors import SandboxUnavailable
from taskgen.sandbox import ExecResult, Limits, Sandbox, SandboxProvider
from taskgen.sandboxes import cgroup, seccomp
from taskgen.sandboxes.bubblewrap import BubblewrapProvider
from taskgen.sandboxes.docker import SNAPSHOTS, DockerProvider
from taskgen.sandboxes.docker_owner import OWNER_LABEL
from taskgen.sandboxes.guarantees import guarantees
from taskgen.sandboxes.select import select
from taskgen.session import send_within

MIB = 1 << 20
# Writes to a file ten times a second for as long as it lives.
HEARTBEAT = "while :; do date +%s.%N >> /workspace/beat; sleep 0.1; done"


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session", params=["bubblewrap", "docker"])
def provider(request: pytest.FixtureRequest, cache: Path) -> SandboxProvider:
    if request.param == "bubblewrap":
        request.getfixturevalue("bubblewrap")
        return BubblewrapProvider(cache)
    request.getfixturevalue("docker_engine")
    return DockerProvider()


@pytest.fixture
def sandbox(provider: SandboxProvider) -> Iterator[Sandbox]:
    with provider.create() as made:
        yield made


@pytest.fixture
def key(provider: SandboxProvider) -> Iterator[str]:
    """A new key; what was kept under it is removed."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    if provider.name == "docker":
        client = docker.from_env()
        try:
            client.images.remove(f"{SNAPSHOTS}:{name}", force=True)
        except ImageNotFound:
            pass  # the test kept nothing
        finally:
            client.close()


def sh(sandbox: Sandbox, script: str, *, timeout_s: float = 30.0, stdin: bytes = b"") -> ExecResult:
    return sandbox.exec(["sh", "-c", script], timeout_s=timeout_s, stdin=stdin)


def text(sandbox: Sandbox, script: str) -> str:
    done = sh(sandbox, script)
    assert done.returncode == 0, done
    return done.stdout.decode().strip()


def tar(**files: bytes) -> bytes:
    return tar_of([(tarfile.TarInfo(name), data) for name, data in files.items()])


def tar_of(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


def members_of(archive: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {member.name.removeprefix("./"): member for member in opened.getmembers()}


def beats(sandbox: Sandbox) -> int:
    return int(text(sandbox, "cat beat 2>/dev/null | wc -l"))


def assert_nothing_beats(sandbox: Sandbox) -> None:
    before = beats(sandbox)
    time.sleep(0.5)
    assert beats(sandbox) == before
    assert "date +%s" not in text(
        sandbox, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'd[a]te +%s' || :"
    )


# --- running programs


def test_output_code_and_stdin(sandbox: Sandbox) -> None:
    done = sh(sandbox, "cat; echo oops >&2; exit 3", stdin=b"given\0\xff\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"given\0\xff\n", b"oops\n")
    assert (done.stdout_bytes, done.stderr_bytes, done.timed_out) == (8, 5, False)
    assert 0 < done.duration_s < 30


def test_large_stdin_arrives_whole(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * (16 * MIB // 256)
    assert sh(sandbox, "wc -c", stdin=data).stdout.split() == [str(16 * MIB).encode()]


def test_stdin_that_is_not_read_is_no_fault(sandbox: Sandbox) -> None:
    assert sh(sandbox, "exit 0", stdin=b"x" * MIB).returncode == 0


def test_missing_program_is_127(sandbox: Sandbox) -> None:
    assert sandbox.exec(["no-such-program-here"]).returncode == 127


@pytest.mark.parametrize(("signal", "code"), [("KILL", 137), ("TERM", 143), ("SEGV", 139)])
def test_signal_is_128_and_its_number(sandbox: Sandbox, signal: str, code: int) -> None:
    assert sh(sandbox, f"kill -{signal} $$").returncode == code


def test_missing_directory_is_not_a_result(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxUnavailable):
        sandbox.exec(["true"], cwd="/workspace/none")


def test_zero_byte_in_an_argument_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxUnavailable):
        sandbox.exec(["echo", "a\0b"])


def test_arguments_and_variables_are_passed_as_they_are(sandbox: Sandbox) -> None:
    words = ["naïve 日本", "", "two words", "line\nbreak", "$HOME `id` \"'", "--help"]
    done = sandbox.exec(["sh", "-c", 'printf "%s\\0" "$@" "$EXTRA"', "sh", *words], env={"EXTRA": "é = 日\n"})
    assert done.stdout.decode().split("\0")[:-1] == [*words, "é = 日\n"]


def test_environment_is_fixed(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_SECRET", "hunter2")
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:hunter2@example.org/simple")
    seen = dict(line.split("=", 1) for line in text(sandbox, "env").splitlines())
    assert "hunter2" not in str(seen)
    assert seen["PATH"] == "/env/venv/bin:/usr/local/bin:/usr/bin:/bin"
    assert (seen["HOME"], seen["LANG"], seen["TMPDIR"]) == ("/home/agent", "C.UTF-8", "/tmp")
    assert set(seen) <= {"PATH", "HOME", "LANG", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_", "HOSTNAME", "SANDBOX_EXEC"}


def test_interpreter_is_there(provider: SandboxProvider, sandbox: Sandbox) -> None:
    done = sandbox.exec([provider.python(), "-c", "import sys, venv, ssl; print(sys.version_info[:2] >= (3, 11))"])
    assert done.stdout == b"True\n", done


def test_flood_is_bounded_and_counted(provider: SandboxProvider) -> None:
    with provider.create(limits=Limits(output_bytes=64 << 10)) as sandbox:
        done = sh(sandbox, "echo first; head -c 200000000 /dev/zero; echo last", timeout_s=120)
    assert done.stdout_bytes == 200_000_000 + len("first\nlast\n")
    assert len(done.stdout) < 70 << 10
    assert done.stdout.startswith(b"first\n") and done.stdout.endswith(b"last\n")
    assert b"bytes left out" in done.stdout


def test_programs_run_side_by_side(sandbox: Sandbox) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda n: sh(sandbox, f"sleep 0.5; echo {n}"), range(4)))
    assert [(result.returncode, result.stdout) for result in done] == [(0, b"%d\n" % n) for n in range(4)]


# --- time limits and what is left behind


def test_time_limit_kills_daemons_too(sandbox: Sandbox) -> None:
    began = time.monotonic()
    done = sh(sandbox, f"echo started; setsid -f sh -c '{HEARTBEAT}' >/dev/null 2>&1; sleep 60", timeout_s=1.5)
    assert (done.returncode, done.timed_out, done.stdout) == (124, True, b"started\n")
    assert time.monotonic() - began < 15
    assert beats(sandbox) > 0
    assert_nothing_beats(sandbox)


def test_daemons_die_with_a_program_that_ends(sandbox: Sandbox) -> None:
    began = time.monotonic()
    # It holds stdout open, too: that must not delay the result until the daemon ends.
    done = sh(sandbox, f"(setsid sh -c '{HEARTBEAT}' &) ; sleep 0.4; echo over", timeout_s=30)
    assert (done.returncode, done.stdout) == (0, b"over\n")
    assert time.monotonic() - began < 10
    assert beats(sandbox) > 0
    assert_nothing_beats(sandbox)


def test_program_that_ignores_signals_is_killed(sandbox: Sandbox) -> None:
    done = sh(sandbox, "trap '' TERM INT HUP; while :; do sleep 1; done", timeout_s=0.5)
    assert done.timed_out
    assert text(sandbox, "echo alive") == "alive"


def test_program_that_closes_its_output_is_waited_for(sandbox: Sandbox) -> None:
    done = sh(sandbox, "exec >&- 2>&-; sleep 0.7; exit 5")
    assert done.returncode == 5 and done.duration_s > 0.6


# --- isolation


def test_no_network(provider: SandboxProvider, sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host_port = listener.getsockname()[1]
        code = f"""
import socket
for place in (("127.0.0.1", {host_port}), ("1.1.1.1", 443)):
    try:
        socket.create_connection(place, timeout=3).close()
    except OSError as error:
        print("refused")
    else:
        print("connected", place)
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), timeout=3).close()
print("loopback works")
"""
        done = sandbox.exec([provider.python(), "-c", code])
    assert done.stdout.decode().splitlines() == ["refused", "refused", "loopback works"], done
    assert len(text(sandbox, "cat /proc/net/route").splitlines()) <= 1


def test_network_only_when_asked_for(provider: SandboxProvider) -> None:
    with provider.create(network=True) as sandbox:
        assert len(text(sandbox, "cat /proc/net/route").splitlines()) > 1


def test_host_files_are_hidden(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    hidden = [secret, Path(__file__), Path.home() / ".bashrc", "/etc/shadow", "/etc/ssh", "/var/run/docker.sock"]
    for path in hidden:
        done = sandbox.exec(["cat", str(path)])
        assert done.returncode != 0 and not done.stdout, path
    names = sh(sandbox, "ls -A /root /tmp /home /run /var/lib/docker 2>/dev/null").stdout.decode()
    assert "secret" not in names and "docker.sock" not in names and ".ssh" not in names
    assert text(sandbox, "ls -A /tmp") == ""


@pytest.mark.parametrize(
    "path",
    [
        *("/usr/x", "/usr/bin/env", "/etc/x", "/etc/passwd", "/bin/sh", "/sys/x"),
        *("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger"),
    ],
)
def test_system_is_read_only(sandbox: Sandbox, path: str) -> None:
    # It only opens the file for appending and writes nothing: a failure must not change this machine.
    done = sandbox.exec(["sh", "-c", ': >> "$1"', "sh", path])
    assert done.returncode != 0 and done.stderr, path


def test_nothing_else_is_writable(provider: SandboxProvider, key: str) -> None:
    with provider.create() as building:
        text(building, "echo kept > /env/f")
        building.snapshot(key)
    own = ["/workspace", "/home/agent", "/tmp", "/dev", "/proc/[0-9]*", "/proc/self", "/proc/thread-self"]
    # Everybody may watch the load there, on every Linux; nothing is changed by it.
    own += ["/proc/pressure"]
    pruned = " -o ".join(f"-path '{path}'" for path in own)
    with provider.create(snapshot=key) as sandbox:
        # access(2) alone: it asks the kernel and changes nothing.
        found = sh(
            sandbox,
            f"find / \\( {pruned} \\) -prune -o -writable ! -type l -exec stat -c '%n %t:%T' {{}} +",
            timeout_s=120,
        )
        # An engine may hide a file of /proc behind the null device (1:3); others have no device number.
        assert [line for line in found.stdout.decode().splitlines() if not line.endswith(" 1:3")] == []
        assert sh(sandbox, "find /workspace -writable").stdout == b"/workspace\n"


def test_there_are_no_devices_of_the_host(sandbox: Sandbox) -> None:
    assert text(sandbox, "find /dev -type b") == ""
    assert sh(sandbox, "mknod /tmp/disk b 8 0").returncode != 0
    assert text(sandbox, "echo x > /dev/null; head -c 4 /dev/urandom | wc -c; touch /dev/shm/x; echo ok") == "4\nok"


def test_runs_without_privileges(sandbox: Sandbox) -> None:
    assert text(sandbox, "id -u; id -g; id -un").split() == ["1000", "1000", "agent"]
    status = dict(line.split(":\t", 1) for line in text(sandbox, "cat /proc/self/status").splitlines())
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert sh(sandbox, "mount -t tmpfs none /workspace").returncode != 0
    assert sh(sandbox, "unshare -Ur true").returncode != 0


def test_system_calls_of_the_kernels_own_business_are_refused(provider: SandboxProvider, sandbox: Sandbox) -> None:
    """EPERM for what the profile lists, ENOSYS for clone3; threads, forks and subprocesses work.

    Nor is there a way to the hypervisor (AF_VSOCK), or input into a terminal (without the filter: ENOTTY, for a pipe).
    """
    if provider.name == "bubblewrap":
        assert seccomp.program() is not None, "libseccomp2 is missing"
    program = """
import ctypes, json, platform, socket, subprocess, threading, multiprocessing
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": {"ptrace": 101, "mount": 165, "unshare": 272, "keyctl": 250, "bpf": 321, "io_uring_setup": 425,
           "perf_event_open": 298, "userfaultfd": 323, "process_vm_readv": 310, "open_by_handle_at": 304, "setns": 308,
           "clone3": 435, "fsopen": 430, "add_key": 248}}[platform.machine()]
found = {}
for name, number in numbers.items():
    ctypes.set_errno(0)
    libc.syscall(number, 0, 0, 0, 0, 0, 0)
    found[name] = ctypes.get_errno()
ctypes.set_errno(0)
libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)  # clone with a new user namespace
found["clone"] = ctypes.get_errno()
for name, request in (("TIOCSTI", 0x5412), ("TIOCLINUX", 0x541C), ("high bits", 0xABCD00005412)):
    ctypes.set_errno(0)
    libc.syscall(16, 0, ctypes.c_ulong(request), b"x")
    found[name] = ctypes.get_errno()
for name, family in (("AF_PACKET", 17), ("AF_ALG", 38), ("AF_VSOCK", 40)):
    ctypes.set_errno(0)
    libc.syscall(41, family, 1, 0)
    found[name] = ctypes.get_errno()
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
    socket.socket(family, socket.SOCK_STREAM).close()
thread = threading.Thread(target=lambda: found.update(thread=0)); thread.start(); thread.join()
found["subprocess"] = subprocess.run(["true"]).returncode
child = multiprocessing.Process(target=print, args=("child",)); child.start(); child.join()
found["fork"] = child.exitcode
print(json.dumps(found))
"""
    done = sandbox.exec([provider.python(), "-c", program], timeout_s=60)
    found = json.loads(done.stdout.splitlines()[-1])
    assert [found.pop(name) for name in ("thread", "subprocess", "fork")] == [0, 0, 0]
    assert found.pop("clone3") == errno.ENOSYS
    assert {found.pop(name) for name in ("AF_PACKET", "AF_ALG", "AF_VSOCK")} == {errno.EAFNOSUPPORT}
    assert set(found.values()) == {errno.EPERM}, found
    assert "Seccomp:\t2" in text(sandbox, "cat /proc/self/status")


def test_a_program_that_does_not_read_cannot_hold_up_who_writes(sandbox: Sandbox) -> None:
    channel = sandbox.open(["sleep", "600"])
    started = time.monotonic()
    with pytest.raises(EOFError):
        send_within(channel, bytes(32 << 20), 3.0)
    assert time.monotonic() - started < 30
    channel.close()


def test_no_socket_of_an_engine_is_there(sandbox: Sandbox) -> None:
    assert text(sandbox, "find / -xdev -type s 2>/dev/null; ls /run/*.sock 2>/dev/null; :") == ""


def test_processor_time_is_bounded(provider: SandboxProvider) -> None:
    if provider.name == "bubblewrap" and not ((groups := cgroup.find()) and groups.bounds_cpu()):
        pytest.skip("no writable control group for processor time on this machine")
    spin = "import os, time; end = time.time() + 2\nwhile time.time() < end: pass\nprint(sum(os.times()[:2]))"
    with provider.create(limits=Limits(cpus=0.25)) as sandbox:
        used_s = float(sandbox.exec([provider.python(), "-c", spin], timeout_s=60).stdout)
    assert used_s < 1.2  # of 2 s, a quarter and what the kernel lends


def test_what_a_killed_taskgen_left_is_removed_by_the_next(provider: SandboxProvider, cache: Path) -> None:
    program = f"""
import os, signal, pathlib
from taskgen.sandboxes.select import select
provider = select({provider.name!r}, pathlib.Path({str(cache)!r}))
sandbox = provider.create()
sandbox.open(["sleep", "600"])
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == -9
    select(provider.name, cache)
    if provider.name == "docker":
        client = docker.from_env()
        try:
            for container in client.containers.list(all=True, filters={"label": OWNER_LABEL}):
                assert Path("/proc", container.labels[OWNER_LABEL].rsplit(":", 2)[1]).exists()
        finally:
            client.close()
    else:
        for lock in (cache / "sandboxes").glob("run-*.lock"):
            with lock.open() as held, pytest.raises(BlockingIOError):  # each belongs to a process that lives
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_each_guarantee_is_proved_here() -> None:
    for guarantee in guarantees():
        assert guarantee.proofs
        for name in guarantee.proofs:
            proof = globals()[name]
            arguments = inspect.signature(proof).parameters
            assert {"provider", "sandbox"} & set(arguments), f"{name} does not run on every kind"


def test_other_processes_are_hidden(sandbox: Sandbox) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "marker-of-the-host"]) as outside:
        try:
            seen = text(sandbox, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; ls -d /proc/[0-9]* | wc -l")
        finally:
            outside.kill()
    assert "marker-of-the-host" not in seen
    assert int(seen.split()[-1]) <= 6


def test_fork_bomb_is_capped(provider: SandboxProvider) -> None:
    count = """
import os, time
made = 0
try:
    while made < 1000:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made)
"""
    with provider.create(limits=Limits(processes=48)) as sandbox:
        assert 10 < int(sandbox.exec([provider.python(), "-c", count], timeout_s=30).stdout) <= 48
        # exec: the shell itself needs no process that the bomb may have taken.
        bomb = sh(sandbox, "b() { b | b & }; b; exec sleep 60", timeout_s=2)
        assert bomb.timed_out
        assert text(sandbox, "echo alive") == "alive"
        # A program that has used up every process cannot keep itself from being killed.
        stuck = sandbox.exec([provider.python(), "-c", count + "time.sleep(60)"], timeout_s=2)
        assert stuck.timed_out
        assert int(text(sandbox, "ls -d /proc/[0-9]* | wc -l")) <= 6


def test_memory_hog_does_not_end_the_sandbox(provider: SandboxProvider) -> None:
    with provider.create(limits=Limits(memory_bytes=256 * MIB)) as sandbox:
        hog = sandbox.exec([provider.python(), "-c", "b = b'x' * (1 << 30); print(len(b))"], timeout_s=60)
        assert hog.returncode != 0 and not hog.stdout and not hog.timed_out
        assert text(sandbox, "echo alive") == "alive"


def test_memory_is_bounded_over_all_processes(provider: SandboxProvider) -> None:
    if provider.name == "bubblewrap" and cgroup.find() is None:
        pytest.skip("no writable control group on this machine: memory is bounded for each process alone")
    hogs = """
import os, time
children = []
for n in range(4):
    if (pid := os.fork()) == 0:
        data = b"x" * (100 << 20)
        time.sleep(3)
        os._exit(0)
    children.append(pid)
print(sum(os.waitpid(pid, 0)[1] == 0 for pid in children))
"""
    with provider.create(limits=Limits(memory_bytes=256 * MIB)) as sandbox:
        done = sandbox.exec([provider.python(), "-c", hogs], timeout_s=60)
        assert done.returncode != 0 or int(done.stdout) <= 2, done
        assert text(sandbox, "echo alive") == "alive"


def test_files_in_tmp_cannot_end_the_sandbox(provider: SandboxProvider) -> None:
    with provider.create(limits=Limits(memory_bytes=256 * MIB)) as sandbox:
        full = sh(sandbox, "head -c 1G /dev/zero > /tmp/full", timeout_s=60)
        assert full.returncode != 0
        assert text(sandbox, "rm -f /tmp/full; echo alive") == "alive"


def test_size_of_a_file_is_bounded(provider: SandboxProvider) -> None:
    with provider.create(limits=Limits(file_bytes=MIB)) as sandbox:
        done = sh(sandbox, "head -c 4M /dev/zero > big")
        assert done.returncode != 0
        assert int(text(sandbox, "stat -c %s big")) <= MIB
        assert sh(sandbox, "head -c 1000K /dev/zero > small").returncode == 0


def test_sandboxes_do_not_see_each_other(provider: SandboxProvider) -> None:
    with provider.create() as one, provider.create() as two:
        text(one, "echo x | tee /workspace/f /home/agent/f /env/f /tmp/f")
        assert text(two, "find /workspace /home/agent /env /tmp -type f") == ""


# --- /env and snapshots


def test_env_is_writable_then_kept_then_read_only(provider: SandboxProvider, key: str) -> None:
    with provider.create() as building:
        text(building, "mkdir -p /env/bin && printf '#!/bin/sh\\necho kept' > /env/bin/tool && chmod +x /env/bin/tool")
        text(building, "ln -s tool /env/bin/alias; touch /workspace/not-kept")
        assert not provider.has_snapshot(key)
        building.snapshot(key)
        assert provider.has_snapshot(key)
        text(building, "echo changed > /env/bin/tool")  # what was kept does not follow
        building.snapshot(key)
    with provider.create(snapshot=key) as sandbox:
        assert text(sandbox, "/env/bin/alias; ls -A /workspace") == "kept"
        assert sh(sandbox, "touch /env/x").returncode != 0
        assert sh(sandbox, "rm -f /env/bin/tool").returncode != 0
        assert sh(sandbox, "chmod u+w /env; echo x > /env/bin/tool").returncode != 0
        assert text(sandbox, "touch /workspace/x /home/agent/x /tmp/x; echo done") == "done"
        with pytest.raises(SandboxUnavailable):
            sandbox.snapshot(f"{key}-2")


def test_snapshot_outlives_its_provider(provider: SandboxProvider, key: str, cache: Path) -> None:
    with provider.create() as building:
        text(building, "echo kept > /env/f")
        building.snapshot(key)
    again = BubblewrapProvider(cache) if provider.name == "bubblewrap" else DockerProvider()
    assert again.fingerprint() == provider.fingerprint()
    with again.create(snapshot=key) as sandbox:
        assert text(sandbox, "cat /env/f") == "kept"


def test_racing_snapshots_are_whole(provider: SandboxProvider, key: str) -> None:
    def build(number: int) -> None:
        with provider.create() as building:
            text(building, f"for i in 1 2 3; do echo {number} > /env/f$i; done")
            building.snapshot(key)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(build, range(3)))
    with provider.create(snapshot=key) as sandbox:
        assert len(set(text(sandbox, "cat /env/f1 /env/f2 /env/f3").split())) == 1


def test_unknown_snapshot_and_bad_key(provider: SandboxProvider, sandbox: Sandbox) -> None:
    with pytest.raises(SandboxUnavailable):
        provider.create(snapshot="no-such-key")
    for bad in ("", "../x", "Upper", "a/b", "a\n"):
        with pytest.raises(SandboxUnavailable):
            sandbox.snapshot(bad)
        with pytest.raises(SandboxUnavailable):
            provider.has_snapshot(bad)


# --- put and get


def test_put_and_get_round_trip(sandbox: Sandbox) -> None:
    program = tarfile.TarInfo("bin/run me")
    program.mode = 0o755
    plain = tarfile.TarInfo("sub/new\nline é")
    plain.mode = 0o640
    big = bytes(range(256)) * (20 * MIB // 256)
    sent = [(program, b"#!/bin/sh\necho ran\n"), (plain, b"text"), (link("dangling", "nowhere"), b"")]
    sandbox.put("/workspace/deep/er", tar_of([*sent, (tarfile.TarInfo("big"), big)]))
    assert text(sandbox, "'deep/er/bin/run me'; stat -c %U deep/er/big") == "ran\nagent"
    archive = sandbox.get("/workspace/deep/er")
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        got = {member.name.removeprefix("./"): member for member in opened.getmembers()}
        assert all(not name.startswith("/") for name in opened.getnames())
        assert {name for name, member in got.items() if not member.isdir()} == {
            *("bin/run me", "sub/new\nline é", "dangling", "big")
        }
        assert (got["bin/run me"].mode, got["sub/new\nline é"].mode) == (0o755, 0o640)
        assert got["dangling"].issym() and got["dangling"].linkname == "nowhere"
        content = opened.extractfile(got["big"])
        assert content and content.read() == big


def test_put_over_what_is_there(sandbox: Sandbox) -> None:
    sandbox.put("/workspace", tar(a=b"one", b=b"kept"))
    sandbox.put("/workspace", tar(a=b"two"))
    assert text(sandbox, "cat a b") == "twokept"


@pytest.mark.parametrize("name", ["../escaped", "sub/../../escaped", "../../../../../../../tmp/escaped"])
def test_put_refuses_to_climb_out(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(SandboxUnavailable):
        sandbox.put("/workspace/inner", tar(**{name: b"x"}))
    assert sh(sandbox, "find / -name escaped -not -path '/proc/*' 2>/dev/null").stdout == b""
    assert not Path("/tmp/escaped").exists()


def test_put_of_absolute_names_and_links_stays_inside(sandbox: Sandbox, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    members = [(tarfile.TarInfo("/home/agent/escaped"), b"x"), (tarfile.TarInfo(str(outside)), b"x")]
    through = [(link("door", "/home/agent"), b""), (tarfile.TarInfo("door/escaped"), b"x")]
    for sent in (members, through):
        with contextlib.suppress(SandboxUnavailable):  # refusing it is as good
            sandbox.put("/workspace/inner", tar_of(sent))
    assert text(sandbox, "ls -A /home/agent") == ""
    assert not outside.exists()


def test_put_of_garbage_and_into_the_system_fails(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxUnavailable):
        sandbox.put("/workspace", b"this is not an archive" * 100)
    with pytest.raises(SandboxUnavailable):
        sandbox.put("/usr/lib/x", tar(a=b"x"))
    with pytest.raises(SandboxUnavailable):
        sandbox.put("relative", tar(a=b"x"))


def test_get_of_a_hostile_tree_is_data(sandbox: Sandbox) -> None:
    text(
        sandbox,
        "ln -s /etc/shadow shadow; ln -s / root; ln -s .. up; mkfifo pipe; mkdir -m 0 closed; "
        "echo x > unreadable; chmod 0 unreadable; touch -- -x; ln -s loop loop",
    )
    got = members_of(sandbox.get("/workspace"))
    assert got["shadow"].issym() and got["shadow"].linkname == "/etc/shadow"
    assert got["root"].issym() and got["up"].issym() and got["pipe"].isfifo() and got["-x"].isfile()
    assert not any(name.startswith(("root/", "up/")) for name in got)


def test_get_bounds_the_archive(sandbox: Sandbox) -> None:
    text(sandbox, "head -c 3M /dev/urandom > f")
    with pytest.raises(ValueError, match="larger"):
        sandbox.get("/workspace", max_bytes=MIB)
    exact = len(sandbox.get("/workspace"))
    assert len(sandbox.get("/workspace", max_bytes=exact)) == exact
    with pytest.raises(ValueError, match="larger"):
        sandbox.get("/workspace", max_bytes=exact - 1)


def test_get_of_nothing_fails(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxUnavailable):
        sandbox.get("/workspace/none")


def test_get_gives_the_same_bytes_again(sandbox: Sandbox) -> None:
    text(sandbox, "for i in 9 1 5 3; do mkdir d$i; touch -d @0 d$i/f$i; done")
    assert sandbox.get("/workspace") == sandbox.get("/workspace")


# --- forks and the end


def test_fork_is_a_copy_on_its_own(sandbox: Sandbox) -> None:
    text(sandbox, "echo 1 | tee /workspace/f /home/agent/f /env/f; chmod +x f; ln -s f link; mkdir .hidden")
    with sandbox.fork() as fork:
        assert text(fork, "cat /workspace/f /home/agent/f /env/f") == "1\n1\n1"
        assert text(fork, "test -x f && readlink link && ls -d .hidden") == "f\n.hidden"
        text(fork, "echo 2 | tee /workspace/f /env/f; rm /home/agent/f")
        text(sandbox, "echo 3 > /workspace/new")
        assert text(sandbox, "cat /workspace/f /home/agent/f /env/f") == "1\n1\n1"
        assert sh(fork, "cat /workspace/new").returncode != 0
    assert text(sandbox, "cat f") == "1"


def test_fork_of_a_snapshot_keeps_env_read_only(provider: SandboxProvider, key: str) -> None:
    with provider.create() as building:
        text(building, "echo kept > /env/f")
        building.snapshot(key)
    with provider.create(snapshot=key, limits=Limits(file_bytes=MIB)) as sandbox, sandbox.fork() as fork:
        assert text(fork, "cat /env/f") == "kept"
        assert sh(fork, "touch /env/x").returncode != 0
        assert sh(fork, "head -c 2M /dev/zero > big").returncode != 0  # the same limits


def test_closed_sandbox_is_unavailable(provider: SandboxProvider) -> None:
    sandbox = provider.create()
    sandbox.close()
    sandbox.close()
    calls = [
        lambda: sandbox.exec(["true"]),
        lambda: sandbox.open(["cat"]),
        lambda: sandbox.put("/workspace", tar(a=b"x")),
        lambda: sandbox.get("/workspace"),
        lambda: sandbox.fork(),
        lambda: sandbox.snapshot(f"never-{uuid.uuid4().hex}"),
    ]
    for call in calls:
        with pytest.raises(SandboxUnavailable):
            call()


def test_close_ends_a_running_program(provider: SandboxProvider) -> None:
    sandbox = provider.create()
    timer = threading.Timer(1.0, sandbox.close)
    timer.start()
    began = time.monotonic()
    with pytest.raises(SandboxUnavailable):
        sandbox.exec(["sleep", "60"], timeout_s=60)
    timer.join()
    assert time.monotonic() - began < 20


def test_close_removes_what_is_hard_to_remove(provider: SandboxProvider, cache: Path) -> None:
    sandbox = provider.create()
    text(sandbox, "mkdir -p a/b/c; touch a/b/c/f; ln -s / a/root; chmod 0 a/b/c; chmod 0 a/b a; chmod 0500 /home/agent")
    before = set(cache.glob("sandboxes/*/sandbox-*"))
    sandbox.close()
    if provider.name == "bubblewrap":
        assert len(set(cache.glob("sandboxes/*/sandbox-*"))) == len(before) - 1
    assert Path("/usr/bin/env").exists()


# --- channels


def test_channel_speaks_line_by_line(sandbox: Sandbox) -> None:
    channel = sandbox.open(["sh", "-c", 'echo "$GREETING"; pwd; cat'], env={"GREETING": "hello"}, cwd="/home/agent")
    assert [channel.receive(20), channel.receive(20)] == [b"hello", b"/home/agent"]
    for line in (b"one", b"", b"\xff\0two"):
        channel.send(line)
        assert channel.receive(20) == line
    channel.close()
    channel.close()


def test_channel_takes_big_lines(sandbox: Sandbox) -> None:
    channel = sandbox.open(["cat"])
    line = bytes(range(11, 256)) * (8 * MIB // 245)
    sender = threading.Thread(target=channel.send, args=(line,))
    sender.start()
    assert channel.receive(60) == line
    sender.join()
    channel.close()


def test_channel_bounds_a_line(sandbox: Sandbox) -> None:
    channel = sandbox.open(["sh", "-c", "head -c 70000000 /dev/zero | tr '\\0' x; echo; echo next; cat"])
    with pytest.raises(ValueError, match="longer"):
        channel.receive(60)
    assert channel.receive(60) == b"next"
    channel.close()


def test_channel_times_out_and_goes_on(sandbox: Sandbox) -> None:
    channel = sandbox.open(["sh", "-c", "printf half; read go; echo -line; cat"])
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        channel.receive(0.5)
    assert 0.4 < time.monotonic() - began < 5
    channel.send(b"go")
    assert channel.receive(20) == b"half-line"
    channel.close()


def test_channel_tells_the_end(sandbox: Sandbox) -> None:
    channel = sandbox.open(["sh", "-c", "echo last; echo why >&2; exit 1"])
    assert channel.receive(20) == b"last"
    with pytest.raises(EOFError):
        channel.receive(20)
    with pytest.raises(EOFError):
        for _ in range(100):
            channel.send(b"x" * 4096)
            time.sleep(0.02)
    assert channel.stderr_tail() == "why\n"
    channel.close()


def test_channel_keeps_the_tail_of_stderr(sandbox: Sandbox) -> None:
    channel = sandbox.open(["sh", "-c", "head -c 1M /dev/zero | tr '\\0' e >&2; echo end >&2; echo done; cat"])
    assert channel.receive(20) == b"done"
    deadline = time.monotonic() + 10
    while not channel.stderr_tail().endswith("end\n") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert channel.stderr_tail() == "e" * 4092 + "end\n"
    channel.close()


def test_closing_a_channel_kills_its_tree(sandbox: Sandbox) -> None:
    channel = sandbox.open(["sh", "-c", f"setsid -f sh -c '{HEARTBEAT}' </dev/null >/dev/null 2>&1; echo up; cat"])
    assert channel.receive(20) == b"up"
    time.sleep(0.5)
    channel.close()
    assert beats(sandbox) > 0
    assert_nothing_beats(sandbox)
    with pytest.raises(EOFError):
        channel.receive(1)


def test_channel_survives_other_programs_and_its_thread(sandbox: Sandbox) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        channel = pool.submit(sandbox.open, ["cat"]).result()
    # The thread that opened it is gone, and programs come, leave daemons and run out of time beside it.
    sh(sandbox, f"setsid -f sh -c '{HEARTBEAT}' >/dev/null 2>&1; sleep 0.3")
    assert sh(sandbox, "sleep 60", timeout_s=0.5).timed_out
    assert_nothing_beats(sandbox)
    channel.send(b"still here")
    assert channel.receive(20) == b"still here"
    channel.close()


def test_channel_to_what_cannot_start(sandbox: Sandbox) -> None:
    # Some kinds know it at once, others with the first line; it is never the program's own output.
    with pytest.raises(SandboxUnavailable):
        sandbox.open(["cat"], cwd="/workspace/none").receive(20)
    channel = sandbox.open(["sh", "-c", "echo OCI runtime exec failed: not really; cat"])
    assert channel.receive(20) == b"OCI runtime exec failed: not really"
    channel.close()


def test_closing_the_sandbox_ends_its_channels(provider: SandboxProvider) -> None:
    sandbox = provider.create()
    channel = sandbox.open(["cat"])
    sandbox.close()
    with pytest.raises((EOFError, SandboxUnavailable)):
        channel.receive(20)
    channel.close()
