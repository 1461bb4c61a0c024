"""``taskgen audit --attack``: hand in what a cheat would, on real tasks, and see that none of it is worth anything."""

from __future__ import annotations

import hashlib
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from taskgen import taskset
from taskgen.archive import ArchiveEntry
from taskgen.attacks.attack import Attack, Submission, Target
from taskgen.attacks.handin import final_tree
from taskgen.attacks.table import ATTACKS
from taskgen.grading.grade import DIFFERENTIAL, TWINS, grade_intake
from taskgen.grading.intake import Intake, from_tree
from taskgen.grading.task import Task, load
from taskgen.sandbox import Limits, SandboxProvider
from taskgen.types import Verdict, VerdictKind

NO_OP, GOLD = "no-op", "gold"
#: Attacks that hang or fill the memory should not cost minutes each.
TEST_TIMEOUT_S = 15.0
LIMITS = Limits(memory_bytes=1 << 30, processes=128)
OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of one attack on one task, or of a control (number 0).

    Attributes:
        reward: 1.0 if the verdict is resolved.
        seconds: what grading took; the same changes are graded once, and count with each attempt.
        stopped_by: intake, tests, twins, differential; '' for what earned the reward or could not be graded.
    """

    task: str
    number: int
    name: str
    group: str
    reward: float
    kind: str
    stopped_by: str
    reason: str
    seconds: float


@dataclass(kw_only=True)
class AttackReport:
    """All attempts. ``skipped``: attacks that could not be adapted to a task."""

    attempts: list[Attempt] = field(default_factory=list)
    skipped: list[tuple[str, int]] = field(default_factory=list)
    seconds: float = 0.0

    def broken(self) -> list[Attempt]:
        """What must not be: an attack or no-op with a reward, gold without one, and what could not be graded."""
        return [
            a for a in self.attempts
            if a.reward != float(a.name == GOLD) or a.kind == VerdictKind.INFRA_ERROR.value
        ]  # fmt: skip

    @property
    def n_tasks(self) -> int:
        """How many tasks were attacked."""
        return len({a.task for a in self.attempts})

    @property
    def n_attacks(self) -> int:
        """How many attacks could be adapted to some task."""
        return len({a.number for a in self.attempts if a.number})

    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "holds": not self.broken(),
            "tasks": self.n_tasks,
            "attacks": self.n_attacks,
            "seconds": round(self.seconds, 1),
            "skipped": [{"task": task, "number": number} for task, number in self.skipped],
            "attempts": [asdict(a) for a in self.attempts],
        }


def attack_tasks(
    target: str, provider: SandboxProvider, cache: Path, *, jobs: int, on_step: OnStep,
    attacks: Sequence[Attack] = ATTACKS,
) -> AttackReport:  # fmt: skip
    """Attack each task of a set (or one task) in all ways, and grade what comes of it. Gold and no-op are controls.

    Raises what ``grade`` raises.
    """
    began = time.monotonic()
    report = AttackReport()
    for folder in taskset.find_tasks(Path(target)):
        task = load(folder, test_timeout_s=TEST_TIMEOUT_S, limits=LIMITS)
        judge = _Judge(task, provider, cache)
        aim = target_of(task)
        done = _Counter(folder.name, len(attacks), on_step)
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            report.attempts += [judge.no_op(), judge.gold()]
            results = pool.map(lambda attack, j=judge, t=aim, d=done: d.count(j.attempt(attack, t)), attacks)
            for attack, attempt in zip(attacks, results, strict=True):
                if attempt is None:
                    report.skipped.append((folder.name, attack.number))
                else:
                    report.attempts.append(attempt)
    report.seconds = time.monotonic() - began
    return report


class _Counter:
    """Tells how far the attacks on a task have come."""

    def __init__(self, name: str, total: int, on_step: OnStep) -> None:
        self._name, self._total, self._on_step = name, total, on_step
        self._done = 0
        self._mutex = threading.Lock()

    def count(self, attempt: Attempt | None) -> Attempt | None:
        with self._mutex:
            self._done += 1
            if attempt is not None and attempt.reward:
                self._on_step(f"{self._name}: attack {attempt.number} {attempt.name} earns the reward")
            if self._done % 10 == 0 or self._done == self._total:
                self._on_step(f"{self._name}: {self._done} of {self._total} attacks")
        return attempt


def target_of(task: Task) -> Target:
    """What an attacker knows of a task: more than any agent does."""
    return Target(
        row=task.row, workspace=task.workspace, tests=task.tests,
        gold={path: entry.content for path, entry in task.gold.items() if entry is not None},
    )  # fmt: skip


@dataclass(frozen=True)
class _Judge:
    """Grades submissions of one task; the same accepted changes are graded once."""

    task: Task
    provider: SandboxProvider
    cache: Path
    _known: dict[str, Verdict] = field(default_factory=dict)
    _locks: dict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))

    def no_op(self) -> Attempt:
        """The control that must earn nothing."""
        return self._graded(0, NO_OP, "control", Intake(changes={}))

    def gold(self) -> Attempt:
        """The control that must earn the reward."""
        return self._graded(0, GOLD, "control", Intake(changes=self.task.gold))

    def attempt(self, attack: Attack, target: Target) -> Attempt | None:
        """One attack; None where it cannot be adapted to the task."""
        submission = attack.make(target)
        if submission is None:
            return None
        with _left_behind(self.task, submission, self.provider, self.cache) as tree:
            intake = from_tree(tree, self.task.rules)
        return self._graded(attack.number, attack.name, attack.group, intake)

    def _graded(self, number: int, name: str, group: str, intake: Intake) -> Attempt:
        key = _digest(intake.changes)
        with self._locks[key]:
            if key not in self._known:
                self._known[key] = grade_intake(self.task, lambda: intake, self.provider, self.cache, fail_fast=True)
        verdict = self._known[key]
        return Attempt(
            task=str(self.task.row["instance_id"]), number=number, name=name, group=group,
            reward=float(verdict.kind is VerdictKind.RESOLVED), kind=verdict.kind.value,
            stopped_by=_stopped_by(verdict, intake), reason=verdict.reason, seconds=verdict.seconds,
        )  # fmt: skip


def _digest(changes: Mapping[str, ArchiveEntry | None]) -> str:
    digest = hashlib.sha256()
    for path, entry in sorted(changes.items()):
        digest.update(f"{path}\0{entry is None}\0".encode("utf-8", "surrogateescape"))
        digest.update(hashlib.sha256(b"" if entry is None else entry.content).digest())
    return digest.hexdigest()


def _stopped_by(verdict: Verdict, intake: Intake) -> str:
    if verdict.kind in (VerdictKind.RESOLVED, VerdictKind.INFRA_ERROR):
        return ""
    if verdict.guards:
        return next(name for name in (DIFFERENTIAL, TWINS) if name in verdict.guards)
    # What is left of an attack once its files are refused is a wrong answer, which the tests find.
    return "intake" if intake.refused or not intake.changes else "tests"


@contextmanager
def _left_behind(task: Task, submission: Submission, provider: SandboxProvider, cache: Path) -> Iterator[Path]:
    """The tree that a grader receives: the agent's, after what it did at the end in a sandbox of its own."""
    with tempfile.TemporaryDirectory(prefix="taskgen-attack-") as folder:
        file = Path(folder) / "tree.tar"
        file.write_bytes(
            final_tree(task.workspace, submission, lambda: provider.create(snapshot=task.snapshot(provider, cache)))
        )
        yield file
