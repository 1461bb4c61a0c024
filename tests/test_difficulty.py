"""The arithmetic of calibration: estimates, intervals, the sequential design and what it covers."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations, product
from math import comb, sqrt

import pytest

from benchmarks.calibration import fixed_error_of, orders, segments
from taskgen.difficulty import (
    GRID,
    LEVEL,
    Band,
    Design,
    band_of,
    coverage,
    decided,
    estimate,
    expected,
    honest_z,
    next_look,
    pass_at_k,
    stops,
    wilson,
)

DESIGNS = [Design(), Design(max_samples=9), Design(low=0.1, high=0.9, max_samples=20), Design(low=0, high=0.5)]


@pytest.mark.parametrize(("n", "passes", "k"), [(8, 3, 1), (8, 3, 4), (5, 0, 5), (5, 5, 2), (6, 2, 5)])
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(n: int, passes: int, k: int) -> None:
    outcomes = [True] * passes + [False] * (n - passes)
    subsets = [any(chosen) for chosen in combinations(outcomes, k)]
    assert pass_at_k(n, passes, k) == pytest.approx(sum(subsets) / len(subsets))


def test_pass_at_k_is_unbiased() -> None:
    chance, n, k = 0.3, 7, 3
    mean = sum(comb(n, c) * chance**c * (1 - chance) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert mean == pytest.approx(1 - (1 - chance) ** k)


@pytest.mark.parametrize(("n", "passes", "k"), [(4, 1, 5), (4, 5, 1), (4, -1, 1), (0, 0, 1), (4, 1, 0)])
def test_pass_at_k_of_impossible_numbers(n: int, passes: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(n, passes, k)


def test_wilson_ends_where_the_score_test_does() -> None:
    for n, passes in [(8, 2), (30, 17), (4, 4), (12, 0)]:
        low, high = wilson(n, passes, 1.645)
        for end in {low, high} - {0.0, 1.0}:
            assert abs(passes / n - end) == pytest.approx(1.645 * sqrt(end * (1 - end) / n))
    assert wilson(8, 2) == pytest.approx((0.09, 0.54), abs=0.01)
    assert wilson(0, 0) == (0.0, 1.0)


def test_bands() -> None:
    design = Design()
    assert [band_of(p, design) for p in (0.2, 0.25, 0.75, 0.8)] == [
        Band.TOO_HARD, Band.LEARNABLE, Band.LEARNABLE, Band.TOO_EASY,
    ]  # fmt: skip
    assert decided(4, 0, design) is None and decided(8, 0, design) is None
    assert decided(9, 0, design) is Band.TOO_HARD and decided(9, 9, design) is Band.TOO_EASY
    assert decided(10, 5, design) is Band.LEARNABLE


@pytest.mark.parametrize("design", DESIGNS)
def test_looks_move_on_and_end(design: Design) -> None:
    assert sum(paths * 0.3**c * 0.7 ** (n - c) for (n, c), paths in stops(design).items()) == pytest.approx(1)
    for n, passes in stops(design):
        assert n == design.max_samples or decided(n, passes, design) is not None
    assert next_look(0, 0, design) == design.first
    for n, passes in product(range(1, design.max_samples), repeat=2):
        look = next_look(n, passes, design) if passes <= n else None
        assert look is None or n < look <= design.max_samples


@pytest.mark.parametrize("design", DESIGNS)
def test_the_interval_covers_each_chance_as_it_says(design: Design) -> None:
    z = honest_z(design)
    assert min(coverage(design, p, z) for p in GRID) >= LEVEL
    assert z == pytest.approx(1.645, abs=0.001) or min(coverage(design, p, z - 0.01) for p in GRID) < LEVEL


def test_without_a_larger_z_the_interval_would_not(  # what makes the larger one necessary
) -> None:
    design = Design()
    assert min(coverage(design, p, 1.645) for p in GRID) < 0.75


def test_what_is_computed_is_what_happens() -> None:
    """20 000 simulated tasks: attempts and coverage within four standard errors of what is computed."""
    design, chance, n_tasks = Design(), 0.22, 20_000
    rng, z = random.Random(0), honest_z(design)
    used, covered = [], 0
    for _ in range(n_tasks):
        n = passes = 0
        while (look := next_look(n, passes, design)) is not None:
            passes += sum(rng.random() < chance for _ in range(look - n))
            n = look
        low, high = wilson(n, passes, z)
        used.append(n)
        covered += low <= chance <= high
    mean = expected(design, chance, lambda n, _: float(n))
    spread = sqrt(expected(design, chance, lambda n, _: (n - mean) ** 2))
    assert sum(used) / n_tasks == pytest.approx(mean, abs=4 * spread / sqrt(n_tasks))
    share = coverage(design, chance, z)
    assert covered / n_tasks == pytest.approx(share, abs=4 * sqrt(share * (1 - share) / n_tasks))


def test_an_estimate() -> None:
    found = estimate(9, 0, Design())
    assert (found.band, found.decided, found.pass_at_1) == (Band.TOO_HARD, True, 0.0)
    assert found.interval[0] == 0 and wilson(9, 0)[1] < found.interval[1] < 0.4
    at_the_limit = estimate(32, 8, Design())
    assert (at_the_limit.band, at_the_limit.decided) == (Band.LEARNABLE, False)


@pytest.mark.parametrize("bad", [{"low": 0.7, "high": 0.3}, {"low": -0.1}, {"high": 1.1}, {"first": 0}, {"first": 40}])
def test_designs_that_make_no_sense(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Design(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("passes", [0, 1, 5, 12])
def test_the_orders_of_recorded_attempts_are_those_that_can_be_counted(passes: int) -> None:
    """Every order of 12 attempts, one by one, against the shares that are computed."""
    design, total = Design(first=2, max_samples=6), 12
    counted: Counter[tuple[int, int]] = Counter()
    places = list(combinations(range(total), passes))
    for passing in places:
        n = c = 0
        while (look := next_look(n, c, design)) is not None:
            n, c = look, sum(place < look for place in passing)
        counted[n, c] += 1
    for (n, c), paths in stops(design).items():
        assert paths * orders(total, passes, n, c) == pytest.approx(counted[n, c] / len(places))


def test_segments_are_whole_runs_in_the_order_of_the_attempts() -> None:
    design = Design(max_samples=8)
    assert list(segments("1111" + "0101" + "0" * 8 + "1" * 7, design)) == [(8, 6), (8, 0)]
    assert list(segments("1" * 32, Design(max_samples=16))) == [(9, 9), (9, 9)]


def test_a_fixed_number_of_attempts_errs_in_as_many_orders_as_can_be_counted() -> None:
    design = Design()
    recorded = ["1000", "0110"]
    # Of one pass in four (learnable: 0.25), two attempts see 0 or 1: half of the orders say too hard. Of two in four,
    # they see none in 1 of 6 orders, and two (too easy) in 1 of 6.
    assert fixed_error_of(2, recorded, design) == pytest.approx((1 / 2 + 2 / 6) / 2)
    assert fixed_error_of(4, recorded, design) == 0
