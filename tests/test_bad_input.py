"""Bad input and hostile repositories, end to end: the real command, its exit code, its message, what it left behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.build_helpers import (
    Ended,
    build_record,
    make_project,
    read_archive,
    snapshot,
    start,
    taskgen,
    tasks_of,
    write_repos,
)
from tests.repo_helpers import commit_all, make_repo, run_git, write

WRONG_SHA256 = "0" * 64
MARKER = "taskgen-was-here"
DAEMON = "tg-test-daemon"
SLEEP = "98765.4321"
#: What a build may take of this machine's memory, whatever a suite prints.
MAX_MEMORY_KIB = 600 << 10

FAILING = "def test_wrong():\n    assert 6 * 7 == 41, 'the answer is not 41'\n"
HANGING = "import time\n\n\ndef test_waits_for_ever():\n    time.sleep(10**6)\n"
NETWORK = """\
import socket


def test_asks_a_server():
    socket.create_connection(("1.1.1.1", 80), timeout=5).close()
"""
DAEMONS = f"""\
import ctypes
import os
import subprocess
import time


def test_leaves_daemons():
    subprocess.Popen(["sleep", "{SLEEP}"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:  # keeps every pipe of the run open
            ctypes.CDLL(None).prctl(15, b"{DAEMON}")
            time.sleep({SLEEP})
        os._exit(0)
    os.wait()
"""
FLOOD = """\
import os


def test_prints_a_gigabyte():
    chunk = b"x" * (1 << 20)
    for _ in range(1024):
        os.write(1, chunk)
"""
INTRUDER = """\
import os
import subprocess


def test_writes_outside():
    reached = []
    for folder in {folders!r}:
        path = os.path.join(folder, {marker!r})
        try:
            with open(path, "w") as out:
                out.write("x")
            reached.append(path)
        except OSError:
            pass
    subprocess.run(["sh", "-c", "rm -rf {folder}; echo x > {folder}/{marker}"], stderr=subprocess.DEVNULL)
    assert not [path for path in reached if not path.startswith("/tmp")]
"""
CRLF = (
    '"""Words."""\n\n\n'
    "def shout(text):\n"
    '    """Return a text in capitals, with an exclamation mark; an empty text is a ValueError."""\n'
    "    if not text:\n"
    '        raise ValueError("nothing to shout")\n'
    '    loud = text.upper() + "!"\n'
    "    return loud\n\n\n"
    "def greet(name):\n"
    '    """Return a greeting."""\n'
    '    return "Hello " + name\n'
).replace("\n", "\r\n")
CRLF_TESTS = """\
import pytest

from shapes.words import greet, shout


def test_shout():
    assert shout("a") == "A!"


def test_shout_refuses_nothing():
    with pytest.raises(ValueError):
        shout("")


def test_greet():
    assert greet("Ann") == "Hello Ann"
"""
BIG_SOURCE = b"DATA = [\n" + b"    'twenty-four characters',\n" * (50_000_000 // 31) + b"]\n"
ODD_NAME, SPACED_NAME = "shapes/new\nline.py", "shapes/with space.py"


# -- one build of all the repositories that a build goes on without, or in spite of --------------------


@dataclass(frozen=True)
class OddBuild:
    ended: Ended
    out: Path
    repos: Path
    cache: Path
    peak_kib: int
    host: Path

    def skipped(self, name: str) -> str:
        """The reason why a repository was skipped, as stderr gives it."""
        found = re.search(rf"^{re.escape(name)}: skipped: (.*?)(?=^odd/\w+: |\Z)", self.ended.stderr, re.M | re.S)
        assert found, self.ended.stderr
        return found[1]

    def notes(self, name: str) -> list[str]:
        notes = list(build_record(self.out, name)["notes"])
        for note in notes:
            assert f"{name}: note: {note}" in self.ended.stderr
        return notes


def _odd_files(root: Path, outside: Path) -> str:
    """A git repository with one of everything that cannot be read or carried, beside two good modules."""
    submodule = root.with_name("submodule")
    make_repo(submodule, {"inner.py": "X = 1\n"})
    make_repo(root, {})
    make_project(
        root,
        {
            "shapes/broken.py": "def unfinished(:\n",
            "shapes/latin.py": b"# -*- coding: latin-1 -*-\nNAME = 'caf\xe9'\n",
            "shapes/words.py": CRLF,
            "tests/test_words.py": CRLF_TESTS,
            "shapes/big.py": BIG_SOURCE,
            SPACED_NAME: "X = 1\n",
            ODD_NAME: "X = 1\n",
        },
    )
    (root / "outside.txt").symlink_to(outside / "secret.txt")
    (root / "upwards").symlink_to("../../../..")
    run_git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(submodule), "vendored", cwd=root)
    return commit_all(root, "odd")


@pytest.fixture(scope="session")
def odd_build(tmp_path_factory: pytest.TempPathFactory, build_cache: Path) -> OddBuild:
    root = tmp_path_factory.mktemp("odd")
    host = root / "host"
    write(host, {"secret.txt": "the host's own file\n"})
    folders = ["/etc", "/usr", "/usr/bin", "/var", "/root", "/", "/env/venv", str(Path.home()), str(host)]
    intruder = INTRUDER.format(folders=folders, marker=MARKER, folder=host)
    projects = {
        "good": {},
        "failing": {"tests/test_areas.py": FAILING, "tests/test_network.py": NETWORK},
        "hanging": {"tests/test_hanging.py": HANGING},
        "hostile": {
            "tests/test_daemons.py": DAEMONS,
            "tests/test_flood.py": FLOOD,
            "tests/test_intruder.py": intruder,
        },
    }
    for name, files in projects.items():
        make_project(root / name, dict(files))
    write(root / "text", {"README.md": "Not a program.\n"})
    revision = _odd_files(root / "files", host)
    repos = write_repos(
        root,
        {"git": "http://127.0.0.1:9/nobody/there.git", "revision": "v1", "name": "odd/unreachable"},
        {"git": str(root / "files"), "revision": "v99.9", "name": "odd/revision"},
        {"pypi": "inflection==0.5.1", "sha256": WRONG_SHA256, "name": "odd/checksum"},
        {"path": "text", "name": "odd/text"},
        {"path": "failing", "name": "odd/failing"},
        {"path": "hanging", "name": "odd/hanging", "timeout_s": 40.0},
        {"path": "hostile", "name": "odd/hostile", "test_command": "pytest -s"},
        {"git": str(root / "files"), "revision": revision, "name": "odd/files", "exclude": ["shapes/areas.py"]},
        {"path": "good", "name": "odd/good"},
    )
    out = root / "out"
    process = start("build", repos, "--out", out, "--max-tasks", "2", "--jobs", "3", "--json", cache=build_cache)
    peak = 0
    read: list[bytes] = []
    assert process.stderr is not None
    reader = threading.Thread(target=lambda stream: read.append(stream.read()), args=(process.stderr,))
    reader.start()
    while process.poll() is None:
        peak = max(peak, _peak_kib(process.pid))
        time.sleep(0.2)
    reader.join()
    process.stderr.close()
    ended = Ended(process.returncode, "", read[0].decode())
    return OddBuild(ended=ended, out=out, repos=repos, cache=build_cache, peak_kib=peak, host=host)


def _peak_kib(pid: int) -> int:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def test_skipped_repositories_leave_the_others_alone(odd_build: OddBuild) -> None:
    assert odd_build.ended.code == 1, odd_build.ended.stderr
    assert "Traceback" not in odd_build.ended.stderr
    assert len(tasks_of(odd_build.out, "odd/good")) == 2
    assert build_record(odd_build.out, "odd/good")["error"] == ""


def test_unreachable_url(odd_build: OddBuild) -> None:
    reason = odd_build.skipped("odd/unreachable")
    assert f"{odd_build.repos}:" in reason
    assert "cannot fetch http://127.0.0.1:9/nobody/there.git" in reason
    assert "hint: check the URL and the network" in reason


def test_missing_revision(odd_build: OddBuild) -> None:
    reason = odd_build.skipped("odd/revision")
    assert "there is no revision 'v99.9'" in reason
    assert "hint: give a full commit, or a tag or branch" in reason


def test_checksum_mismatch(odd_build: OddBuild) -> None:
    reason = odd_build.skipped("odd/checksum")
    assert "checksum mismatch of inflection-0.5.1.tar.gz" in reason
    assert WRONG_SHA256 in reason
    assert "hint: correct sha256:" in reason
    assert not (odd_build.cache / "sdists" / WRONG_SHA256).exists()


def test_no_python_project(odd_build: OddBuild) -> None:
    reason = odd_build.skipped("odd/text")
    assert f"{odd_build.repos}:" in reason
    assert "odd/text" in reason
    assert "hint: " in reason


def test_failing_suite_shows_its_log(odd_build: OddBuild) -> None:
    reason = odd_build.skipped("odd/failing")
    assert "the suite does not pass: 0 of 2 tests that ran passed" in reason
    assert "the answer is not 41" in reason
    assert "hint: add what the tests need to `requirements`" in reason


def test_suite_has_no_network(odd_build: OddBuild) -> None:
    assert "OSError: [Errno 101] Network is unreachable" in odd_build.skipped("odd/failing")


def test_a_hanging_test_is_set_apart_and_the_rest_of_the_suite_used(odd_build: OddBuild) -> None:
    hang = "tests/test_hanging.py::test_waits_for_ever"
    assert odd_build.notes("odd/hanging") == [f"1 tests are slow, hang or crash and are set apart: {hang}, ..."]
    assert len(tasks_of(odd_build.out, "odd/hanging")) == 2


def test_daemons_of_a_suite_end_with_it(odd_build: OddBuild) -> None:
    assert len(tasks_of(odd_build.out, "odd/hostile")) == 2, odd_build.ended.stderr
    names = {(path / "comm").read_text().strip(): path.name for path in _processes()}
    assert DAEMON not in names
    assert not [path for path in _processes() if SLEEP.encode() in (path / "cmdline").read_bytes()]


def _processes() -> Iterator[Path]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                (path / "cmdline").read_bytes()
                (path / "comm").read_bytes()
            except OSError:
                continue  # it ended meanwhile
            yield path


def test_flood_of_output_costs_no_memory(odd_build: OddBuild) -> None:
    assert len(tasks_of(odd_build.out, "odd/hostile")) == 2, odd_build.ended.stderr
    assert 0 < odd_build.peak_kib < MAX_MEMORY_KIB


def test_nothing_outside_the_tree_is_written(odd_build: OddBuild) -> None:
    assert len(tasks_of(odd_build.out, "odd/hostile")) == 2, odd_build.ended.stderr
    assert (odd_build.host / "secret.txt").read_text() == "the host's own file\n"
    folders = ("/etc", "/usr", "/usr/bin", "/var", "/root", "/", Path.home(), odd_build.host, "/tmp")
    assert not [folder for folder in folders if Path(folder, MARKER).exists()]
    assert not list(odd_build.cache.glob(f"snapshots/*/venv/{MARKER}"))


def test_files_that_cannot_be_read_are_left_alone(odd_build: OddBuild) -> None:
    notes = "\n".join(odd_build.notes("odd/files"))
    assert "shapes/broken.py: syntax error, left alone" in notes
    assert re.search(r"shapes/latin\.py: .*left alone", notes)
    (task, *_) = tasks_of(odd_build.out, "odd/files")
    workspace = read_archive(task / "workspace.tar.zst")
    assert workspace["shapes/broken.py"] == b"def unfinished(:\n"
    assert workspace["shapes/latin.py"].endswith(b"'caf\xe9'\n")
    assert workspace[SPACED_NAME] == workspace[ODD_NAME] == b"X = 1\n"


def test_files_that_cannot_be_carried_are_left_out(odd_build: OddBuild) -> None:
    notes = "\n".join(odd_build.notes("odd/files"))
    for name, reason in (
        ("shapes/big.py", f"{len(BIG_SOURCE)} bytes, more than"),
        ("vendored", "submodule"),
        ("outside.txt", str(odd_build.host / "secret.txt")),
        ("upwards", "../../../.."),
    ):
        assert re.search(rf"^{re.escape(repr(name))}: .*{re.escape(reason)}", notes, re.M), (name, notes)
    for task in tasks_of(odd_build.out, "odd/files"):
        names = set(read_archive(task / "workspace.tar.zst"))
        assert not names & {"shapes/big.py", "vendored/inner.py", "outside.txt"}


def test_crlf_source_is_restored_byte_for_byte(odd_build: OddBuild, tmp_path: Path) -> None:
    (task, *_) = tasks_of(odd_build.out, "odd/files")
    assert b"words.py" in (task / "gold.patch").read_bytes()
    workspace = read_archive(task / "workspace.tar.zst")
    without = workspace["shapes/words.py"]
    assert without != CRLF.encode()
    assert without.count(b"\n") == without.count(b"\r\n")
    write(tmp_path, dict(workspace))
    subprocess.run(["git", "apply", "--whitespace=nowarn", task / "gold.patch"], cwd=tmp_path, check=True)
    assert (tmp_path / "shapes/words.py").read_bytes() == CRLF.encode()


# -- repos.yaml and options ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("repos:\n  - path: demo\n    tests_paths: [x]\n", 3, "tests_paths"),
        ("repos:\n  - path: demo\n    timeout_s: soon\n", 3, "timeout_s"),
        ("repos:\n  - path: demo\n    requirements: simplejson\n", 3, "requirements"),
    ],
)
def test_mistake_in_repos_yaml(tmp_path: Path, build_cache: Path, text: str, line: int, key: str) -> None:
    file = tmp_path / "repos.yaml"
    file.write_text(text)
    ended = taskgen("build", file, "--out", tmp_path / "out", cache=build_cache)
    assert ended.code == 1
    assert f"{file}:{line}: " in ended.stderr
    assert key in ended.stderr
    assert not (tmp_path / "out").exists()


def test_unknown_option_is_wrong_usage(build_cache: Path) -> None:
    ended = taskgen("build", "--no-such-option", cache=build_cache)
    assert ended.code == 2
    assert "--no-such-option" in ended.stderr


def test_only_names_no_repository(odd_build: OddBuild, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = taskgen("build", odd_build.repos, "--out", out, "--only", "ghost", cache=odd_build.cache)
    assert ended.code == 1
    assert "--only ghost: no such repository" in ended.stderr
    assert "odd/good" in ended.stderr
    assert not out.exists()


def test_no_sandbox_means_that_nothing_runs(odd_build: OddBuild, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("git", "sh", "env"):
        (programs / name).symlink_to(shutil.which(name) or name)
    witness = tmp_path / "installed"
    make_project(tmp_path / "demo", {"setup.py": f"open({str(witness)!r}, 'w')\n"})
    repos = write_repos(tmp_path, {"path": "demo", "install": [f"touch {witness}"]})
    nowhere = {"PATH": str(programs), "DOCKER_HOST": "tcp://127.0.0.1:9"}
    ended = taskgen("build", repos, "--out", tmp_path / "out", cache=tmp_path / "cache", **nowhere)
    assert ended.code == 1
    assert "no sandbox works on this machine" in ended.stderr
    assert "apt-get install bubblewrap" in ended.stderr
    assert "apt-get install docker.io" in ended.stderr
    assert not witness.exists()
    assert not (tmp_path / "out").exists()
    (task, *_) = tasks_of(odd_build.out, "odd/good")
    ended = taskgen("grade", task, "--gold", cache=tmp_path / "cache", **nowhere)
    assert ended.code == 1
    assert "no sandbox works on this machine" in ended.stderr


# -- the output folder --------------------------------------------------------------------------------


def _good_only(odd_build: OddBuild, out: Path, *more: str) -> list[str | Path]:
    return ["build", odd_build.repos, "--out", out, "--only", "odd/good", "--max-tasks", "2", *more]


def test_two_runs_into_one_folder(odd_build: OddBuild, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = start(*_good_only(odd_build, out), cache=odd_build.cache)
    assert first.stderr is not None
    first.stderr.readline()  # it has begun, and so holds the folder
    second = taskgen(*_good_only(odd_build, out), cache=odd_build.cache)
    assert first.poll() is None, "the first run was over before the second began"
    assert second.code == 1
    assert f"another run is writing into {out}" in second.stderr
    assert "hint: wait for it" in second.stderr
    _, log = first.communicate(timeout=120)
    assert first.returncode == 0, log.decode()
    assert len(tasks_of(out)) == 2


def test_folder_of_somebody_else(odd_build: OddBuild, tmp_path: Path) -> None:
    write(tmp_path / "out", {"thesis.tex": "years of work\n"})
    ended = taskgen(*_good_only(odd_build, tmp_path / "out"), cache=odd_build.cache)
    assert ended.code == 1
    assert f"{tmp_path / 'out'} is not empty and was not made by taskgen build" in ended.stderr
    assert "hint: choose a new folder with --out" in ended.stderr
    assert snapshot(tmp_path / "out") == {"thesis.tex": b"years of work\n"}


def test_out_is_a_file(odd_build: OddBuild, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    ended = taskgen(*_good_only(odd_build, tmp_path / "out"), cache=odd_build.cache)
    assert ended.code == 1
    assert f"{tmp_path / 'out'} is a file" in ended.stderr
    assert (tmp_path / "out").read_text() == "x"


def test_other_settings_into_the_same_folder(odd_build: OddBuild) -> None:
    before = snapshot(odd_build.out)
    ended = taskgen(*_good_only(odd_build, odd_build.out, "--seed", "7"), cache=odd_build.cache)
    assert ended.code == 1
    assert f"{odd_build.out} was made with other settings (seed)" in ended.stderr
    assert "hint: choose another folder" in ended.stderr
    assert snapshot(odd_build.out) == before


def test_one_repository_again_keeps_the_others(odd_build: OddBuild, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(odd_build.out, out)
    before = snapshot(out)
    ended = taskgen(*_good_only(odd_build, out), cache=odd_build.cache)
    assert ended.code == 0, ended.stderr
    after = snapshot(out)
    assert {n: b for n, b in after.items() if n != "build.json"} == {
        n: b for n, b in before.items() if n != "build.json"
    }
    assert build_record(out, "odd/failing")["error"]


# -- full disks ---------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mount of 16 KiB; a test may change its size."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = os.geteuid() == 0 and _mount(disk, "16k")
    if not mounted:
        reason = "mounting a small tmpfs needs root"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def _mount(disk: Path, size: str) -> bool:
    return subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk]).returncode == 0


def _resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)


def _is_disk_fault(ended: Ended, disk: Path) -> bool:
    full = re.search(r"^error: .*(no space is left on the disk|the disk of \S+ is full).*$", ended.stderr, re.M)
    return (
        ended.code == 1
        and full is not None
        and "hint: free some space" in ended.stderr
        and (str(disk) in full[0] or "of the cache" in full[0])
    )


def test_out_on_a_full_disk(odd_build: OddBuild, small_disk: Path) -> None:
    out = small_disk / "out"
    for size in ("16k", "64k", "128k"):
        _resize(small_disk, size)
        ended = taskgen(*_good_only(odd_build, out), cache=odd_build.cache)
        assert _is_disk_fault(ended, small_disk), (size, ended)
    _resize(small_disk, "64m")
    ended = taskgen(*_good_only(odd_build, out), cache=odd_build.cache)
    assert ended.code == 0, ended.stderr
    assert {t.name for t in tasks_of(out)} == {t.name for t in tasks_of(odd_build.out, "odd/good")}
    assert not list(out.glob("tasks/.*"))


@pytest.mark.parametrize("size", ["16k", "1m", "40m", "280m"])
def test_cache_on_a_full_disk(odd_build: OddBuild, small_disk: Path, tmp_path: Path, size: str) -> None:
    _resize(small_disk, size)
    ended = taskgen(*_good_only(odd_build, tmp_path / "out"), cache=small_disk)
    assert _is_disk_fault(ended, small_disk), ended


# -- grade and show -----------------------------------------------------------------------------------


def _patch(path: str, old: str, new: str) -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{old}\n+{new}\n"


@pytest.mark.parametrize(
    ("patch", "code", "message"),
    [
        (_patch("tests/test_areas.py", "import pytest", "import os"), 4, "left out: tests/test_areas.py: a test file"),
        (_patch("tests/../../evil.py", "a", "b"), 4, "left out: tests/../../evil.py: path component '..'"),
        (_patch("../evil.py", "a", "b"), 4, "left out: ../evil.py: path component '..'"),
        ("Sure! Here is the code:\n", 1, "not an acceptable patch"),
        (_patch("shapes/areas.py", "never was there", "b"), 4, "the patch does not apply"),
        (_patch("shapes/ghost.py", "a", "b"), 4, "the patch does not apply"),
    ],
)
def test_patch_that_is_no_solution(odd_build: OddBuild, tmp_path: Path, patch: str, code: int, message: str) -> None:
    (task, *_) = tasks_of(odd_build.out, "odd/good")
    file = tmp_path / "evil.patch"
    file.write_text(patch)
    ended = taskgen("grade", task, file, cache=odd_build.cache)
    assert ended.code == code, ended
    assert message in ended.stdout + ended.stderr
    assert not list(tmp_path.parent.rglob("evil.py"))


def test_patch_that_is_not_there(odd_build: OddBuild, tmp_path: Path) -> None:
    (task, *_) = tasks_of(odd_build.out, "odd/good")
    ended = taskgen("grade", task, tmp_path / "ghost.patch", cache=odd_build.cache)
    assert ended.code == 1
    assert f"{tmp_path / 'ghost.patch'} cannot be read" in ended.stderr


def test_gold_and_empty_patch(odd_build: OddBuild) -> None:
    (task, *_) = tasks_of(odd_build.out, "odd/good")
    assert taskgen("grade", task, "--gold", cache=odd_build.cache).code == 0
    assert taskgen("grade", task, "--empty", cache=odd_build.cache).code == 4


@pytest.mark.parametrize("command", [["show"], ["grade", "--gold"]])
def test_no_task_there(tmp_path: Path, build_cache: Path, command: list[str]) -> None:
    write(tmp_path / "folder", {"notes.txt": "x"})
    write(tmp_path / "broken", {"task.json": "{"})
    write(tmp_path / "newer", {"task.json": '{"schema_version": 99}'})
    for name, message in (
        ("folder", "holds no task"),
        ("ghost", "holds no task"),
        ("broken", "cannot be read"),
        ("newer", "schema_version is 99"),
    ):
        ended = taskgen(*command, tmp_path / name, cache=build_cache)
        assert ended.code == 1, ended
        assert str(tmp_path / name) in ended.stderr
        assert message in ended.stderr


def test_task_without_its_archives(odd_build: OddBuild, tmp_path: Path) -> None:
    (task, *_) = tasks_of(odd_build.out, "odd/good")
    for name in ("gold.patch", "workspace.tar.zst", "tests.tar.zst"):
        copy = tmp_path / name
        shutil.copytree(task, copy)
        (copy / name).unlink()
        ended = taskgen("grade", copy, "--gold", cache=odd_build.cache)
        assert ended.code == 1, ended
        assert str(copy / name) in ended.stderr
