"""Targeted feedback at work: how fast a fault goes away with it, with reward alone, and what the anchor holds.

    python -m benchmarks.feedback_ablation TASKS [--seeds 3] [--steps 8] [--at-once 2] [--out DIR]

The fault is an answer that the limit of tokens ends ("unclosed"), the hint one comment line in front of it. Each arm
trains SmolLM2-135M-Instruct by ``taskgen train`` on the same tasks, with the same seeds: with reward alone, with
feedback, with feedback and the anchor. The table has, for the first and the last third of the steps, the share of
rollouts with the fault and the pass rate, as means over seeds with their standard errors; and how far the policy is
from the one at the beginning, in nats a token, where no hint is (without an anchor that is measured with a weight of
1e-9).
Runs that are there are not made again.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

RULES = """\
rules:
  - id: unclosed
    detector: unclosed
    hint: "One line: a single return statement."
"""
MEASURED_ONLY = 1e-9
ARMS = {
    "reward alone": {"weight": 0.0, "anchor": MEASURED_ONLY},
    "with feedback": {"weight": 1.0, "anchor": MEASURED_ONLY},
    "with feedback and anchor": {"weight": 1.0, "anchor": 0.3},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("data/feedback_ablation"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rules = arguments.out / "rules.yaml"
    rules.write_text(RULES)
    runs = [(arm, seed) for seed in range(arguments.seeds) for arm in ARMS]
    with ThreadPoolExecutor(arguments.at_once) as pool:
        list(pool.map(lambda run: train(*run, arguments, rules), runs))
    print(table(arguments))


def folder_of(arm: str, seed: int, out: Path) -> Path:
    return out / f"{arm.replace(' ', '-')}-{seed}"


def train(arm: str, seed: int, arguments: argparse.Namespace, rules: Path) -> None:
    folder = folder_of(arm, seed, arguments.out)
    if len(steps_of(folder)) >= arguments.steps:
        return
    config: dict[str, Any] = {
        "tasks": str(arguments.tasks), "steps": arguments.steps, "groups": 1, "group_size": 8, "seed": seed,
        "sampling": {"max_tokens": 48, "temperature": 0.8, "context_chars": 800},
        "optimizer": {"muon": {"lr": 3e-4}, "adamw": {"lr": 2e-5}},
        "curriculum": {"floor": 0.4}, "feedback": {"rules": str(rules), "max_turns": 8} | ARMS[arm],
        "checkpoint": {"every": 100, "keep": 1},
    }  # fmt: skip
    path = arguments.out / f"{folder.name}.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    command = [sys.executable, "-m", "taskgen", "train", str(path), "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def steps_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    records = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [record for record in records if record["kind"] == "step"]


def table(arguments: argparse.Namespace) -> str:
    third = max(1, arguments.steps // 3)
    lines = [
        f"{arguments.seeds} seeds, {arguments.steps} steps; first and last {third} steps, mean (standard error)", "",
        "| arm | fault, first | fault, last | pass rate, first | pass rate, last | KL from the beginning |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for arm in ARMS:
        runs = [steps_of(folder_of(arm, seed, arguments.out)) for seed in range(arguments.seeds)]
        fault = [[step["hints"].get("unclosed", 0.0) for step in run] for run in runs]
        passes = [[step["pass_rate"] for step in run] for run in runs]
        drift = [[step["kl"] for step in run] for run in runs]
        cells = [values[:third] for values in fault], [values[-third:] for values in fault]
        cells += [values[:third] for values in passes], [values[-third:] for values in passes]
        cells += ([values[-third:] for values in drift],)
        lines.append(f"| {arm} | " + " | ".join(shown([fmean(run) for run in cell]) for cell in cells) + " |")
    return "\n".join(lines)


def shown(of_seeds: list[float]) -> str:
    error = stdev(of_seeds) / math.sqrt(len(of_seeds)) if len(of_seeds) > 1 else float("nan")
    return f"{fmean(of_seeds):.3f} ({error:.3f})"


if __name__ == "__main__":
    main()
