"""What a run needs beside the trainer's tensors to go on as if it had never stopped: kept in each checkpoint.

Samples' seeds and the choice of tasks are functions of the run's seed and of the numbers here, so there is no state of
a random generator. Rollouts that wait for their grades are here whole: they are graded again, not sampled again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from taskgen.errors import FormatError
from taskgen.training.curriculum import Seen
from taskgen.training.groups import Graded, Group


@dataclass(slots=True, kw_only=True)
class RunState:
    """Between two batches of groups.

    Attributes:
        batch: number of the next batch that is sampled.
        seconds: wall time of the run so far.
        pending: groups that are being graded.
        ready: graded groups with signal, which no step has learnt from yet.
        taught: graded groups without signal but with hints, likewise.
        seen: instance_id -> what was seen of the task.
        signal: share of groups that had signal lately.
        barren: batches in a row without any signal.
        counted: what the next step's record tells of batches since the last one.
        rollout_bytes: size of the file of rollouts: what is behind it belongs to work that is done again.
        ordered: instance_id -> folder of the tasks that were ordered from build and have joined.
        n_orders: recipes that were ordered.
        evaluated: steps whose evaluation is recorded.
    """

    batch: int = 0
    seconds: float = 0.0
    pending: list[Group] = field(default_factory=list)
    ready: list[Graded] = field(default_factory=list)
    taught: list[Graded] = field(default_factory=list)
    seen: dict[str, Seen] = field(default_factory=dict)
    signal: float = 1.0
    barren: int = 0
    counted: Counted = field(default_factory=lambda: Counted())
    rollout_bytes: int = 0
    ordered: dict[str, Path] = field(default_factory=dict)
    n_orders: int = 0
    evaluated: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Counted:
    """Of the rollouts since the last step. ``hints``: rule -> rollouts that got its hint."""

    n_groups: int = 0
    n_without_signal: int = 0
    n_stale: int = 0
    n_rollouts: int = 0
    n_known: int = 0
    n_passed: int = 0
    n_rewarded: int = 0
    reward_sum: float = 0.0
    n_masked: int = 0
    n_faults: int = 0
    n_tokens: int = 0
    longest: int = 0
    hints: dict[str, int] = field(default_factory=dict)

    def add(self, graded: Graded) -> None:
        """Count a group in."""
        known, passed = graded.known
        lengths = [len(sample.token_ids or ()) for sample in graded.group.samples]
        rewards = [outcome.reward for outcome in graded.outcomes if outcome.reward is not None]
        self.n_groups += 1
        self.n_without_signal += not graded.has_signal
        self.n_rollouts += len(graded.outcomes)
        self.n_known += known
        self.n_passed += passed
        self.n_rewarded += len(rewards)
        self.reward_sum += sum(rewards)
        self.n_masked += sum(outcome.masked for outcome in graded.outcomes)
        self.n_faults += sum(bool(outcome.fault) for outcome in graded.outcomes)
        self.n_tokens += sum(lengths)
        self.longest = max([self.longest, *lengths])
        for outcome in graded.outcomes:
            if outcome.rule:
                self.hints[outcome.rule] = self.hints.get(outcome.rule, 0) + 1


_STATE: TypeAdapter[RunState] = TypeAdapter(RunState)


def dump(state: RunState) -> str:
    """As JSON."""
    return _STATE.dump_json(state).decode()


def restore(text: str) -> RunState:
    """Raises FormatError: a checkpoint of another version of taskgen, or a damaged one."""
    try:
        return _STATE.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise FormatError(
            f"the checkpoint's progress cannot be read: {key}: {first['msg']}",
            hint="begin again with another --out, or go on with the version of taskgen that wrote it",
        ) from error
