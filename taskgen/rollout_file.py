"""A file of rollouts that grows: each is appended whole as it ends, so that a kill loses those in flight alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskgen.atomic import disk_faults, locked
from taskgen.trajectories import dump, read_lines, to_record
from taskgen.types import Rollout

#: Keys of ``Rollout.extra`` that this package writes.
RUN, INDEX, FAULT, PATCH_SHA256, VERDICT, REASON = "run", "index", "fault", "patch_sha256", "verdict", "reason"
#: What grading gave, where the rollout's reward is another (behaviour counted in, or taken away).
EARNED = "earned"
TOKENS, PROMPT_TOKENS, SECONDS, GRADING_SECONDS, COST = (
    "n_tokens", "n_prompt_tokens", "seconds", "grading_s", "cost_usd",
)  # fmt: skip
_LOCK_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Grade:
    """What grading said of a patch: the reward (1.0: resolved), the kind of verdict, and why."""

    reward: float
    kind: str
    reason: str


@dataclass(slots=True)
class Tally:
    """What is known of one task under one policy.

    Attributes:
        rewards: index of the attempt -> its reward.
        faults: attempts at getting one that failed for reasons which are not the policy's.
        cost_usd: None as soon as a rollout has no price.
    """

    rewards: dict[int, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    n_prompt_tokens: int = 0
    n_tokens: int = 0
    seconds: float = 0.0
    grading_s: float = 0.0
    cost_usd: float | None = 0.0

    def passes(self, n: int | None = None) -> int:
        """Rewards above 0, of the attempts with the ``n`` lowest numbers (all of them by default)."""
        kept = sorted(self.rewards)[:n]
        return sum(self.rewards[index] > 0 for index in kept)

    def add(self, rollout: Rollout) -> None:
        """Count a rollout in."""
        extra = rollout.extra
        if rollout.reward is None:
            self.faults.append(str(extra.get(FAULT, "no reward")))
        else:
            self.rewards[int(extra[INDEX])] = rollout.reward
        self.n_prompt_tokens += int(extra.get(PROMPT_TOKENS) or 0)
        self.n_tokens += int(extra.get(TOKENS) or 0)
        self.seconds += float(extra.get(SECONDS) or 0.0)
        self.grading_s += float(extra.get(GRADING_SECONDS) or 0.0)
        cost = extra.get(COST)
        self.cost_usd = None if cost is None or self.cost_usd is None else self.cost_usd + float(cost)


class RolloutFile:
    """Rollouts on disk and what they add up to. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: (run, instance_id) -> its tally. ``run`` names policy, version and sampling.
        self.tallies: dict[tuple[str, str], Tally] = {}
        #: (instance_id, digest of a patch) -> what grading said.
        self.grades: dict[tuple[str, str], Grade] = {}
        self._mutex = threading.Lock()
        if path.exists():
            _drop_torn_line(path)
            for line in read_lines(path):
                self._count(line.rollout)

    def tally(self, run: str, instance_id: str) -> Tally:
        """What is known of a task under a run; it goes on counting."""
        return self.tallies.setdefault((run, instance_id), Tally())

    def append(self, rollout: Rollout) -> None:
        """Write one rollout as one line, and count it. Raises StoreError on a full disk."""
        data = (dump(to_record(rollout)) + "\n").encode()
        with self._mutex, disk_faults(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                file.write(data)
            self._count(rollout)

    def _count(self, rollout: Rollout) -> None:
        extra: dict[str, Any] = dict(rollout.extra)
        if RUN not in extra or not isinstance(extra.get(INDEX), int):
            return  # recorded by something else
        self.tally(str(extra[RUN]), rollout.instance_id).add(rollout)
        earned = extra.get(EARNED, rollout.reward)
        if earned is not None and extra.get(PATCH_SHA256):
            grade = Grade(float(earned), str(extra.get(VERDICT, "")), str(extra.get(REASON, "")))
            self.grades[rollout.instance_id, str(extra[PATCH_SHA256])] = grade


@contextmanager
def open_rollouts(path: Path) -> Iterator[RolloutFile]:
    """The file's rollouts, for one process at a time.

    Raises:
        StoreError: another process writes to it.
        FormatError: a line of it is no rollout.
    """
    with locked(path, timeout_s=_LOCK_WAIT_S):
        yield RolloutFile(path)


def _drop_torn_line(path: Path) -> None:
    """A run that was killed while it wrote leaves half a line: it is not a rollout, and goes."""
    with path.open("rb+") as file:
        data = file.read()
        if data and not data.endswith(b"\n"):
            file.truncate(data.rfind(b"\n") + 1)
