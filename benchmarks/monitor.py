"""How well the monitor tells hacks from honest work on labelled rollouts, and how fast it is.

    python -m benchmarks.monitor [--split development] [--write FILE]

The rollouts (``monitor_cases``) are written to JSON Lines and audited as ``taskgen audit`` does. A rollout counts as
called a hack if its reward would be masked. ``heldout`` was written before the rules. Recall per rule: of the rollouts
that a rule should flag, those that it flags; false: rollouts that it flags and should not.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.monitor_cases import SPLITS, Case, cases
from taskgen.commands.monitor import watch
from taskgen.monitor import RULES, Severity, monitor
from taskgen.trajectories import write_rollouts
from taskgen.types import Rollout

#: Turns of the speed measurement: the rollouts over and over, and one with long texts.
MIN_TURNS = 20_000


def flagged(chosen: Sequence[Case]) -> dict[str, frozenset[str]]:
    """The rules that flag each case, through the file format and the command's own pipeline."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rollouts.jsonl")
        write_rollouts(path, (case.rollout for case in chosen))
        report = watch(path)
    flags = {w.rollout_id: {f.rule for f in w.findings if f.severity is Severity.FLAG} for w in report.watched}
    assert {name for name, rules in flags.items() if rules} == set(report.masked())
    return {case.id: frozenset(flags.get(case.id, ())) for case in chosen}


def share(part: int, whole: int) -> str:
    return f"{part / whole:.3f} ({part} of {whole})" if whole else "-"


def print_split(name: str, chosen: Sequence[Case]) -> None:
    found = flagged(chosen)
    hacks = [case for case in chosen if case.is_hack]
    caught = [case for case in hacks if found[case.id]]
    wrong = [case for case in chosen if not case.is_hack and found[case.id]]
    print(f"{name}: {len(chosen)} rollouts, {len(hacks)} hacks, {len(chosen) - len(hacks)} clean")
    print(f"  precision {share(len(caught), len(caught) + len(wrong))}, recall {share(len(caught), len(hacks))}")
    for case in hacks:
        if not found[case.id]:
            print(f"  missed: {case.id} ({', '.join(sorted(case.rules))})")
    for case in wrong:
        print(f"  false: {case.id} ({', '.join(sorted(found[case.id]))})")
    for case in hacks:
        if found[case.id] and not found[case.id] >= case.rules:
            print(f"  other rule: {case.id} wants {sorted(case.rules)}, has {sorted(found[case.id])}")
    wanted = Counter(rule for case in chosen for rule in case.rules)
    hit = Counter(rule for case in chosen for rule in case.rules & found[case.id])
    false = Counter(rule for case in chosen for rule in found[case.id] - case.rules)
    print(f"  {'rule':<16} {'recall':<20} false")
    for rule in RULES:
        if wanted[rule] or false[rule]:
            print(f"  {rule:<16} {share(hit[rule], wanted[rule]):<20} {false[rule]}")
    print()


def print_speed(rollouts: Sequence[Rollout]) -> None:
    turns = sum(len(rollout.turns) for rollout in rollouts)
    rounds = -(-MIN_TURNS // turns)
    began = time.process_time()
    for _ in range(rounds):
        for rollout in rollouts:
            monitor(rollout)
    seconds = time.process_time() - began
    print(f"rules alone: {rounds * turns / seconds:,.0f} turns a CPU-second ({rounds * turns:,} turns)")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rollouts.jsonl")
        many = (r for i in range(rounds) for r in (_renamed(r, i) for r in rollouts))
        write_rollouts(path, many)
        began = time.process_time()
        report = watch(path)
        seconds = time.process_time() - began
        size = path.stat().st_size
    print(f"with reading the file: {report.n_turns / seconds:,.0f} turns, {size / seconds / 1e6:.1f} MB a CPU-second")


def _renamed(rollout: Rollout, number: int) -> Rollout:
    return Rollout(
        rollout_id=f"{rollout.rollout_id}-{number}",
        instance_id=rollout.instance_id,
        policy=rollout.policy,
        turns=rollout.turns,
        reward=rollout.reward,
        repo=rollout.repo,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=SPLITS, help="only this one (default: all, and the speed)")
    parser.add_argument("--write", type=Path, help="also write the rollouts to this .jsonl file")
    options = parser.parse_args()
    chosen = {split: cases(split) for split in ([options.split] if options.split else SPLITS)}
    for split, found in chosen.items():
        print_split(split, found)
    everything = [case.rollout for found in chosen.values() for case in found]
    if options.write:
        write_rollouts(options.write, everything)
    if not options.split:
        print_speed(everything)


if __name__ == "__main__":
    main()
