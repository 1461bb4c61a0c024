"""The loop of ``stage: pretrain`` and ``stage: sft``: an update by rows of tokens, and a loss on what is held out."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from taskgen.errors import FormatError
from taskgen.training.learner import Learner
from taskgen.training.metrics import HeldOutRecord, MetricsWriter, ReadingRecord
from taskgen.training.progress import TrainingProgress
from taskgen.training.reading_config import ReadingConfig
from taskgen.training.rows import Place, Reader, Row


@dataclass(slots=True, kw_only=True)
class ReadingState:
    """What a run needs beside the trainer's tensors to go on.

    Attributes:
        place: where reading stands.
        corpus: a digest of what is read and held out.
        seconds: wall time of the run so far.
        measured: steps whose held-out loss is recorded.
    """

    place: Place = field(default_factory=Place)
    corpus: str
    seconds: float = 0.0
    measured: list[int] = field(default_factory=list)


_STATE: TypeAdapter[ReadingState] = TypeAdapter(ReadingState)


def dump(state: ReadingState) -> str:
    """As JSON."""
    return _STATE.dump_json(state).decode()


def restore(text: str) -> ReadingState:
    """Raises FormatError: a checkpoint of another stage, of another version of taskgen, or a damaged one."""
    try:
        return _STATE.validate_json(text)
    except ValidationError as error:
        raise FormatError(
            f"the checkpoint's progress cannot be read: {error.errors(include_url=False)[0]['msg']}",
            hint="begin again with another --out, or go on with the version of taskgen that wrote it",
        ) from error


@dataclass(slots=True, kw_only=True)
class ReadingLoop:
    """One run. ``n_documents``: that are read; ``held_out``: rows that are not; ``stop``: set when the run is to end
    behind the step of now."""

    config: ReadingConfig
    learner: Learner
    reader: Reader
    n_documents: int
    held_out: Sequence[Row]
    metrics: MetricsWriter
    progress: TrainingProgress
    state: ReadingState
    stop: threading.Event
    _began: float = 0.0

    def run(self) -> None:
        """Go on until the last step, or until ``stop`` is set; then a checkpoint is written.

        Raises PolicyFault: the trainer was lost; StoreError: the disk is full.
        """
        self._began = time.monotonic() - self.state.seconds
        saved = self.learner.step
        self._measure()
        while self.learner.step < self.config.steps and not self.stop.is_set():
            self._step()
            self._measure()
            if self.learner.step - saved >= self.config.checkpoint.every:
                self._save()
                saved = self.learner.step
        self._save()

    def _step(self) -> None:
        rows = self.reader.rows(self.config.rows)
        found = self.learner.read(rows, self.config.lr_factor(self.learner.step + 1))
        before, self.state.seconds = self.state.seconds, time.monotonic() - self._began
        seconds, place = self.state.seconds - before, self.state.place
        record = ReadingRecord(
            step=self.learner.step,
            seconds=self.state.seconds,
            loss=found["loss"],
            gradient_norm=found["gradient_norm"],
            tokens=int(found["tokens"]),
            tokens_per_s=found["tokens"] / seconds if seconds > 0 else None,
            epoch=place.epoch + place.documents / self.n_documents,
        )
        self.metrics.write(record)
        self.progress.step(record)

    def _measure(self) -> None:
        """The held-out loss, if it is due."""
        step, every = self.learner.step, self.config.evaluate.every
        due = step in (0, self.config.steps) or (every and step % every == 0)
        if not self.held_out or not due or step in self.state.measured:
            return
        found = self.learner.measure(self.held_out)
        record = HeldOutRecord(step=step, loss=found["loss"], tokens=int(found["tokens"]), n_rows=len(self.held_out))
        self.metrics.write(record)
        self.progress.held_out(record)
        self.state.measured.append(step)

    def _save(self) -> None:
        self.state.seconds = time.monotonic() - self._began
        self.learner.save(dump(self.state), self.config.checkpoint.keep)


def split(groups: Sequence[str], share: float, seed: int) -> set[str]:
    """The groups that are held out: ``share`` of all, at least one and never all. Which ones depends on their names and
    the seed: adding others moves few."""
    names = sorted(set(groups), key=lambda name: hashlib.sha256(f"{seed}\0{name}".encode("utf-8", "replace")).digest())
    n = min(max(1, round(share * len(names))), len(names) - 1) if share else 0
    return set(names[:n])


def digest_of(parts: Iterable[str]) -> str:
    """Of what is read and held out, in its order."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
