"""The tables of docs/calibrate.md: what a sequential calibration saves, and what its intervals cover.

python benchmarks/calibration.py    # simulated, computed, and replayed from recorded attempts; half a minute
python benchmarks/calibration.py --record TASKS --policy FILE.yaml    # record attempts anew; hours on one core

``--record`` makes ATTEMPTS attempts at each task whose body has at most MAX_LINES lines, however they go, and keeps
their rewards. They are appended to ``rollouts.jsonl`` beside ``tasks/``: a run that was stopped goes on, and
``taskgen calibrate`` takes them from there.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from taskgen import fill, taskset
from taskgen.attempts import Request, loaded
from taskgen.cli import cache_folder
from taskgen.difficulty import (
    GRID,
    Band,
    Design,
    Z,
    band_of,
    coverage,
    estimate,
    expected,
    honest_z,
    next_look,
    pass_at_k,
    stops,
)
from taskgen.rollout import Collector, cannot_attempt, policy_named
from taskgen.rollout_file import Tally, open_rollouts
from taskgen.sandboxes.select import select

SEED, N_TASKS = 0, 20_000
#: Of these tasks the errors of a fixed n are computed exactly.
N_FIXED = 2000
#: Shares of 39 real tasks, of one small model at 8 attempts each: never solved, solved now and then, always.
NEVER, SOMETIMES, ALWAYS = 17, 21, 1
#: Rewards of a real policy at real tasks, in the order of the attempts.
RECORDED = Path(__file__).parent / "results" / "calibration_rewards.json"
ATTEMPTS, STEP, MAX_LINES = 64, 16, 3
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


# --- Recorded attempts ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """``rewards``: instance_id -> one digit an attempt, 1 for a pass, in their order."""

    policy: str
    sampling: dict[str, float]
    seed: int
    rewards: dict[str, str]


def record(tasks: Path, policy: str, attempts: int, max_lines: int) -> None:
    """Make a fixed number of attempts at each small task, and write their rewards."""
    provider = select("auto", cache_folder())
    chosen = policy_named(policy, cache_folder())
    folders = [
        folder
        for folder in taskset.find_tasks(tasks)
        if not cannot_attempt(folder, chosen.policy) and fill.gold_body(loaded(folder)).count("\n") <= max_lines
    ]
    with open_rollouts(tasks / "rollouts.jsonl") as file:
        try:
            collector = Collector(
                chosen.policy, chosen.sampling, seed=SEED, provider=provider, cache=cache_folder(), file=file, jobs=1,
                on_rollout=lambda rollout: None,
            )  # fmt: skip
            # Of all tasks a few at first: a run that is stopped has told something of each.
            for upto in (*range(STEP, attempts, STEP), attempts):
                tallies = {folder: file.tally(collector.run, folder.name) for folder in folders}
                collector.collect([Request(f, i) for f in folders for i in range(upto) if i not in tallies[f].rewards])
                passes = ", ".join(str(tally.passes(upto)) for tally in tallies.values())
                print(f"passes in {upto} attempts at {len(folders)} tasks: {passes}", flush=True)
                _write_recording(tallies, collector, upto)
        finally:
            chosen.policy.close()


def _write_recording(tallies: dict[Path, Tally], collector: Collector, attempts: int) -> None:
    rewards = {}
    for folder, tally in tallies.items():
        if all(index in tally.rewards for index in range(attempts)):  # not so if one ended in a fault
            rewards[folder.name] = "".join(str(int(tally.rewards[index] > 0)) for index in range(attempts))
    policy = f"{collector.policy.name}@{collector.policy.version}"
    kept = Recording(policy=policy, sampling=asdict(collector.sampling), seed=SEED, rewards=rewards)
    RECORDED.write_text(json.dumps(asdict(kept), indent=1) + "\n", "utf-8")


def orders(total: int, passes: int, n: int, c: int) -> float:
    """The share of all orders of ``total`` attempts, ``passes`` of them passes, that begin with one given sequence of
    ``n`` attempts and ``c`` passes."""
    if not 0 <= passes - c <= total - n:
        return 0.0
    return math.comb(total - n, passes - c) / math.comb(total, passes)


def fixed_error_of(n: int, recorded: Sequence[str], design: Design) -> float:
    """Share of orders in which the first ``n`` attempts put a task into another band than all of them do."""
    wrong = 0.0
    for rewards in recorded:
        total, passes = len(rewards), rewards.count("1")
        right = band_of(passes / total, design)
        for c in range(n + 1):
            if band_of(c / n, design) is not right:
                wrong += math.comb(n, c) * orders(total, passes, n, c)
    return wrong / len(recorded)


def segments(rewards: str, design: Design) -> Iterator[tuple[int, int]]:
    """The design run on each ``max_samples`` attempts, in the order in which they were made: attempts and passes."""
    for start in range(0, len(rewards) - design.max_samples + 1, design.max_samples):
        n = passes = 0
        while (look := next_look(n, passes, design)) is not None:
            n, passes = look, rewards[start : start + look].count("1")
        yield n, passes


def replayed(recording: Recording) -> Table:
    recorded = list(recording.rewards.values())
    attempts = len(recorded[0])
    shown = table(
        f"{len(recorded)} real tasks, {attempts} recorded attempts each: {recording.policy}", "max samples",
        "sequential", "wrong band", "fixed n with that error", "saved", "held, all orders", "held, as recorded",
        "held, drawn anew",
    )  # fmt: skip
    for most in (8, 16, 32):
        design = Design(max_samples=most)
        used = wrong = held = anew = 0.0
        runs: list[bool] = []
        for rewards in recorded:
            passes = rewards.count("1")
            share = passes / attempts
            for (n, c), paths in stops(design).items():
                weight = paths * orders(attempts, passes, n, c) / len(recorded)
                found = estimate(n, c, design)
                used += weight * n
                wrong += weight * (found.band is not band_of(share, design))
                held += weight * (found.interval[0] <= share <= found.interval[1])
            anew += coverage(design, share, honest_z(design)) / len(recorded)
            for n, c in segments(rewards, design):
                low, high = estimate(n, c, design).interval
                runs.append(low <= share <= high)
        needed = next((n for n in range(1, attempts + 1) if fixed_error_of(n, recorded, design) <= wrong), attempts)
        shown.add_row(
            str(most), f"{used:.1f}", f"{wrong:.1%}", str(needed), f"{1 - used / needed:.0%}", f"{held:.1%}",
            f"{sum(runs)} of {len(runs)}", f"{anew:.1%}",
        )  # fmt: skip
    return shown


def recorded_tasks(recording: Recording) -> Table:
    shown = table("The recorded tasks", "band", "tasks", "passes")
    shares = sorted(rewards.count("1") for rewards in recording.rewards.values())
    attempts = len(next(iter(recording.rewards.values())))
    for band in Band:
        inside = [n for n in shares if band_of(n / attempts, Design()) is band]
        shown.add_row(band.value, str(len(inside)), ", ".join(map(str, inside)))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="TASKS", help="make attempts at the tasks of this set")
    parser.add_argument("--policy", default="local", help="with --record: as of taskgen calibrate")
    parser.add_argument("--attempts", type=int, default=ATTEMPTS, help="with --record: at each task")
    parser.add_argument("--max-lines", type=int, default=MAX_LINES, help="with --record: of a task's body")
    options = parser.parse_args()
    if options.record is not None:
        record(options.record, options.policy, options.attempts, options.max_lines)
        return
    console = Console(width=132)
    for shown in (savings(), coverages(), attempts()):
        console.print(shown)
    if not RECORDED.exists():
        print(f"{RECORDED} is not there: no attempts were recorded (see --record)")
        return
    recording = Recording(**json.loads(RECORDED.read_text("utf-8")))
    for shown in (replayed(recording), recorded_tasks(recording)):
        console.print(shown)


if __name__ == "__main__":
    main()
