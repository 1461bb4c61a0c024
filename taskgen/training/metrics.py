"""What a training run records as it goes: one JSON object a line in ``metrics.jsonl``, and TensorBoard's event files.

A line's ``kind`` is ``step`` or ``evaluation``, and of a run that reads text ``reading`` or ``held_out``; its other
keys are the fields of the record of that name. Numbers that are not finite stand there as ``NaN`` and ``Infinity``, as
Python's ``json`` writes and reads them: a loss that blew up is not hidden.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from taskgen.atomic import disk_faults, replacing_file
from taskgen.errors import FormatError, StoreError
from taskgen.training.event_file import EventFile

METRICS_FILE, TENSORBOARD_FOLDER = "metrics.jsonl", "tensorboard"
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
_FORM = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What a step of training reports. None: there was nothing to measure, such as the loss of a step without signal.

    Attributes:
        step: from 1 on; 0 is the policy before training.
        seconds: wall time since the run began.
        reward: mean over the step's rollouts.
        pass_rate: share of the step's rollouts whose tests passed.
        entropy: mean over trained tokens, in nats.
        kl: the anchor's mean KL(policy || reference) a token, in nats.
        lag: mean |log p - log mu| a trained token, with mu the policy that sampled it.
        gradient_norm: before clipping.
        feedback_gap: mean log-probability of the hinted policy less the policy's own, on hinted turns.
        length_mean, length_max: tokens of a completion.
        tokens: trained in this step.
        tokens_per_s: ``tokens`` by the step's wall time.
        staleness_mean, staleness_max: optimizer steps between a rollout's policy and the one that learns from it.
        n_groups: groups of rollouts in the step.
        n_without_signal: those of them whose rewards are all the same.
        n_masked: rollouts whose reward the monitor took away.
        n_faults: rollouts that ended by a fault of the infrastructure.
        hints: rule -> share of rollouts that got its hint.
        pools: pool of difficulty (hard, normal, easy) -> tasks in it.
        seconds_of: part of the work (generate, grade, learn) -> wall seconds; parts may overlap.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _FORM

    kind: Literal["step"] = "step"
    step: Count
    seconds: float
    reward: float | None
    pass_rate: Share | None
    entropy: float | None
    kl: float | None
    lag: float | None
    gradient_norm: float | None
    loss: float | None
    feedback_loss: float | None
    feedback_gap: float | None
    length_mean: float | None
    length_max: Count | None
    tokens: Count
    tokens_per_s: float | None
    staleness_mean: float | None
    staleness_max: Count | None
    n_groups: Count
    n_without_signal: Count
    n_masked: Count
    n_faults: Count
    hints: Mapping[str, Share] = field(default_factory=dict)
    pools: Mapping[str, Count] = field(default_factory=dict)
    seconds_of: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """How the policy after ``step`` steps does on tasks.

    Attributes:
        interval: (low, high) of pass_at_1.
        n_samples: attempts at a task.
        per_task: instance_id -> (attempts graded, passes).
    """

    __pydantic_config__: ClassVar[ConfigDict] = _FORM

    kind: Literal["evaluation"] = "evaluation"
    step: Count
    pass_at_1: Share
    interval: tuple[Share, Share]
    n_tasks: Count
    n_samples: Count
    per_task: Mapping[str, tuple[Count, Count]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingRecord:
    """A step of pretraining, or of learning from accepted rollouts.

    Attributes:
        step, seconds, gradient_norm: as of ``StepRecord``.
        loss: mean cross-entropy of the step's tokens before its update, in nats.
        tokens: that count.
        tokens_per_s: those by the step's wall time.
        epoch: how often all documents were read; behind the point, the share of them in this pass.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _FORM

    kind: Literal["reading"] = "reading"
    step: Count
    seconds: float
    loss: float
    gradient_norm: float
    tokens: Count
    tokens_per_s: float | None
    epoch: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRecord:
    """The mean cross-entropy, in nats, of ``tokens`` that no step reads, after ``step`` steps."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORM

    kind: Literal["held_out"] = "held_out"
    step: Count
    loss: float
    tokens: Count
    n_rows: Count


Record = StepRecord | EvaluationRecord | ReadingRecord | HeldOutRecord
_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


class MetricsWriter:
    """Appends a run's records to ``OUT/metrics.jsonl`` and to an event file under ``OUT/tensorboard``.

    Where the package tensorboard is not installed, ``on_note`` is told once, and the JSON lines are all.

    Args:
        resume_step: the step that a resumed run goes on from: later records are cut, and TensorBoard is told to drop
            them. None: a new run, which must find no records.

    Raises:
        StoreError: a new run would write behind the records of another; or the disk is full or read-only.
        FormatError: the records that are there cannot be read.
    """

    def __init__(self, out_dir: Path, *, resume_step: int | None, on_note: Callable[[str], None]) -> None:
        self.path = out_dir / METRICS_FILE
        with disk_faults(out_dir):
            out_dir.mkdir(parents=True, exist_ok=True)
            if resume_step is not None:
                cut_after(self.path, resume_step)
            elif self.path.exists() and self.path.stat().st_size:
                raise StoreError(
                    f"{self.path} has the records of another run", hint="resume that run, or choose another folder"
                )
            self.path.touch()  # a run that is stopped before its first record has a page, too
            purge_step = None if resume_step is None else resume_step + 1
            self._events = EventFile.open(out_dir / TENSORBOARD_FOLDER, purge_step=purge_step)
        if self._events is None:
            on_note("tensorboard is not installed: metrics go to metrics.jsonl alone (pip install 'taskgen[train]')")

    def write(self, record: Record) -> None:
        """Append a record as one line.

        Raises:
            ValueError: the record has a value that could not be read back.
            StoreError: the disk is full or read-only.
        """
        line = json.dumps(asdict(record)) + "\n"
        _RECORD.validate_json(line)
        with disk_faults(self.path.parent):
            with self.path.open("ab", buffering=0) as file:
                file.write(line.encode())
            if self._events is not None:
                self._events.add(record.step, scalars(record))

    def close(self) -> None:
        """Close the event file. No more can be written."""
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def scalars(record: Record) -> dict[str, float]:
    """A record's numbers by their tags in TensorBoard: ``train/reward``, ``hints/RULE``, ``evaluation/pass_at_1``,
    ``held_out/loss``."""
    if isinstance(record, EvaluationRecord):
        low, high = record.interval
        values = {"pass_at_1": record.pass_at_1, "low": low, "high": high}
        return {f"evaluation/{name}": value for name, value in values.items()}
    if isinstance(record, HeldOutRecord):
        return {"held_out/loss": record.loss}
    found: dict[str, float] = {}
    for name, value in asdict(record).items():
        if isinstance(value, dict):
            found |= {f"{name}/{key}": float(number) for key, number in value.items()}
        elif isinstance(value, int | float) and name != "step":
            found[f"train/{name}"] = float(value)
    return found


def read_metrics(path: Path) -> Iterator[Record]:
    """The records of a ``metrics.jsonl``, in its order. A last line without its line feed was torn by a kill: dropped.

    Raises:
        FormatError: the file cannot be read, or a line is no record: ``file:line`` and what is wrong there.
    """
    return (record for _, record in _lines(path))


def cut_after(path: Path, step: int) -> int:
    """Cut the records of later steps than ``step``, and a torn line, from a ``metrics.jsonl``. Returns how many.

    The file is replaced whole or not at all; a file that is not there has none.

    Raises FormatError as ``read_metrics`` does, and StoreError where the disk is full or read-only.
    """
    if not path.exists():
        return 0
    n_all, kept = 0, []
    for data, record in _lines(path):
        n_all += 1
        if record.step <= step:
            kept.append(data)
    with replacing_file(path) as scratch:
        scratch.write_bytes(b"".join(kept))
        shutil.copymode(path, scratch)
    return n_all - len(kept)


def _lines(path: Path) -> Iterator[tuple[bytes, Record]]:
    try:
        with path.open("rb") as file:
            for number, data in enumerate(file, 1):
                if not data.endswith(b"\n"):
                    return
                yield data, _record(data, f"{path}:{number}")
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}") from error


def _record(data: bytes, where: str) -> Record:
    try:
        return _RECORD.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        shown = repr(first["input"])[:60]
        raise FormatError(
            f"{where}: no record of a training run: {key + ': ' if key else ''}{first['msg']}, not {shown}"
        ) from error
