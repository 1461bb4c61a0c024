"""Patches that use up the machine, and graders that are killed: a verdict or infra_error, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.build_helpers import make_project, start, taskgen, tasks_of, write_repos
from tests.test_grade import patch_for

MARKER = "left-behind-by-a-patch"
#: What each does beside a right answer; the last line says so.
FAULTS = {
    "fork bomb": "while True: os.fork()",
    "1 GB of output": "[os.write(1, b'x' * (1 << 20)) for _ in range(1 << 10)]; raise MemoryError",
    "memory hog": "hog = [bytes(1 << 24) + b'x' for _ in range(1 << 20)]",
    "filled /tmp": "open('/tmp/full', 'wb').writelines(bytes(1 << 20) for _ in range(1 << 20))",
    "crash": "import ctypes; ctypes.string_at(0)",
    "kills all": "os.kill(-1, signal.SIGKILL)",
}
DAEMON = f"subprocess.Popen(['sh', '-c', 'while :; do sleep 1; done # {MARKER}'], start_new_session=True)"
ANSWER = ("if min(width, height) < 0: raise ValueError('no')", "return width * height")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory, build_cache: Path, bubblewrap: None) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    repos = write_repos(folder, {"path": str(make_project(folder / "demo"))})
    ended = taskgen("build", repos, "--out", folder / "set", cache=build_cache)
    assert ended.code == 0, ended.stderr
    return next(t for t in tasks_of(folder / "set") if "rectangle" in (t / "instruction.md").read_text())


def patch_file(task: Path, folder: Path, *lines: str) -> Path:
    file = folder / "fault.patch"
    file.write_text(patch_for(task, "import os, signal, subprocess, sys, time", *lines))
    return file


def left_behind() -> list[str]:
    """Command lines of this machine's processes that a patch started."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if MARKER in line:
            found.append(line)
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_what_uses_up_the_machine_earns_nothing(task: Path, build_cache: Path, tmp_path: Path, name: str) -> None:
    file = patch_file(task, tmp_path, FAULTS[name], *ANSWER)
    ended = taskgen("grade", task, file, "--fail-fast", "--json", cache=build_cache)
    assert (ended.code, ended.json()["kind"]) in ((4, "unresolved"), (4, "timed_out"), (4, "hacked")), ended


def test_a_daemon_dies_with_the_run(task: Path, build_cache: Path, tmp_path: Path) -> None:
    ended = taskgen("grade", task, patch_file(task, tmp_path, DAEMON, *ANSWER), "--json", cache=build_cache)
    assert ended.json()["kind"] == "resolved", ended.stdout  # its answers are right
    assert left_behind() == []


def test_a_grader_that_is_killed_leaves_nothing(task: Path, build_cache: Path, tmp_path: Path) -> None:
    file = patch_file(task, tmp_path, DAEMON, "time.sleep(60)")
    running = start("grade", task, file, cache=build_cache)
    deadline = time.monotonic() + 60
    while not left_behind() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_behind()
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    while left_behind() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_behind() == []
    # The next grader takes away what this one could not.
    dead = [lock for lock in (build_cache / "sandboxes").glob("*.lock") if _is_free(lock)]
    assert dead
    assert taskgen("grade", task, "--gold", cache=build_cache).code == 0
    assert [lock for lock in dead if lock.exists() or lock.with_suffix("").exists()] == []


def _is_free(lock: Path) -> bool:
    """Whether nobody holds a lock, that is: whether its owner is dead and nobody has cleaned up."""
    return subprocess.run(["flock", "--nonblock", lock, "true"], check=False).returncode == 0
