"""What all ways of attempting share: which attempts are wanted, grading what came of them, and recording it."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from taskgen.errors import PolicyFault, TaskgenError
from taskgen.grading.grade import grade_intake
from taskgen.grading.intake import from_patch
from taskgen.grading.task import Task, load
from taskgen.policies.policy import Sampling
from taskgen.rollout_file import FAULT, GRADING_SECONDS, INDEX, PATCH_SHA256, REASON, RUN, VERDICT, Grade, RolloutFile
from taskgen.sandbox import SandboxProvider
from taskgen.types import Rollout, Turn, VerdictKind

#: Batches in a row without one answer, after which a policy counts as gone.
DEAD_BATCHES = 2
#: Workspaces that are kept in memory.
_KEPT_TASKS = 32
OnRollout = Callable[[Rollout], None]


class GradingFault(TaskgenError):
    """Grading could not be done: an infrastructure fault, which says nothing about the patch."""


@dataclass(frozen=True, slots=True)
class Request:
    """One attempt that is wanted: ``index`` counts the attempts at a task from 0."""

    folder: Path
    index: int


@lru_cache(maxsize=_KEPT_TASKS)
def loaded(folder: Path) -> Task:
    """A task; the last ones are kept. Raises FormatError."""
    return load(folder)


class Grader:
    """Grades patches; the same patch of a task is graded once, also by an earlier run into the same file."""

    def __init__(self, provider: SandboxProvider, cache: Path, known: dict[tuple[str, str], Grade]) -> None:
        self._provider, self._cache, self._known = provider, cache, known
        self._locks: dict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)

    def grade(self, folder: Path, patch: bytes) -> tuple[str, Grade, float]:
        """The patch's digest, its grade, and the seconds that this call spent on it.

        Raises GradingFault, or any TaskgenError of a sandbox or an environment that cannot be had.
        """
        digest = hashlib.sha256(patch).hexdigest()
        key = folder.name, digest
        with self._locks[key]:
            if key in self._known:
                return digest, self._known[key], 0.0
            task = loaded(folder)
            verdict = grade_intake(
                task, lambda: from_patch(patch, task.rules), self._provider, self._cache, fail_fast=True
            )
            if verdict.kind is VerdictKind.INFRA_ERROR:
                raise GradingFault(f"grading: {verdict.reason}")
            grade = Grade(float(verdict.kind is VerdictKind.RESOLVED), verdict.kind.value, verdict.reason)
            self._known[key] = grade
        return digest, grade, verdict.seconds


class Recorder:
    """Writes the rollouts of one run, each as it ends.

    Attributes:
        run: names policy, version, sampling, seed and the way of attempting; rollouts of one run are attempts of one
            thing.
    """

    def __init__(
        self, run: str, attempt: str, policy: str, sampling: Sampling, seed: int, file: RolloutFile,
        on_rollout: OnRollout,
    ) -> None:  # fmt: skip
        self.run, self.file = run, file
        self._attempt, self._policy, self._sampling, self._seed = attempt, policy, sampling, seed
        self._on_rollout = on_rollout

    def seed_of(self, request: Request) -> int:
        """The seed of one attempt: the same in each run, so that one that was lost is made again."""
        words = f"{self._seed}\0{request.folder.name}\0{request.index}".encode()
        return int.from_bytes(hashlib.sha256(words).digest()[:7], "big")

    def record(self, request: Request, turns: tuple[Turn, ...], reward: float | None, extra: Mapping[str, Any]) -> None:
        """Write one rollout. Raises StoreError."""
        faults = len(self.file.tally(self.run, request.folder.name).faults)
        mark = "" if reward is not None else f"-fault{faults}"
        rollout = Rollout(
            rollout_id=f"{request.folder.name}-{self.run}-{request.index}{mark}",
            instance_id=request.folder.name,
            policy=self._policy,
            turns=turns,
            reward=reward,
            repo=str(loaded(request.folder).row["repo"]),
            extra={
                RUN: self.run, INDEX: request.index, "attempt": self._attempt, "seed": self.seed_of(request),
                "sampling": asdict(self._sampling), **extra,
            },
        )  # fmt: skip
        self.file.append(rollout)
        self._on_rollout(rollout)


def graded(grade: Grade, digest: str, seconds: float) -> dict[str, Any]:
    """What a rollout records of its grade. ``digest``: of its patch; '' if there is none."""
    return {PATCH_SHA256: digest, VERDICT: grade.kind, REASON: grade.reason, GRADING_SECONDS: round(seconds, 3)}


def fault_of(error: TaskgenError) -> dict[str, Any]:
    """What a rollout without a reward records of the reason."""
    return {FAULT: f"{type(error).__name__}: {error.args[0]}"}


class Attendance:
    """Notices that a policy is gone: batch after batch without one answer."""

    def __init__(self) -> None:
        self._unanswered = 0

    def notice(self, answers: Sequence[object]) -> None:
        """Raises PolicyFault at the last of ``DEAD_BATCHES`` batches of faults alone."""
        faults = [answer for answer in answers if isinstance(answer, PolicyFault)]
        self._unanswered = self._unanswered + 1 if len(faults) == len(answers) else 0
        if self._unanswered >= DEAD_BATCHES:
            raise PolicyFault(
                f"{self._unanswered} batches in a row without an answer: {faults[-1].args[0]}",
                hint="the rollouts so far are kept; repair the policy and give the same command again",
            )
