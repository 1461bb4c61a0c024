"""The tables of docs/calibrate.md: what a sequential calibration saves, and what its intervals cover.

python benchmarks/calibration.py    # simulated and computed; half a minute
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Column, Table

from taskgen.difficulty import GRID, Design, Z, band_of, coverage, estimate, expected, honest_z, next_look, pass_at_k

SEED, N_TASKS = 0, 20_000
#: Of these tasks the errors of a fixed n are computed exactly.
N_FIXED = 2000
#: Shares of 39 real tasks, of one small model at 8 attempts each: never solved, solved now and then, always.
NEVER, SOMETIMES, ALWAYS = 17, 21, 1
Chances = Callable[[random.Random], float]


def uniform(rng: random.Random) -> float:
    """Any chance is as likely as any other: more tasks near the band's ends than most sets have."""
    return rng.random()


def small_model(rng: random.Random) -> float:
    """Many tasks that are never solved, some at any chance, few that always are."""
    kind = rng.choices(("never", "sometimes", "always"), (NEVER, SOMETIMES, ALWAYS))[0]
    return {"never": 0.0, "sometimes": rng.random(), "always": 1.0}[kind]


def clear(rng: random.Random) -> float:
    """Chances that are at least 0.1 away from an end of the band."""
    low, high = rng.choice([(0.0, 0.15), (0.35, 0.65), (0.85, 1.0)])
    return rng.uniform(low, high)


POPULATIONS: dict[str, Chances] = {"uniform": uniform, "small model": small_model, "away from the ends": clear}


def table(title: str, *columns: str) -> Table:
    return Table(columns[0], *(Column(c, justify="right") for c in columns[1:]), title=title)


def binomial(n: int, chance: float) -> list[float]:
    return [math.comb(n, c) * chance**c * (1 - chance) ** (n - c) for c in range(n + 1)]


def fixed_error(n: int, chances: Sequence[float], design: Design) -> float:
    """Share of tasks that ``n`` attempts each put into a wrong band (computed over the outcomes)."""
    bands = [band_of(c / n, design) for c in range(n + 1)]
    total = 0.0
    for chance in chances:
        right = band_of(chance, design)
        total += sum(p for p, band in zip(binomial(n, chance), bands, strict=True) if band is not right)
    return total / len(chances)


def sequential(chance: float, design: Design, rng: random.Random) -> tuple[int, int]:
    """One task: attempts and passes."""
    n = passes = 0
    while (look := next_look(n, passes, design)) is not None:
        passes += sum(rng.random() < chance for _ in range(look - n))
        n = look
    return n, passes


def savings() -> Table:
    shown = table(
        f"Rollouts a task, {N_TASKS} simulated tasks", "tasks", "max samples", "sequential", "wrong band",
        "fixed n with that error", "saved", "covered",
    )  # fmt: skip
    for name, draw in POPULATIONS.items():
        for most in (16, 32, 64):
            design, rng = Design(max_samples=most), random.Random(SEED)
            chances = [draw(rng) for _ in range(N_TASKS)]
            used = wrong = covered = 0
            for chance in chances:
                n, passes = sequential(chance, design, rng)
                found = estimate(n, passes, design)
                used += n
                wrong += found.band is not band_of(chance, design)
                covered += found.interval[0] <= chance <= found.interval[1]
            error = wrong / N_TASKS
            sample = chances[:N_FIXED]
            needed = next((n for n in range(1, most + 1) if fixed_error(n, sample, design) <= error), most)
            mean = used / N_TASKS
            shown.add_row(
                name, str(most), f"{mean:.1f}", f"{error:.1%}", str(needed), f"{1 - mean / needed:.0%}",
                f"{covered / N_TASKS:.1%}",
            )  # fmt: skip
    return shown


def coverages() -> Table:
    shown = table(
        "Coverage of the 90 % interval over chances of 0.005 to 0.995 (computed)", "max samples", "z", "least",
        "mean", "least with z = 1.645", "mean with z = 1.645",
    )  # fmt: skip
    for most in (8, 16, 32, 64):
        design = Design(max_samples=most)
        z = honest_z(design)
        cells = []
        for used in (z, Z):
            covered = [coverage(design, p, used) for p in GRID]
            cells += [f"{min(covered):.1%}", f"{sum(covered) / len(covered):.1%}"]
        shown.add_row(str(most), f"{z:.3f}", *cells)
    return shown


def attempts() -> Table:
    shown = table(
        "Attempts by the chance of a pass, and the mean of pass@1 less that chance (computed)", "chance",
        *(f"{what}, at most {most}" for most in (16, 32) for what in ("attempts", "bias")),
    )  # fmt: skip
    for chance in (0.0, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5):
        cells = []
        for most in (16, 32):
            design = Design(max_samples=most)
            cells.append(f"{expected(design, chance, lambda n, _: float(n)):.1f}")
            cells.append(f"{expected(design, chance, lambda n, c: pass_at_k(n, c, 1)) - chance:+.3f}")
        shown.add_row(f"{chance:g}", *cells)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    console = Console(width=132)
    for shown in (savings(), coverages(), attempts()):
        console.print(shown)


if __name__ == "__main__":
    main()
