"""How hard a task is for a policy: attempts until the answer is clear, an interval that is honest about that, a band.

*Deciding.* After some attempts, Wilson's interval (E. B. Wilson, JASA 22, 1927) at 90 % for the chance of a pass says
whether the task lies below the band, in it or above it. Where it says neither, more attempts are made, up to a limit;
then the share of passes says it.

*Reporting.* An interval that is looked at until it decides covers the truth less often than it says. The interval that
is reported is therefore Wilson's with a larger z: the least with which the whole procedure, stopping included, covers
each chance of a grid with at least 90 %. That is computed, not simulated: the outcomes on which the procedure stops are
few, and the chance of each is (paths to it) * p**passes * (1 - p)**failures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from statistics import NormalDist

LEVEL = 0.9
#: The two-sided quantile of the level: 1.645.
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
FIRST, MAX_SAMPLES, LEAST_MORE = 4, 32, 2
#: Chances on which coverage is demanded.
GRID = tuple(i / 200 for i in range(1, 200))
_Z_STEP = 0.01


class Band(StrEnum):
    """Where a task lies for a policy."""

    TOO_HARD = "too-hard"
    LEARNABLE = "learnable"
    TOO_EASY = "too-easy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A sequential procedure.

    Attributes:
        low, high: the band of chances of a pass in which a policy learns.
        first: attempts before the first look.
        max_samples: attempts after which there is no further look.
    """

    low: float = 0.25
    high: float = 0.75
    first: int = FIRST
    max_samples: int = MAX_SAMPLES

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(f"a band is LOW:HIGH with 0 <= LOW < HIGH <= 1, not {self.low}:{self.high}")
        if not 1 <= self.first <= self.max_samples:
            raise ValueError(f"{self.first} attempts at first, of {self.max_samples} at most")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What attempts say of a task. ``decided``: the interval at the look said it, not the limit."""

    n: int
    passes: int
    pass_at_1: float
    interval: tuple[float, float]
    band: Band
    decided: bool


def pass_at_k(n: int, passes: int, k: int) -> float:
    """The chance that one of k attempts passes, 1 - C(n-c, k) / C(n, k): unbiased where n was fixed beforehand
    (Chen et al., arXiv 2107.03374). Raises ValueError for k above n."""
    if not 0 <= passes <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {passes} passes in {n} attempts")
    return 1.0 - math.comb(n - passes, k) / math.comb(n, k)


def wilson(n: int, passes: int, z: float = Z) -> tuple[float, float]:
    """Wilson's score interval for the chance of a pass; (0, 1) without attempts."""
    if n == 0:
        return 0.0, 1.0
    share, extra = passes / n, z * z / n
    middle = (share + extra / 2) / (1 + extra)
    half = z / (1 + extra) * math.sqrt(share * (1 - share) / n + extra / (4 * n))
    # At the ends the two parts are equal but for rounding.
    return (0.0 if passes == 0 else middle - half), (1.0 if passes == n else middle + half)


def decided(n: int, passes: int, design: Design) -> Band | None:
    """The band that the interval lies in, or None: it lies in more than one."""
    low, high = wilson(n, passes)
    if high < design.low:
        return Band.TOO_HARD
    if low > design.high:
        return Band.TOO_EASY
    return Band.LEARNABLE if low >= design.low and high <= design.high else None


def band_of(share: float, design: Design) -> Band:
    """The band of a chance; its ends belong to it."""
    if share < design.low:
        return Band.TOO_HARD
    return Band.TOO_EASY if share > design.high else Band.LEARNABLE


@cache
def next_look(n: int, passes: int, design: Design) -> int | None:
    """How many attempts there must be in all before the next look, or None: no more are needed.

    The fewest with which some outcome would decide, but at least ``LEAST_MORE`` more, and at most the limit.
    """
    if n < design.first:
        return design.first
    if n >= design.max_samples or decided(n, passes, design) is not None:
        return None
    for total in range(n + LEAST_MORE, design.max_samples):
        if any(decided(total, passes + more, design) is not None for more in range(total - n + 1)):
            return total
    return design.max_samples


def estimate(n: int, passes: int, design: Design) -> Estimate:
    """What ``n`` attempts, made as the design says, tell of a task. Raises ValueError without attempts."""
    share = pass_at_k(n, passes, 1)
    band = decided(n, passes, design)
    return Estimate(
        n=n, passes=passes, pass_at_1=share, interval=wilson(n, passes, honest_z(design)),
        band=band or band_of(share, design), decided=band is not None,
    )  # fmt: skip


# --- What the design does, computed --------------------------------------------------------------------


@cache
def stops(design: Design) -> dict[tuple[int, int], int]:
    """(n, passes) on which the design stops -> in how many orders of passes and failures it gets there."""
    found: dict[tuple[int, int], int] = {}
    open_: dict[tuple[int, int], int] = {(0, 0): 1}
    while open_:
        n, passes = min(open_)  # nothing leads back to fewer attempts
        paths = open_.pop((n, passes))
        total = next_look(n, passes, design)
        if total is None:
            found[n, passes] = found.get((n, passes), 0) + paths
            continue
        for more in range(total - n + 1):
            state = total, passes + more
            open_[state] = open_.get(state, 0) + paths * math.comb(total - n, more)
    return found


def expected(design: Design, chance: float, value: Callable[[int, int], float]) -> float:
    """The mean of ``value(n, passes)`` over the outcomes of the design at a chance of a pass."""
    return sum(
        paths * chance**passes * (1 - chance) ** (n - passes) * value(n, passes)
        for (n, passes), paths in stops(design).items()
    )


def coverage(design: Design, chance: float, z: float) -> float:
    """How often Wilson's interval with ``z``, at the end of the design, holds the chance."""

    def holds(n: int, passes: int) -> float:
        low, high = wilson(n, passes, z)
        return float(low <= chance <= high)

    return expected(design, chance, holds)


@cache
def honest_z(design: Design) -> float:
    """The least z (in steps of 0.01) from that of the level on with which each chance of ``GRID`` is covered at it."""
    return next(z for z in _rising() if all(coverage(design, chance, z) >= LEVEL for chance in GRID))


def _rising() -> Iterator[float]:
    step = 0
    while True:
        yield Z + step * _Z_STEP
        step += 1
