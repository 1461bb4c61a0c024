"""Tasks made for a policy, against tasks that are not: ``python -m benchmarks.dynamic_generation OUT``.

Builds each set below OUT (a run that was stopped goes on): once without ``--policy``, whose tasks each policy then
attempts (``taskgen calibrate``), and once for each policy with ``--policy --band``; each policy but the first also
attempts what was made for the one before it. The policies are scripted ones (``taskgen.hardness`` says what makes a
task hard for them). Exit code 1 if the median pass rate of the tasks that were made for a policy lies out of the band,
or the best policy's lies in it without steering: on the plain tasks, or on those made for the policy before it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from unidiff.patch import PatchSet

from taskgen import taskset
from taskgen.steering import Setting

LOW, HIGH = 0.1, 0.9
POLICIES = {"weak": 2.0, "better": 6.0, "best": 9.0}
LIBRARIES = ("inflection", "xmltodict")
Rate = tuple[Setting, float]


def taskgen(*arguments: str | Path, ok: Sequence[int] = (0,)) -> dict[str, Any]:
    """The command's JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "taskgen", *map(str, arguments), "--json"], stdout=subprocess.PIPE, check=False
    )
    if done.returncode not in ok:
        sys.exit(f"taskgen {arguments[0]} ended with {done.returncode}")
    return dict(json.loads(done.stdout))


def as_built(row: Mapping[str, Any]) -> Setting:
    """The setting of a task of the plain build, which keeps docstrings and gives no hints."""
    lines = sum(line.is_added for file in PatchSet(row["patch"]) for hunk in file for line in hunk)
    return Setting(lines=lines, definitions=len(row["deleted"]))


def unsteered(out: Path, policy: Path) -> list[Rate]:
    """The pass rates of a policy on tasks that were not made for it."""
    found = taskgen(
        "calibrate", out, "--policy", policy, "--band", f"{LOW}:{HIGH}", "--max-samples", "16",
        "--rollouts", out.parent / f"{policy.stem}.jsonl",
    )  # fmt: skip
    rows = {folder.name: taskset.read_row(folder) for folder in taskset.find_tasks(out)}
    known = {a["candidate"]: a["setting"] for r in read_build(out)["repos"] for a in r["attempted"]}
    return [
        (Setting(**known[name]) if name in known else as_built(rows[name]), task["pass_at_1"])
        for task in found["tasks"]
        if "pass_at_1" in task and (name := task["instance_id"])
    ]


def read_build(out: Path) -> dict[str, Any]:
    """What a set's build.json says."""
    return dict(json.loads((out / "build.json").read_text()))


def steered(built: Mapping[str, Any]) -> tuple[list[Rate], list[Rate]]:
    """The pass rates of all tasks that were attempted, and of those that were kept."""
    records = [record for repo in built["repos"] for record in repo["attempted"] if record["n"]]
    rates = [(Setting(**record["setting"]), record["passes"] / record["n"]) for record in records]
    return rates, [rate for rate, record in zip(rates, records, strict=True) if record["in_band"]]


def line(policy: str, build: str, rates: Sequence[Rate]) -> tuple[str, ...]:
    """A line of the table."""
    settings = [setting for setting, _ in rates]
    inside = sum(LOW <= rate <= HIGH for _, rate in rates)
    return (
        f"{policy} ({POLICIES[policy]:g})", build, str(len(rates)), f"{inside} of {len(rates)}",
        f"{median(rate for _, rate in rates):.2f}", f"{median(s.lines for s in settings):g}",
        f"{min(s.lines for s in settings)} to {max(s.lines for s in settings)}",
        f"{sum(s.definitions > 1 for s in settings)}", f"{sum(not s.keep_docstring for s in settings)}",
        f"{sum(s.hints for s in settings)}",
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=list(LIBRARIES))
    parser.add_argument("--max-tasks", type=int, default=4)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = [word for name in args.only for word in ("--only", name)] + ["--max-tasks", str(args.max_tasks)]
    taskgen("build", *chosen, "--out", args.out / "plain")
    table = Table(
        "policy", "build", "tasks", "in the band", "median rate", "median lines", "lines", "combined", "no docstring",
        "hints", title=f"Band {LOW} to {HIGH}; {', '.join(args.only)}",
    )  # fmt: skip
    good, before = True, ""
    for name, skill in POLICIES.items():
        policy = args.out / f"{name}.yaml"
        policy.write_text(f"kind: scripted\nstrength: {skill}\nwhole: true\n")
        others = {"plain": unsteered(args.out / "plain", policy)}
        if before:
            # A copy: the set itself says how hard its tasks are for the policy that they were made for.
            shutil.copytree(args.out / before, args.out / f"{before}-for-{name}", dirs_exist_ok=True)
            others[f"steered for {before}"] = unsteered(args.out / f"{before}-for-{name}", policy)
        built = taskgen(
            "build", *chosen, "--out", args.out / name, "--policy", policy, "--band", f"{LOW}:{HIGH}", ok=(0, 4)
        )
        attempted, kept = steered(built)
        for label, rates in (*others.items(), ("steered: attempted", attempted), ("steered: kept", kept)):
            table.add_row(*line(name, label, rates))
        table.add_section()
        good &= bool(kept) and LOW <= median(rate for _, rate in kept) <= HIGH
        before = name
    good &= not any(LOW <= median(rate for _, rate in rates) <= HIGH for rates in others.values())
    Console(width=132).print(table)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
