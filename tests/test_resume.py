"""Runs that are killed, interrupted or repeated: the same command always ends in the same task set."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.build_helpers import make_project, snapshot, start, taskgen, tasks_of, write_repos

SEED = 20_240_817
#: After which line of progress each kill comes, and at most how many seconds later.
KILLS: Sequence[tuple[str, float]] = (
    (": fetch", 0.5),
    (": install", 4.0),
    (": install", 8.0),
    (": baseline", 1.0),
    (": baseline", 3.0),
    (": validation", 0.5),
    (": validation", 2.0),
    (": validation", 4.0),
    (": candidate ", 1.0),
    (": candidate ", 3.0),
)
WAIT_S = 240.0
#: A project of which one candidate is no task: a stub that returns None passes its only test.
WEAK = {
    "shapes/log.py": '''\
"""A log of shapes."""

SEEN = []


def remember(shape):
    """Remember a shape for later; shapes are kept in order of arrival."""
    if shape is None:
        return
    names = [shape]
    SEEN.extend(names)
''',
    "tests/test_log.py": """\
from shapes.log import remember


def test_remember():
    assert remember("square") is None
""",
}


@dataclass(frozen=True)
class Case:
    """A list of repositories, and what an undisturbed run makes of it."""

    repos: Path
    out: Path
    cache: Path

    def command(self, out: Path) -> list[str | Path]:
        return ["build", self.repos, "--out", out, "--max-tasks", "4"]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, build_cache: Path) -> Case:
    root = tmp_path_factory.mktemp("resume")
    make_project(root / "weak", dict(WEAK))
    library = {"pypi": "inflection==0.5.1", "install": ["python -m pip install -e ."]}
    made = Case(write_repos(root, library, {"path": "weak"}), root / "out", build_cache)
    ended = taskgen(*made.command(made.out), cache=build_cache)
    assert ended.code == 0, ended.stderr
    assert len(tasks_of(made.out, "pypi/inflection")) == 4
    assert b"a stub passes the hidden tests" in (made.out / "rejected.jsonl").read_bytes()
    return made


class Watched:
    """A running build, and the lines of its progress as they come."""

    def __init__(self, command: Sequence[str | Path], cache: Path) -> None:
        self.process = start(*command, cache=cache)
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line.decode())
                self._changed.notify_all()

    def wait_for(self, text: str) -> bool:
        """Wait for a line that holds ``text``; False if the build ended without it."""
        deadline = time.monotonic() + WAIT_S
        with self._changed:
            while not any(text in line for line in self.lines):
                self._changed.wait(0.1)
                assert time.monotonic() < deadline, self.lines
                if self.process.poll() is not None and not self._reader.is_alive():
                    return any(text in line for line in self.lines)
        return True

    def end(self) -> str:
        """Wait until it is over; everything that it said."""
        self.process.wait(WAIT_S)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return "".join(self.lines)


def _steady(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what differs from run to run."""
    checks = {name: value for name, value in row["checks"].items() if name != "seconds"}
    return {**row, "created_at": None, "checks": checks}


def _assert_same_set(one: Path, other: Path) -> None:
    assert [t.name for t in tasks_of(one)] == [t.name for t in tasks_of(other)]
    first, second = snapshot(one), snapshot(other)
    assert set(first) == set(second)
    for name, data in first.items():
        if name.endswith("task.json"):
            assert _steady(json.loads(data)) == _steady(json.loads(second[name])), name
        elif name not in ("tasks.parquet", "build.json"):
            assert data == second[name], name
    tables = [pq.read_table(out / "tasks.parquet").to_pylist() for out in (one, other)]
    assert [_steady(row) for row in tables[0]] == [_steady(row) for row in tables[1]]
    assert [row["instance_id"] for row in tables[0]] == [task.name for task in tasks_of(one)]


def _processes_below(folder: Path) -> list[str]:
    """Processes of this machine that work in, or were started with, a folder."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            try:
                words = (path / "cmdline").read_bytes() + b" " + os.fsencode((path / "cwd").readlink())
            except OSError:
                continue  # it ended meanwhile
            if os.fsencode(folder) in words:
                found.append(words.decode(errors="replace"))
    return found


def _kill(command: Sequence[str | Path], cache: Path, text: str, delay_s: float) -> bool:
    """Start a build and kill it ``delay_s`` after a line with ``text``; False if it was over by then."""
    build = Watched(command, cache)
    build.wait_for(text)
    time.sleep(delay_s)
    alive = build.process.poll() is None
    if alive:
        os.killpg(build.process.pid, signal.SIGKILL)
    said = build.end()
    assert "error" not in said, said
    return alive


def test_killed_ten_times_at_random(case: Case, tmp_path: Path) -> None:
    """From an empty cache on, and so with another cache than the undisturbed run."""
    moments, out, cache = random.Random(SEED), tmp_path / "out", tmp_path / "cache"
    for text, longest_s in KILLS:
        delay_s = moments.uniform(0.0, longest_s)
        # A build that was done before its time had come does not count: the next one is killed sooner.
        while not _kill(case.command(out), cache, text, delay_s):
            delay_s = delay_s / 2 if delay_s > 0.01 else 0.0
    ended = taskgen(*case.command(out), cache=cache)
    assert ended.code == 0, ended.stderr
    _assert_same_set(case.out, out)
    assert not [path for path in out.rglob(".*") if path.name != ".taskgen"]
    assert not _processes_below(cache)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(case: Case, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    build = Watched(case.command(out), case.cache)
    assert build.wait_for("pypi/inflection: candidate 1 of 4 accepted")
    began = time.monotonic()
    os.killpg(build.process.pid, number)
    said = build.end()
    assert time.monotonic() - began < 15.0
    assert build.process.returncode == 130, said
    assert "interrupted: what was done is kept; the same command goes on from here" in said
    assert "Traceback" not in said
    kept = [row["instance_id"] for row in pq.read_table(out / "tasks.parquet").to_pylist()]
    assert len(kept) >= 1
    assert kept == [task.name for task in tasks_of(out)]
    before = {name: data for name, data in snapshot(out).items() if name.startswith("tasks/")}
    ended = taskgen(*case.command(out), cache=case.cache)
    assert ended.code == 0, ended.stderr
    _assert_same_set(case.out, out)
    after = snapshot(out)
    assert before == {name: after[name] for name in before}, "a task that was done has been made again"


def test_interrupted_while_it_installs(case: Case, tmp_path: Path) -> None:
    cache, out = tmp_path / "cache", tmp_path / "out"
    build = Watched(case.command(out), cache)
    assert build.wait_for(": install")
    time.sleep(1.0)
    os.killpg(build.process.pid, signal.SIGINT)
    said = build.end()
    assert build.process.returncode == 130, said
    assert not _processes_below(cache)
    assert pq.read_table(out / "tasks.parquet").num_rows == 0


def test_interrupted_while_it_waits_for_another_build(case: Case, tmp_path: Path) -> None:
    """Both need the same environment; the second waits for the first, which no sandbox of its own can end."""
    cache = tmp_path / "cache"
    make_project(tmp_path / "slow")
    repos = write_repos(tmp_path, {"path": "slow", "install": ["sleep 600"]})
    builds = []
    for name in ("first", "second"):
        builds.append(Watched(["build", repos, "--out", tmp_path / name], cache))
        assert builds[-1].wait_for(": install")
    time.sleep(1.0)
    os.killpg(builds[1].process.pid, signal.SIGINT)
    said = builds[1].end()
    assert builds[1].process.returncode == 130, said
    assert builds[0].process.poll() is None
    os.killpg(builds[0].process.pid, signal.SIGINT)
    assert builds[0].end()
    assert builds[0].process.returncode == 130


def test_finished_run_is_not_done_again(case: Case) -> None:
    before = snapshot(case.out)
    began = time.monotonic()
    ended = taskgen(*case.command(case.out), cache=case.cache)
    assert time.monotonic() - began < 10.0
    assert ended.code == 0, ended.stderr
    after = snapshot(case.out)
    assert set(before) == set(after)
    assert [n for n in before if before[n] != after[n]] in ([], ["build.json"])
