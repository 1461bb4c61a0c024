"""What only one kind of sandbox has: control groups and their fallback, the disk, and left-overs."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from taskgen.errors import PrerequisiteError, SandboxUnavailable
from taskgen.sandbox import Limits
from taskgen.sandboxes import bubblewrap as bubblewrap_module
from taskgen.sandboxes import cgroup, mounts, select
from taskgen.sandboxes import docker as docker_module
from taskgen.sandboxes.bubblewrap import BubblewrapProvider


def test_version_2_group_is_made_where_controllers_are_delegated(tmp_path: Path) -> None:
    slice_ = tmp_path / "user.slice" / "app.slice"
    (slice_ / "shell.scope").mkdir(parents=True)
    for directory, enabled in ((tmp_path, "memory"), (slice_, "cpu memory pids"), (slice_ / "shell.scope", "")):
        (directory / "cgroup.controllers").write_text("cpu memory pids")
        (directory / "cgroup.subtree_control").write_text(enabled)
    found = cgroup.candidates(tmp_path, "0::/user.slice/app.slice/shell.scope\n")
    assert found == [cgroup.Cgroups((slice_,), 2)]
    group = found[0].make(memory_bytes=1 << 20, processes=10, cpus=1.5)
    (directory,) = group.directories
    assert (directory / "memory.max").read_text() == str(1 << 20)
    assert (directory / "pids.max").read_text() == str(10 + cgroup.OWN_PROCESSES)
    (directory / "memory.events").write_text("oom 3\noom_kill 2\n")
    assert group.memory_exceeded()


def test_version_1_groups_are_below_our_own(tmp_path: Path) -> None:
    (tmp_path / "memory" / "session").mkdir(parents=True)
    (tmp_path / "pids").mkdir()
    found = cgroup.candidates(tmp_path, "8:pids:/outside/of/this\n4:memory:/session\n0::/\n")
    assert found == [cgroup.Cgroups((tmp_path / "memory" / "session", tmp_path / "pids"), 1)]


def test_groups_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    ours, stale = tmp_path / f"taskgen-{os.getpid()}-0", tmp_path / f"taskgen-{dead.pid}-0"
    ours.mkdir()
    stale.mkdir()
    cgroup.Cgroups((tmp_path,), 2).remove_stale()
    assert ours.exists() and not stale.exists()


def test_no_group_is_left_behind(bubblewrap: None, tmp_path: Path) -> None:
    groups = cgroup.find()
    if groups is None:
        pytest.skip("no writable control group on this machine")
    with BubblewrapProvider(tmp_path).create() as sandbox:
        sandbox.exec(["sh", "-c", "sleep 60 & exit 0"])
        sandbox.exec(["sleep", "60"], timeout_s=0.2)
    mine = f"taskgen-{os.getpid()}-*"
    assert [found for parent in groups.parents for found in parent.glob(mine)] == []


def test_memory_is_bounded_without_groups(bubblewrap: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "find", lambda: None)
    provider = BubblewrapProvider(tmp_path)
    with provider.create(limits=Limits(memory_bytes=256 << 20)) as sandbox:
        hog = sandbox.exec([provider.python(), "-c", "b'x' * (1 << 30)"])
        assert hog.returncode == 1 and b"MemoryError" in hog.stderr
        assert sandbox.exec([provider.python(), "-c", "b'x' * (1 << 20)"]).returncode == 0


def test_full_disk_stops_a_program(bubblewrap: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BubblewrapProvider(tmp_path).create() as sandbox:
        monkeypatch.setattr(bubblewrap_module, "MIN_FREE_BYTES", 1 << 62)
        with pytest.raises(SandboxUnavailable, match="disk full"):
            sandbox.exec(["sleep", "60"])
        monkeypatch.undo()
        assert sandbox.exec(["true"]).returncode == 0


def test_directories_of_a_killed_process_are_removed(bubblewrap: None, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; "
        "from taskgen.sandboxes.bubblewrap import BubblewrapProvider; "
        "s = BubblewrapProvider(Path(sys.argv[1])).create(); s.exec(['touch', 'f']); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False, timeout=60)
    assert len(list(tmp_path.glob("sandboxes/run-*/sandbox-*/workspace/f"))) == 1
    with BubblewrapProvider(tmp_path).create() as alive:
        assert list(tmp_path.glob("sandboxes/run-*/sandbox-*/workspace/f")) == []
        BubblewrapProvider(tmp_path)  # another one leaves a living sandbox alone
        assert alive.exec(["true"]).returncode == 0


def test_local_indexes_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my index" / "simple").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    index = (tmp_path / "my index" / "simple").as_uri()
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path}/wheels {tmp_path}/none https://example.org/")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{index} https://example.org/simple")
    found = mounts.local_indexes()
    assert tmp_path / "wheels" in found and tmp_path / "my index" in found
    assert tmp_path / "none" not in found and Path("/") not in found


# The SDK leaves the socket of a refused connection to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_selection_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert not select.probe_bubblewrap().available
    with pytest.raises(PrerequisiteError) as caught:
        select.select("auto", tmp_path / "cache")
    assert "bubblewrap" in str(caught.value) and "docker.io" in str(caught.value)
    del caught
    gc.collect()


def test_selection_prefers_bubblewrap(bubblewrap: None, tmp_path: Path) -> None:
    assert select.select("auto", tmp_path).name == "bubblewrap"


def test_selection_of_docker_without_an_image(
    docker_engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKGEN_DOCKER_IMAGE", "no-such-image:1")
    assert "make-base-image.sh" in select.probe_docker().hint
    monkeypatch.delenv("TASKGEN_DOCKER_IMAGE")
    assert select.select("docker", tmp_path).name == "docker"


class Proxy:
    """Stands between a client and the engine, and can stop passing anything on: an engine that does not answer."""

    def __init__(self, place: Path, engine: str) -> None:
        self.frozen = threading.Event()
        self._engine = engine
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(place))
        self._server.listen(64)
        self._open: list[socket.socket] = [self._server]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self._engine)
                self._open += [client, engine]
                for one, other in ((client, engine), (engine, client)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if not self.frozen.is_set():
                    other.sendall(data)

    def close(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def test_an_engine_that_stops_answering_is_unavailable(
    docker_engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(tempfile.mkdtemp(prefix="proxy-")) / "docker.sock"  # a socket's path is short
    engine = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    proxy = Proxy(place, engine)
    monkeypatch.setattr(docker_module, "API_TIMEOUT_S", 2)
    try:
        with monkeypatch.context() as patched:
            patched.setenv("DOCKER_HOST", f"unix://{place}")
            provider = docker_module.DockerProvider()
            sandbox = provider.create()
            assert sandbox.exec(["true"]).returncode == 0
            proxy.frozen.set()
            began = time.monotonic()
            with pytest.raises(SandboxUnavailable):
                sandbox.exec(["sleep", "1"], timeout_s=1)
            with pytest.raises(SandboxUnavailable):
                provider.create()
            sandbox.close()
            assert time.monotonic() - began < 30
    finally:
        proxy.close()
    # The engine answers again, to a process that is not the one whose containers these are: it removes them.
    done = subprocess.run(
        [sys.executable, "-c", REMOVE_ALL_OF.replace("{pid}", str(os.getpid()))],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() != b"0"


#: Removes the containers of a process, as the next provider would once that process is gone.
REMOVE_ALL_OF = """
import docker
from taskgen.sandboxes.docker_owner import OWNER_LABEL
client = docker.from_env()
ours = [c for c in client.containers.list(all=True) if f":{pid}:" in c.labels.get(OWNER_LABEL, "")]
for container in ours:
    container.remove(force=True)
print(len(ours))
"""
