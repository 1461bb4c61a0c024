"""Tasks in a band for a policy: each sound candidate is attempted, and what comes of that steers what is tried next.

A task that is being attempted stands in a folder of the run's state; it moves into the task set once it is known to
lie in the band. What was found of a task is recorded at once and never asked again; a fault of the policy or of a
sandbox leaves nothing behind, and the same command asks again.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from taskgen import candidates, steering, taskset
from taskgen.atomic import disk_faults
from taskgen.commands.calibrate import Attempts, Calibrated, Options, Status, difficulty_of
from taskgen.commands.summary import Progress, RepoSummary
from taskgen.difficulty import Band, Design
from taskgen.errors import PolicyFault
from taskgen.policies.policy import Form, Policy, Prompt, Sampled, Sampling, Scores
from taskgen.rollout import cannot_attempt, run_key
from taskgen.rollout_file import RolloutFile
from taskgen.steering import Measured
from taskgen.store import STATE_FOLDER, RunState
from taskgen.types import Candidate, Recipe

ROLLOUTS = "rollouts.jsonl"
#: Most attempts at a task.
MAX_SAMPLES = 16
#: Candidates between two looks at what was measured. Fixed: what is tried must not depend on the number of cores.
ROUND = 4
ATTEMPTS, STAGE = "attempts", "band"
_REASONS = {Band.TOO_HARD: "too hard for the policy", Band.TOO_EASY: "too easy for the policy"}


Sound = Callable[[Sequence[Candidate]], list[Candidate]]
OnStage = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """For which policy tasks are made, and in which band of its chances of a pass."""

    policy: Policy
    sampling: Sampling
    design: Design

    def digest(self, seed: int) -> dict[str, Any]:
        """What a task set depends on, as JSON."""
        return {
            "policy": self.policy.name,
            "policy_version": self.policy.version,
            "run": run_key(self.policy, self.sampling, seed),
            **asdict(self.design),
        }

    @property
    def reads_statement(self) -> bool:
        """Whether hints reach it: a policy that goes on with a file's text does not see them."""
        return self.policy.form is not Form.CONTINUATION

    def recipes(self, recipes: Sequence[Recipe]) -> tuple[Recipe, ...]:
        """The recipes as the steps of a build know them."""
        return tuple(map(steering.widened, recipes))


class OneAtATime:
    """A policy that several repositories' threads may ask."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._mutex = policy, threading.Lock()
        self.name, self.version, self.form, self.batch = policy.name, policy.version, policy.form, policy.batch

    def complete(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Sampled]]:
        """As the policy's own."""
        with self._mutex:
            return self._policy.complete(prompts, seeds, sampling)

    def close(self) -> None:
        """It belongs to whoever made it."""


class ScoresOneAtATime(OneAtATime):
    """The same for one that tells how likely a text is."""

    def __init__(self, policy: Policy, scores: Scores) -> None:
        super().__init__(policy)
        self._scores = scores

    def log_likelihoods(
        self, prompts: Sequence[Prompt], bodies: Sequence[str], sampling: Sampling
    ) -> list[float] | PolicyFault:
        """As the policy's own."""
        with self._mutex:
            return self._scores.log_likelihoods(prompts, bodies, sampling)


def one_at_a_time(policy: Policy) -> Policy:
    """A policy that several repositories' threads may ask, scores too if it gives any."""
    return ScoresOneAtATime(policy, policy) if isinstance(policy, Scores) else OneAtATime(policy)


def staging(out: Path) -> Path:
    """Where tasks stand that have not been attempted to the end."""
    return out / STATE_FOLDER / "attempted"


@dataclass(frozen=True, slots=True)
class Settled:
    """What came of a task. ``record``: as it is kept in the run's state; None: faults, nothing is known."""

    candidate: Candidate
    record: dict[str, Any] | None
    fault: str = ""

    @property
    def in_band(self) -> bool:
        return self.record is not None and bool(self.record["in_band"])


class Steered:
    """The candidates of one repository, tried in the order that a policy's results suggest.

    Attributes:
        measured: what was measured, in order.
    """

    def __init__(
        self, target: Target, pool: Sequence[Candidate], *, out: Path, state: RunState, file: RolloutFile,
        options: Options, surprises: Mapping[str, float],
    ) -> None:  # fmt: skip
        self._target, self._pool, self._out, self._state = target, pool, out, state
        self._surprises = surprises
        self._attempts = Attempts(target.policy, file, options, lambda text: None)
        self._unsound: set[steering.What] = set()
        self.measured: list[Measured] = []

    def run(self, wanted: int, sound: Sound, summary: RepoSummary, progress: Progress, on_stage: OnStage) -> None:
        """Try candidates in rounds until ``wanted`` tasks are in the band, or no other is likely to be.

        Args:
            sound: those of a batch that make fair tasks; they stand in ``staging`` then.

        Raises as ``settle``.
        """
        tried: set[str] = set()
        accepted: list[Candidate] = []
        while batch := self._next_batch(accepted, tried, wanted - len(accepted)):
            on_stage("validation")
            progress.stage(summary.name, described(batch))
            kept, planned = sound(batch), len(tried) + len(batch)
            self._unsound |= {steering.what_goes(c) for c in batch if c not in kept}
            on_stage(ATTEMPTS)
            settled = {s.candidate.instance_id: s for s in self.settle(kept)}
            for candidate in batch:
                found = settled.get(candidate.instance_id)
                tried.add(candidate.instance_id)
                summary.tried = len(tried)
                if found is not None and found.in_band:
                    accepted.append(candidate)
                    summary.accept(candidate.recipe)
                elif found is not None and found.record is not None:
                    summary.reject(STAGE, found.record["reason"])
                progress.candidate(summary.name, found is not None and found.in_band, len(tried), planned)
            summary.attempted += [s.record for s in settled.values() if s.record is not None]
            summary.not_run |= {s.candidate.instance_id: s.fault for s in settled.values() if s.record is None}
        if (missing := wanted - len(accepted)) > 0:
            why = "what is left overlaps with the others, is not fair, or is not likely to be in the band"
            summary.notes += (f"{missing} of {wanted} tasks in the band are missing: {why}",)

    def _next_batch(self, accepted: Sequence[Candidate], tried: set[str], missing: int) -> list[Candidate]:
        """The candidates to try next; none if enough are there, or if no other is likely to lie in the band."""
        # What makes no fair task makes none with another docstring or statement.
        left = [c for c in self._pool if c.instance_id not in tried and steering.what_goes(c) not in self._unsound]
        attempted = {steering.what_goes(c) for c in self._pool if c.instance_id in tried}
        order = steering.ranked(left, steering.learn(self.measured), self._target.design, attempted, self._surprises)
        return candidates.disjoint(order, accepted, min(ROUND, missing))

    def settle(self, sound: Sequence[Candidate]) -> list[Settled]:
        """Attempt tasks until it is known where they lie, and put those in the band into the task set.

        Raises:
            PolicyFault, PrerequisiteError, ConfigError: the policy cannot be asked.
            StoreError: rollouts or tasks cannot be written.
            Interrupted: the run was stopped; what was recorded is kept.
        """
        open_ = {c.instance_id: self._folder(c.instance_id) for c in sound if self._known(c) is None}
        reasons = {name: cannot_attempt(folder, self._target.policy) for name, folder in open_.items()}
        self._attempts.attempt([folder for name, folder in open_.items() if not reasons[name]])
        settled = []
        for candidate in sound:
            record, fault = self._known(candidate), ""
            if record is None:
                name = candidate.instance_id
                record, fault = self._record(candidate, self._attempts.result(open_[name], reasons[name]))
            if record is not None:
                self._place(record)
                if record["n"]:
                    demand = steering.demand_of(candidate, self._surprises)
                    self.measured.append(Measured(demand=demand, n=record["n"], passes=record["passes"]))
            settled.append(Settled(candidate, record, fault))
        return settled

    def _known(self, candidate: Candidate) -> dict[str, Any] | None:
        record = self._state.get(STAGE, candidate.instance_id)
        return None if record is None else dict(record)

    def _folder(self, name: str) -> Path:
        return staging(self._out) / "tasks" / name

    def _record(self, candidate: Candidate, found: Calibrated) -> tuple[dict[str, Any] | None, str]:
        """Keep what was found; or why nothing was."""
        name, estimate = candidate.instance_id, found.estimate
        if found.status is Status.NOT_RUN:
            return None, found.reason
        in_band = estimate is not None and estimate.band is Band.LEARNABLE
        record: dict[str, Any] = {
            "candidate": name, "stage": STAGE, "in_band": in_band, "reason": "", "detail": found.reason,
            "setting": asdict(steering.setting_of(candidate)), "recipe": candidate.recipe, "n": 0, "passes": 0,
            "difficulty": None,
        }  # fmt: skip
        if estimate is None:
            broken = found.status is Status.BROKEN
            record["reason"] = "its gold patch does not pass" if broken else "the policy cannot attempt it"
        else:
            design = self._target.design
            record |= {"n": estimate.n, "passes": estimate.passes, "reason": _REASONS.get(estimate.band, "")}
            record["detail"] = f"{estimate.passes} of {estimate.n} passed; band {design.low:g} to {design.high:g}"
            asked = self._target.policy
            record["difficulty"] = difficulty_of(estimate, asked.name, asked.version)
        self._state.put(STAGE, name, record)
        return record, ""

    def _place(self, record: Mapping[str, Any]) -> None:
        """Move a task that is in the band into the task set, and remove one that is not. It is recorded before: a
        folder in the set is always one that is known to belong there."""
        staged = self._folder(record["candidate"])
        final = self._out / "tasks" / staged.name
        if not record["in_band"]:
            shutil.rmtree(staged, ignore_errors=True)
        elif staged.exists():
            taskset.write_difficulties({staged: record["difficulty"]})
            with disk_faults(self._out):
                final.parent.mkdir(exist_ok=True)
                shutil.rmtree(final, ignore_errors=True)
                staged.rename(final)


def pool_of(target: Target, propose: Callable[[Sequence[Recipe]], list[Candidate]], recipes: Sequence[Recipe]) -> tuple[
    list[Candidate], str
]:  # fmt: skip
    """The candidates in all settings of the knobs that the policy can attempt, and how many others there are."""
    found = propose(list(steering.settings_of(recipes, hints=target.reads_statement)))
    if target.policy.form is Form.PATCH:
        return found, ""
    fit = [candidate for candidate in found if steering.is_one_body(candidate.deletion)]
    left_out = len(found) - len(fit)
    note = f"{left_out} of {len(found)} candidates delete more than one body: {target.policy.name} cannot attempt them"
    return fit, note if left_out else ""


def described(batch: Sequence[Candidate]) -> str:
    """The settings of a batch in a few words, for people."""
    settings = [steering.setting_of(candidate) for candidate in batch]
    return (
        f"trying {len(batch)} candidates of {_span([s.lines for s in settings])} lines"
        f" in {_span([s.definitions for s in settings])} definitions,"
        f" docstrings {_share([s.keep_docstring for s in settings])}, hints {_share([s.hints for s in settings])}"
    )


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _share(values: Sequence[bool]) -> str:
    return f"on {sum(values)} of {len(values)}"
