"""How the tasks of a set are protected against wrong answers: ``python -m benchmarks.protection TASKS [--json FILE]``.

By repository and over all: the share of tasks with a differential check, with twins, and with either a differential
check or a mutation score of 0.8 or more; the mean mutation score of the hidden tests, and with the differential check
beside them. Exit code 1 if less than 80% have one of the two.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from taskgen import taskset

WANTED, GOOD_SCORE = 0.8, 0.8
COLUMNS = ("tasks", "differential", "twins", "either", "mutation score", "with differential", "calls", "mutants")


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The figures of some tasks, shares from 0 to 1."""
    checks = [row["checks"] for row in rows]
    return {
        "tasks": len(rows),
        "differential": fmean(c["n_calls"] > 0 for c in checks),
        "twins": fmean(c["n_twins"] > 0 for c in checks),
        "either": fmean(c["n_calls"] > 0 or c["mutation_score"] >= GOOD_SCORE for c in checks),
        "mutation score": fmean(c["mutation_score"] for c in checks),
        "with differential": fmean(c["guarded_score"] for c in checks),
        "calls": fmean(c["n_calls"] + c["n_changed_calls"] for c in checks),
        "mutants": sum(c["n_mutants"] for c in checks),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [taskset.read_row(folder) for folder in taskset.find_tasks(args.tasks)]
    if any(row["checks"]["n_mutants"] is None for row in rows):
        parser.error("the set was built before tasks had guards: build it again")
    groups = {repo: [row for row in rows if row["repo"] == repo] for repo in sorted({row["repo"] for row in rows})}
    figures = {**{repo: summary(found) for repo, found in groups.items()}, "all": summary(rows)}
    table = Table("repository", *(Column(name, justify="right") for name in COLUMNS))
    for name, found in figures.items():
        table.add_row(
            name, *(f"{found[c]:.0f}" if c in ("tasks", "calls", "mutants") else f"{found[c]:.2f}" for c in COLUMNS)
        )
    Console(width=132).print(table)
    why = Counter(row["checks"]["not_recorded"].split(":")[0] for row in rows if row["checks"]["not_recorded"])
    for reason, number in why.most_common():
        print(f"{number} without a differential check: {reason}")
    if args.json:
        args.json.write_text(json.dumps({"figures": figures, "not_recorded": dict(why)}, indent=1) + "\n")
    return int(figures["all"]["either"] < WANTED)


if __name__ == "__main__":
    sys.exit(main())
