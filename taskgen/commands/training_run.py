"""What a run of ``taskgen train`` is, whatever its stage: where it lies, what came of it, how it is stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskgen.atomic import disk_faults
from taskgen.errors import ConfigError
from taskgen.sandbox import SandboxProvider
from taskgen.stopper import Interrupted
from taskgen.training.metrics import EvaluationRecord, HeldOutRecord, Record, StepRecord
from taskgen.training.reading_config import AnyConfig, load_stage

CHECKPOINTS, CONFIG, ROLLOUTS, LEFT_OUT, WEIGHTS = (
    "checkpoints", "config.yaml", "rollouts.jsonl", "left_out.jsonl", "weights",
)  # fmt: skip
#: What may differ when a run is gone on with: how long it goes on and on what, not what it does.
_MAY_CHANGE: dict[str, Any] = {
    "steps": True, "evaluate": True, "checkpoint": True,
    "policy": {"ranks", "dp_replicate", "torchrun", "device", "threads", "recompute", "timeout_s"},
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a run is made on this machine. ``on_note``: told what is worth knowing."""

    out: Path
    provider: SandboxProvider
    cache: Path
    jobs: int
    quiet: bool
    on_note: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What came of a run. ``stopped``: it was asked to stop before its last step. ``left_out``: why documents or
    rollouts were not read -> how many."""

    step: int
    stopped: bool
    page: Path
    records: tuple[Record, ...]
    left_out: dict[str, int] | None = None

    def evaluations(self) -> list[EvaluationRecord]:
        return [record for record in self.records if isinstance(record, EvaluationRecord)]

    def steps(self) -> list[StepRecord]:
        return [record for record in self.records if isinstance(record, StepRecord)]

    def held_out(self) -> list[HeldOutRecord]:
        return [record for record in self.records if isinstance(record, HeldOutRecord)]


def must_be_as_begun(path: Path, config: AnyConfig, out: Path) -> None:
    """Raises ConfigError if the run that is in ``out`` was begun with another configuration."""
    kept = out / CONFIG
    if not kept.exists():
        return
    before, now = load_stage(kept).model_dump(exclude=_MAY_CHANGE), config.model_dump(exclude=_MAY_CHANGE)
    # The stage first: the keys of another one say nothing.
    keys = sorted({*before, *now}, key=lambda key: key != "stage")
    if other := [key for key in keys if now.get(key) != before.get(key)]:
        key = other[0]
        raise ConfigError(
            f"{path}: {key}: the run in {out} was begun with {before.get(key)!r}, not {now.get(key)!r}",
            hint="choose another --out, or give the configuration that it was begun with",
        )


def keep_config(path: Path, out: Path) -> None:
    """Leave a copy beside the run."""
    with disk_faults(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / CONFIG).write_bytes(path.read_bytes())


@contextmanager
def gently_stopped(stop: threading.Event, on_note: Callable[[str], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM sets ``stop``; the next one raises Interrupted where it is."""

    def handle(_signal: int, _frame: object) -> None:
        if stop.is_set():
            raise Interrupted
        stop.set()
        on_note("stopping behind this step, with a checkpoint; once more to stop at once")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
