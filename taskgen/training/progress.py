"""What one sees of a run as it goes on: a line a step on stderr; on a terminal, a live table of the last ones."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from taskgen.training.curves import number
from taskgen.training.metrics import EvaluationRecord, HeldOutRecord, ReadingRecord, StepRecord

#: Rows of the live table, and steps from whose time that of the others is told.
ROWS, PACE_STEPS = 12, 20
COLUMNS = ("step", "reward", "pass", "entropy", "KL", "length", "tokens/s", "stale", "s")
READING_COLUMNS = ("step", "loss", "gradient norm", "tokens", "tokens/s", "epoch", "s")


class TrainingProgress:
    """Steps and evaluations as they end. Use it as a context manager.

    Args:
        n_steps: the step that the run ends with.
        quiet: show nothing (for ``--json``).
        console: where; stderr by default.
    """

    def __init__(self, n_steps: int, *, quiet: bool = False, console: Console | None = None) -> None:
        self._n_steps, self._console = n_steps, console or Console(stderr=True, soft_wrap=True)
        self._quiet = quiet
        self._columns: tuple[str, ...] = COLUMNS
        self._rows: deque[tuple[str, ...]] = deque(maxlen=ROWS)
        self._ends: deque[float] = deque(maxlen=PACE_STEPS + 1)
        self._bar = Progress(
            TextColumn("steps"), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(), console=self._console,
        )  # fmt: skip
        self._task = self._bar.add_task("steps", total=n_steps, left="")
        self._live = Live(self._picture(), console=self._console, refresh_per_second=2, transient=True)
        self._is_live = self._console.is_terminal and not quiet

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_live:
            self._live.stop()
            self._console.print(self._picture())

    def step(self, record: StepRecord | ReadingRecord) -> None:
        """A step has ended."""
        self._ends.append(record.seconds)
        left = self._left(record.step)
        if not self._is_live:
            self.note(step_line(record, self._n_steps, left))
            return
        self._columns = COLUMNS if isinstance(record, StepRecord) else READING_COLUMNS
        self._rows.append(_row(record, self._ends))
        self._bar.update(self._task, completed=record.step, left=f"{left} left" if left else "")
        self._live.update(self._picture())

    def evaluation(self, record: EvaluationRecord) -> None:
        """An evaluation has ended."""
        self.note(evaluation_line(record))

    def held_out(self, record: HeldOutRecord) -> None:
        """The loss on what is held out was measured."""
        self.note(f"held out at step {record.step}: loss {number(record.loss)}, {record.tokens} tokens")

    def note(self, text: str) -> None:
        """Say something else, above the live table where there is one."""
        if not self._quiet:
            self._console.print(text, markup=False, highlight=False)

    def _left(self, step: int) -> str:
        """Time to the last step, by the pace of the last ones; '' while that is not known."""
        if len(self._ends) < 2 or step >= self._n_steps:
            return ""
        pace = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return clock(pace * (self._n_steps - step)) if pace >= 0 else ""

    def _picture(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for name in self._columns:
            table.add_column(name, justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(*row)
        return Group(*([table] if self._rows else []), self._bar)


def step_line(record: StepRecord | ReadingRecord, n_steps: int, left: str) -> str:
    """``step 12/300: reward 0.312, pass rate 0.344, entropy 0.81, ...``; what was not measured is left out."""
    named = (_of_step(record) if isinstance(record, StepRecord) else _of_reading(record)) | {"left": left}
    return f"step {record.step}/{n_steps}: " + ", ".join(f"{name} {value}" for name, value in named.items() if value)


def _of_step(record: StepRecord) -> dict[str, str]:
    length = number(record.length_mean) and f"{number(record.length_mean)} (longest {number(record.length_max)})"
    stale = number(record.staleness_mean) and f"{number(record.staleness_mean)} (most {number(record.staleness_max)})"
    return {
        "reward": number(record.reward),
        "pass rate": number(record.pass_rate),
        "entropy": number(record.entropy),
        "KL": number(record.kl),
        "length": length,
        "tokens/s": number(record.tokens_per_s),
        "staleness": stale,
        "faults": number(record.n_faults or None),
    }


def _of_reading(record: ReadingRecord) -> dict[str, str]:
    return {
        "loss": number(record.loss),
        "gradient norm": number(record.gradient_norm),
        "tokens": number(record.tokens),
        "tokens/s": number(record.tokens_per_s),
        "epoch": number(record.epoch),
    }


def evaluation_line(record: EvaluationRecord) -> str:
    """``evaluation at step 12: pass@1 0.312 (0.250 to 0.380), 40 tasks x 8 samples``."""
    low, high = record.interval
    return (
        f"evaluation at step {record.step}: pass@1 {record.pass_at_1:.3f} ({low:.3f} to {high:.3f}), "
        f"{record.n_tasks} tasks x {record.n_samples} samples"
    )


def clock(seconds: float) -> str:
    """``1:02:03``."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def _row(record: StepRecord | ReadingRecord, ends: deque[float]) -> tuple[str, ...]:
    took = f"{ends[-1] - ends[-2]:.1f}" if len(ends) > 1 else ""
    if isinstance(record, ReadingRecord):
        return (str(record.step), *_of_reading(record).values(), took)
    values = (
        record.reward, record.pass_rate, record.entropy, record.kl, record.length_mean, record.tokens_per_s,
        record.staleness_mean,
    )  # fmt: skip
    return (str(record.step), *map(number, values), took)
