"""Advantages of the rollouts of one task: what each earned, less what the group earned on average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum


class Scaling(StrEnum):
    """What the difference to the group's mean is divided by."""

    NONE = "none"  # nothing (Dr. GRPO, arXiv 2503.20783): easy and hard groups keep their own weight
    STD = "std"  # the group's standard deviation (GRPO, arXiv 2402.03300)


def advantages(rewards: Sequence[float | None], scaling: Scaling = Scaling.NONE) -> list[float]:
    """Advantage of each rollout of a group.

    None is a reward that is not known (the run failed, or a monitor masked it): the rollout has no part in the mean and
    an advantage of 0, and the others go on as a smaller group.

    Raises ValueError for a reward that is not finite.
    """
    known = [reward for reward in rewards if reward is not None]
    if not all(map(math.isfinite, known)):
        raise ValueError(f"rewards must be finite: {list(rewards)}")
    if not known:
        return [0.0] * len(rewards)
    mean = math.fsum(known) / len(known)
    scale = 1.0
    if scaling is Scaling.STD:
        scale = math.sqrt(math.fsum((reward - mean) ** 2 for reward in known) / len(known)) or 1.0
    return [0.0 if reward is None else (reward - mean) / scale for reward in rewards]


def has_signal(rewards: Sequence[float | None]) -> bool:
    """Whether a group teaches anything: two known rewards that differ."""
    return len({reward for reward in rewards if reward is not None}) > 1
