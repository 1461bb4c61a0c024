"""What grading costs over the bare tests: ``python -m benchmarks.grade_speed TASKS... [--sandbox KIND] [--json FILE]``.

For each task, in rounds that take every measurement in turn (so that other work on the machine meets all alike): the
floor (a sandbox that starts and ends, the interpreter, the import of pytest), the same FAIL_TO_PASS and PASS_TO_PASS
tests by pytest's own command line in a sandbox that was prepared before, the full grading of the gold patch, and that
of the empty patch with and without fail-fast. Printed are medians, and each median's difference to the bare run's.

Processor time is that of this process and of all that ran in sandboxes; with docker, where the engine starts what
runs, that of this process alone. ``load`` is the machine's load average at the beginning and the end.

Then ``--patches`` patches of all tasks with known verdicts (gold, empty, gold with a syntax error, one that does not
apply) are graded ``--jobs`` at a time. Exit code 1 if a verdict is lost (an exception or infra_error) or wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from taskgen import taskset
from taskgen.cli import cache_folder
from taskgen.errors import TaskgenError
from taskgen.grading.grade import grade
from taskgen.grading.task import Task, load
from taskgen.sandbox import ENV_DIR, WORKSPACE_DIR, ExecResult, Sandbox, SandboxProvider
from taskgen.sandboxes.select import select
from taskgen.session import PYTHON
from taskgen.types import VerdictKind

PR_SET_CHILD_SUBREAPER = 36
BARE = "bare pytest"
Step = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds by the clock and of processors."""

    wall_s: float
    cpu_s: float


class Meter:
    """Takes over orphans of sandboxes, so that their processor time is counted when they are reaped."""

    def __init__(self) -> None:
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")

    def measure(self, step: Step) -> Cost:
        """Run a step. Nothing else of this process may have children meanwhile."""
        _reap()
        began, cpu = time.monotonic(), _cpu_s()
        step()
        wall_s = time.monotonic() - began
        _reap()
        return Cost(wall_s=wall_s, cpu_s=_cpu_s() - cpu)


def _reap() -> None:
    """Wait for all children that have ended, or are being killed: a sandbox is closed when its step is over."""
    deadline = time.monotonic() + 10.0
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.002)


def _cpu_s() -> float:
    return sum(os.times()[:4])


class Bare:
    """The tests of a task by pytest's own command line, with the gold patch in place."""

    def __init__(self, task: Task, provider: SandboxProvider, snapshot: str) -> None:
        self._task, self._provider, self._snapshot = task, provider, snapshot
        files = sorted({test.split("::")[0] for test in task.wanted})
        self._argv = [PYTHON, "-m", "pytest", "-q", *task.suite.args, *files]
        with self.prepared() as sandbox:
            listed = self._run(sandbox, [*self._argv, "--collect-only"])
            names = [line for line in listed.stdout.decode().splitlines() if "::" in line]
        self._argv += [word for name in names if name not in task.wanted for word in ("--deselect", name)]

    def prepared(self) -> Sandbox:
        """A sandbox with the tree, the tests, and what the editable install added."""
        sandbox = self._provider.create(snapshot=self._snapshot, limits=self._task.limits)
        sandbox.put(WORKSPACE_DIR, self._task.tree(self._task.gold, tests=True))
        self._run(sandbox, ["cp", "-a", "-n", f"{ENV_DIR}/artifacts/.", WORKSPACE_DIR])
        return sandbox

    def _run(self, sandbox: Sandbox, argv: list[str]) -> ExecResult:
        done = sandbox.exec(argv, env={"CI": "true"}, timeout_s=self._task.suite.run_timeout_s)
        if done.returncode != 0:
            tail = (done.stdout + done.stderr).decode(errors="replace")[-2000:]
            raise SystemExit(f"{' '.join(argv[:4])} ended with code {done.returncode}:\n{tail}")
        return done

    def tests(self, sandbox: Sandbox) -> None:
        """Run them; ends the benchmark if one fails."""
        self._run(sandbox, self._argv)

    def python(self, sandbox: Sandbox, program: str) -> None:
        """Run a program of one line."""
        self._run(sandbox, [PYTHON, "-c", program])


def rounds(folder: Path, provider: SandboxProvider, cache: Path, n: int) -> dict[str, list[Cost]]:
    """``n`` rounds of all measurements of a task, after one that is not counted."""
    task = load(folder)
    snapshot = task.snapshot(provider, cache)
    bare, meter = Bare(task, provider, snapshot), Meter()

    def empty_sandbox() -> None:
        with provider.create(snapshot=snapshot, limits=task.limits) as sandbox:
            sandbox.exec(["true"])

    def graded(patch: bytes, wanted: VerdictKind, *, fail_fast: bool = False) -> None:
        verdict = grade(folder, patch, provider, cache, fail_fast=fail_fast)
        if verdict.kind is not wanted:
            raise SystemExit(f"{folder.name}: {verdict.kind.value} instead of {wanted.value}: {verdict.reason}")

    found: dict[str, list[Cost]] = {}
    for number in range(n + 1):
        with bare.prepared() as one, bare.prepared() as other:
            steps: dict[str, Step] = {
                "sandbox, start to end": empty_sandbox,
                "python -c pass": lambda: bare.python(one, "pass"),
                "import pytest": lambda: bare.python(one, "import pytest"),
                BARE: lambda: bare.tests(other),
                "gold patch": lambda: graded(task.gold_patch, VerdictKind.RESOLVED),
                "empty patch": lambda: graded(b"", VerdictKind.UNRESOLVED),
                "empty patch, fail-fast": lambda: graded(b"", VerdictKind.UNRESOLVED, fail_fast=True),
            }
            for name, step in steps.items():
                cost = meter.measure(step)
                if number:
                    found.setdefault(name, []).append(cost)
    return found


def figures(costs: dict[str, list[Cost]]) -> dict[str, dict[str, float]]:
    """Medians, and their differences to the bare run's."""
    bare = costs[BARE]
    return {
        name: {
            "wall_s": median(c.wall_s for c in found),
            "cpu_s": median(c.cpu_s for c in found),
            "over_bare_wall_s": median(c.wall_s for c in found) - median(c.wall_s for c in bare),
            "over_bare_cpu_s": median(c.cpu_s for c in found) - median(c.cpu_s for c in bare),
            "n": len(found),
        }
        for name, found in costs.items()
    }


def known(folder: Path) -> Iterator[tuple[bytes, VerdictKind]]:
    """Patches of a task with the verdicts that they must get."""
    gold = (folder / "gold.patch").read_bytes()
    yield gold, VerdictKind.RESOLVED
    yield b"", VerdictKind.UNRESOLVED
    lines = gold.split(b"\n")
    first = next(i for i, line in enumerate(lines) if line.startswith(b"+") and not line.startswith(b"+++"))
    yield b"\n".join([*lines[:first], b"+)", *lines[first + 1 :]]), VerdictKind.UNRESOLVED
    start = next(i for i, line in enumerate(lines) if line.startswith(b"@@"))
    head = [line for line in lines[:start] if line.startswith((b"---", b"+++", b"diff "))]
    yield b"\n".join([*head, b"@@ -1 +1 @@", b"-no line of this file", b"+another", b""]), VerdictKind.UNRESOLVED


def in_parallel(
    folders: list[Path], provider: SandboxProvider, cache: Path, *, n_patches: int, jobs: int
) -> dict[str, Any]:
    """Grade many patches at a time; which verdicts were lost or wrong."""
    kinds = [list(known(folder)) for folder in folders]
    work = [(folders[i % len(folders)], *kinds[i % len(folders)][i // len(folders) % 4]) for i in range(n_patches)]

    def one(item: tuple[Path, bytes, VerdictKind]) -> tuple[str, str]:
        folder, patch, wanted = item
        try:
            verdict = grade(folder, patch, provider, cache)
        except (TaskgenError, OSError) as error:
            return "lost", f"{folder.name}: {error!r}"
        if verdict.kind is wanted:
            return "", ""
        state = "lost" if verdict.kind is VerdictKind.INFRA_ERROR else "wrong"
        return state, f"{folder.name}: {verdict.kind.value} instead of {wanted.value}: {verdict.reason}"

    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        ended = list(pool.map(one, work))
    seconds = time.monotonic() - began
    problems = [f"{state}: {detail}" for state, detail in ended if state]
    states = [state for state, _ in ended]
    return {
        "patches": len(work), "jobs": jobs, "lost": states.count("lost"), "wrong": states.count("wrong"),
        "seconds": seconds, "patches_per_minute": 60 * len(work) / seconds, "problems": problems,
    }  # fmt: skip


def show(name: str, found: dict[str, dict[str, float]]) -> None:
    """Print the table of a task."""
    headers = ("wall s", "CPU s", "wall over bare", "CPU over bare")
    table = Table(name, *(Column(header, justify="right") for header in headers))
    for step, row in found.items():
        keys = ("wall_s", "cpu_s", "over_bare_wall_s", "over_bare_cpu_s")
        table.add_row(step, *(f"{row[key]:.2f}" for key in keys))
    Console(width=120).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", type=Path, nargs="+", help="task folders, or task sets")
    parser.add_argument("--sandbox", choices=("auto", "bubblewrap", "docker"), default="auto")
    parser.add_argument("--rounds", type=int, default=20, help="of the table; 0: none (default: %(default)s)")
    parser.add_argument("--patches", type=int, default=100, help="in parallel; 0: none (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=100, help="patches at a time (default: %(default)s)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cache = cache_folder()
    provider = select(args.sandbox, cache)
    folders = [folder for path in args.tasks for folder in taskset.find_tasks(path)]
    report: dict[str, Any] = {"sandbox": provider.name, "load": [os.getloadavg()[0]], "tasks": {}}
    for folder in folders if args.rounds else ():
        found = report["tasks"][folder.name] = figures(rounds(folder, provider, cache, args.rounds))
        show(folder.name, found)
    if args.patches:
        report["parallel"] = in_parallel(folders, provider, cache, n_patches=args.patches, jobs=args.jobs)
        print(*report["parallel"]["problems"], sep="\n")
        print(", ".join(f"{key} {value:.5g}" for key, value in report["parallel"].items() if key != "problems"))
    report["load"].append(os.getloadavg()[0])
    print(f"{provider.name}, load {report['load'][0]:.1f} to {report['load'][1]:.1f}, {os.cpu_count()} processors")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    bad = report.get("parallel", {"lost": 0, "wrong": 0})
    return int(bad["lost"] + bad["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
