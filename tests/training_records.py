"""Records of a training run for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from taskgen.training.metrics import METRICS_FILE, EvaluationRecord, Record, StepRecord


def step_record(step: int, **changes: Any) -> StepRecord:  # noqa: ANN401 - any field of the record
    values: dict[str, Any] = {
        "step": step, "seconds": 27.5 * step, "reward": 0.25, "pass_rate": 0.25, "entropy": 0.8, "kl": 0.002,
        "lag": 0.01, "gradient_norm": 1.5, "loss": -0.03, "feedback_loss": 0.1, "feedback_gap": 0.4,
        "length_mean": 30.5, "length_max": 48, "tokens": 1952, "tokens_per_s": 71.0, "staleness_mean": 0.5,
        "staleness_max": 1, "n_groups": 8, "n_without_signal": 2, "n_masked": 1, "n_faults": 0,
        "hints": {"read-cache": 0.125}, "pools": {"hard": 3, "easy": 1},
        "seconds_of": {"generate": 12.5, "grade": 4.0, "learn": 11.0},
    }  # fmt: skip
    return StepRecord(**values | changes)


def evaluation_record(step: int, pass_at_1: float, **changes: Any) -> EvaluationRecord:  # noqa: ANN401
    values: dict[str, Any] = {
        "step": step, "pass_at_1": pass_at_1, "interval": (max(pass_at_1 - 0.1, 0.0), min(pass_at_1 + 0.1, 1.0)),
        "n_tasks": 2, "n_samples": 8, "per_task": {"boltons__function-0123456789": (8, 1)},
    }  # fmt: skip
    return EvaluationRecord(**values | changes)


def write_metrics(out_dir: Path, records: Iterable[Record]) -> Path:
    path = out_dir / METRICS_FILE
    path.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records), "utf-8")
    return path
