"""``taskgen calibrate``: how often a policy solves each task, with no more attempts than the answer needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from taskgen import taskset
from taskgen.agent_rollout import EpisodeCollector
from taskgen.attempts import Request
from taskgen.difficulty import Band, Design, Estimate, estimate, honest_z, next_look, pass_at_k
from taskgen.policies.controls import GoldPolicy
from taskgen.policies.conversation import AgentLimits, Converses
from taskgen.policies.policy import Policy, Sampling
from taskgen.rollout import Collector, cannot_attempt
from taskgen.rollout_file import RolloutFile, Tally
from taskgen.sandbox import SandboxProvider
from taskgen.stopper import Stopper
from taskgen.types import Rollout

#: Rounds with faults of one task in one run, after which no more attempts at it are made. A process that dies takes
#: all of a task's samples with it: that is one.
MAX_BAD_ROUNDS = 3
OnStep = Callable[[str], None]


class Attempt(StrEnum):
    """How tasks are attempted. FILL: in one turn, by writing the deleted body. AGENT: by turns of tool calls."""

    FILL = "fill"
    AGENT = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTurns:
    """A policy that attempts tasks by turns of tool calls, within limits."""

    policy: Converses
    limits: AgentLimits = field(default_factory=AgentLimits)


class Status(StrEnum):
    """What came of a task.

    MEASURED: there is a band. NOT_ATTEMPTED: this way of attempting cannot. NOT_RUN: faults of endpoint, sandbox or
    environment; says nothing about the task. BROKEN: nothing passes here, not even the gold patch.
    """

    MEASURED = "measured"
    NOT_ATTEMPTED = "not attempted"
    NOT_RUN = "not run"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What is known of one task. ``estimate``: None unless it was measured."""

    instance_id: str
    status: Status
    estimate: Estimate | None = None
    reason: str = ""
    tally: Tally = field(default_factory=Tally)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        found = self.estimate
        cost = {key: getattr(self.tally, key) for key in ("n_prompt_tokens", "n_tokens", "seconds", "grading_s")}
        record = {
            "instance_id": self.instance_id, "status": self.status.value, "reason": self.reason,
            "faults": len(self.tally.faults), **cost, "cost_usd": self.tally.cost_usd,
        }  # fmt: skip
        if found is None:
            return record
        pass_at = {k: pass_at_k(found.n, found.passes, k) for k in (1, 2, 4, 8) if k <= found.n}
        return record | asdict(found) | {"band": found.band.value, "pass_at": pass_at}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a run found. ``n_rollouts``: those made by this run; what was there before is not done again."""

    policy: str
    policy_version: str
    attempt: Attempt
    run: str
    design: Design
    tasks: tuple[Calibrated, ...]
    n_rollouts: int

    def of(self, status: Status) -> list[Calibrated]:
        """The tasks of a status."""
        return [task for task in self.tasks if task.status is status]

    def in_band(self, band: Band) -> int:
        """How many measured tasks lie there."""
        return sum(task.estimate is not None and task.estimate.band is band for task in self.tasks)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "policy": self.policy, "policy_version": self.policy_version, "attempt": self.attempt.value,
            "run": self.run, "design": asdict(self.design), "z": honest_z(self.design), "rollouts": self.n_rollouts,
            "bands": {band.value: self.in_band(band) for band in Band},
            "statuses": {status.value: len(self.of(status)) for status in Status},
            "tasks": [task.as_json() for task in self.tasks],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How tasks are calibrated.

    Attributes:
        seed: of all samples.
        stopper: that of the command which the attempts are part of, if they are not all of it.
    """

    design: Design
    sampling: Sampling
    provider: SandboxProvider
    cache: Path
    jobs: int
    seed: int = 0
    stopper: Stopper | None = None


def calibrate(
    tasks: Path, policy: Policy | ByTurns, file: RolloutFile, options: Options, on_step: OnStep
) -> Calibration:
    """Attempt each task until its band is clear, and write what was found into the task set.

    Rollouts in ``file`` that are of the same run count; so a run that was stopped goes on.

    Raises:
        FormatError: there is no task at ``tasks``.
        PolicyFault, PrerequisiteError, ConfigError: the policy cannot be asked.
        StoreError: rollouts or tasks cannot be written.
        Interrupted: what was recorded is kept.
    """
    work = Attempts(policy, file, options, on_step)
    folders = taskset.find_tasks(tasks)
    reasons = {folder: "" if isinstance(policy, ByTurns) else cannot_attempt(folder, policy) for folder in folders}
    try:
        work.attempt([folder for folder in folders if not reasons[folder]])
    finally:
        found = [work.result(folder, reasons[folder]) for folder in folders]
        _write(folders, found, work)
    return Calibration(
        policy=work.name, policy_version=work.version, attempt=work.attempt_by, run=work.collector.run,
        design=options.design, tasks=tuple(found), n_rollouts=work.n_rollouts,
    )  # fmt: skip


class Attempts:
    """The attempts of one run."""

    def __init__(self, policy: Policy | ByTurns, file: RolloutFile, options: Options, on_step: OnStep) -> None:
        asked = policy.policy if isinstance(policy, ByTurns) else policy
        self.name, self.version = asked.name, asked.version
        self.attempt_by = Attempt.AGENT if isinstance(policy, ByTurns) else Attempt.FILL
        self.collector = self._collector(policy, file, options)
        # Whether a task can be solved here at all is asked of its patch, however it is attempted.
        self._gold = self._collector(GoldPolicy(), file, options)
        self._file, self._design, self._on_step = file, options.design, on_step
        self._bad_rounds: Counter[Path] = Counter()
        self.n_rollouts = 0

    def _collector(self, policy: Policy | ByTurns, file: RolloutFile, options: Options) -> Collector | EpisodeCollector:
        shared: dict[str, Any] = {
            "seed": options.seed, "provider": options.provider, "cache": options.cache, "file": file,
            "jobs": options.jobs, "on_rollout": self._count,
        }  # fmt: skip
        if isinstance(policy, ByTurns):
            return EpisodeCollector(policy.policy, options.sampling, policy.limits, **shared)
        return Collector(policy, options.sampling, stopper=options.stopper, **shared)

    def _count(self, rollout: Rollout) -> None:
        self.n_rollouts += 1

    def attempt(self, folders: Sequence[Path]) -> None:
        """Rounds of attempts at all tasks whose band is open, and the gold patch where nothing passed."""
        while requests := [request for folder in folders for request in self._wanted(folder)]:
            n_open = len({request.folder for request in requests})
            self._on_step(f"{n_open} of {len(folders)} tasks are open: {len(requests)} attempts")
            self._collect(requests)
        doubtful = [folder for folder in folders if self._needs_gold(folder)]
        if doubtful:
            self._on_step(f"nothing passes on {len(doubtful)} tasks: grading their gold patches")
            self._gold.collect([Request(folder, 0) for folder in doubtful])

    def _collect(self, requests: Sequence[Request]) -> None:
        before = {request.folder: self._n_faults(request.folder) for request in requests}
        self.collector.collect(requests)
        self._bad_rounds.update(folder for folder, faults in before.items() if self._n_faults(folder) > faults)

    def _n_faults(self, folder: Path) -> int:
        return len(self._tally(self.collector, folder).faults)

    def _wanted(self, folder: Path) -> list[Request]:
        """The attempts that the next look at a task needs, less those that are there."""
        tally = self._tally(self.collector, folder)
        if self._bad_rounds[folder] >= MAX_BAD_ROUNDS:
            return []
        _, look = self._looked(tally)
        return [Request(folder, index) for index in range(look or 0) if index not in tally.rewards]

    def _looked(self, tally: Tally) -> tuple[int, int | None]:
        """How many attempts the design has used, and where its next look is: replayed in the attempts' order, so that
        it does not matter which were made in this run, or by one with other limits."""
        n = 0
        while (look := next_look(n, tally.passes(n), self._design)) is not None:
            if any(index not in tally.rewards for index in range(look)):
                break
            n = look
        return n, look

    def _needs_gold(self, folder: Path) -> bool:
        tally = self._tally(self.collector, folder)
        n, look = self._looked(tally)
        gold = self._tally(self._gold, folder)
        return look is None and tally.passes(n) == 0 and 0 not in gold.rewards

    def _tally(self, collector: Collector | EpisodeCollector, folder: Path) -> Tally:
        return self._file.tally(collector.run, folder.name)

    def result(self, folder: Path, cannot: str) -> Calibrated:
        """What is known of a task now."""
        if cannot:
            return Calibrated(instance_id=folder.name, status=Status.NOT_ATTEMPTED, reason=cannot)
        tally = self._tally(self.collector, folder)
        n, look = self._looked(tally)
        status, reason = Status.MEASURED, ""
        if look is not None:
            status, reason = Status.NOT_RUN, tally.faults[-1] if tally.faults else "the run was stopped"
        elif tally.passes(n) == 0:
            status, reason = self._with_gold(folder)
        found = estimate(n, tally.passes(n), self._design) if status is Status.MEASURED else None
        return Calibrated(instance_id=folder.name, status=status, estimate=found, reason=reason, tally=tally)

    def _with_gold(self, folder: Path) -> tuple[Status, str]:
        """A task without a pass is hard if its gold patch passes on this machine, and broken if it does not."""
        gold = self._tally(self._gold, folder)
        if 0 not in gold.rewards:
            return Status.NOT_RUN, gold.faults[-1] if gold.faults else "the run was stopped"
        if gold.rewards[0] > 0:
            return Status.MEASURED, ""
        return Status.BROKEN, "not even the gold patch passes here"


def difficulty_of(found: Estimate, name: str, version: str) -> dict[str, Any]:
    """The ``difficulty`` struct of a row, for the policy of this name and version."""
    return {
        "policy": name, "policy_version": version, "n": found.n, "passes": found.passes,
        "pass_at_1": found.pass_at_1, "interval": list(found.interval), "band": found.band.value,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _write(folders: Sequence[Path], found: Sequence[Calibrated], work: Attempts) -> None:
    # The chance of a pass is that of a policy and of a way to attempt: another way must not pass for the same.
    version = work.version if work.attempt_by is Attempt.FILL else f"{work.version} ({work.attempt_by})"
    taskset.write_difficulties(
        {
            folder: difficulty_of(task.estimate, work.name, version)
            for folder, task in zip(folders, found, strict=True)
            if task.estimate is not None
        }
    )
