"""Which tasks the policy gets next: those that it solves about half of the time, by what was seen of each lately.

The signal of a group grows with the variance of its reward, p (1 - p). A task is drawn with a weight of 4 p (1 - p), by
an estimate of p that forgets: each new group keeps a share of what was known before. A task that was never seen is
taken for one of p = 1/2, so that all are tried.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from taskgen.training.config import CurriculumSection


class Pool(StrEnum):
    """Where a task's pass rate lies; NEW: it was not attempted yet."""

    NEW = "new"
    HARD = "hard"
    NORMAL = "normal"
    EASY = "easy"


@dataclass(frozen=True, slots=True)
class Seen:
    """Attempts at a task and passes, the older ones counted as less than one."""

    n: float = 0.0
    passes: float = 0.0

    @property
    def rate(self) -> float:
        """The estimate of p, with one pass and one failure beforehand (Laplace's rule)."""
        return (self.passes + 1) / (self.n + 2)

    def after(self, n: int, passes: int, memory: float) -> Seen:
        """With another group."""
        return Seen(self.n * memory + n, self.passes * memory + passes)


def pool_of(seen: Seen, section: CurriculumSection) -> Pool:
    """The pool of a task."""
    if seen.n == 0:
        return Pool.NEW
    rate = seen.passes / seen.n
    if rate < section.hard:
        return Pool.HARD
    return Pool.EASY if rate > section.easy else Pool.NORMAL


def pools(tasks: Sequence[str], seen: Mapping[str, Seen], section: CurriculumSection) -> dict[str, int]:
    """How many tasks each pool has."""
    counted = Counter(pool_of(seen.get(task, Seen()), section) for task in tasks)
    return {pool.value: counted[pool] for pool in Pool}


def draw(
    tasks: Sequence[str], seen: Mapping[str, Seen], n: int, section: CurriculumSection, rng: random.Random
) -> list[str]:
    """``n`` different tasks (fewer if there are not so many), by weight.

    Without replacement: the n largest of u^(1/w), u uniform (Efraimidis and Spirakis, 2006).
    """

    def key(task: str) -> float:
        rate = seen.get(task, Seen()).rate
        return math.pow(rng.random(), 1.0 / max(section.floor, 4 * rate * (1 - rate)))

    keys = {task: key(task) for task in sorted(tasks)}
    return sorted(keys, key=lambda task: keys[task], reverse=True)[:n]
