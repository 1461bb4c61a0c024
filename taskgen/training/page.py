"""A training run as one HTML file: no network, no JavaScript, readable on a phone.

What a policy wrote is in it, so everything is escaped, and the page's Content-Security-Policy lets nothing run or load.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import jinja2

from taskgen.atomic import replacing_file
from taskgen.errors import FormatError
from taskgen.training import curves
from taskgen.training.charts import drawn, drawn_reading
from taskgen.training.metrics import (
    METRICS_FILE,
    EvaluationRecord,
    HeldOutRecord,
    ReadingRecord,
    StepRecord,
    read_metrics,
)
from taskgen.training.samples import Samples, read_samples, shown

PAGE_FILE, CONFIG_FILE, ROLLOUTS_FILE = "report.html", "config.yaml", "rollouts.jsonl"
TEMPLATE = Path(__file__).with_name("page.html.j2")
#: Characters of the configuration, and tasks of an evaluation, that are shown.
MAX_CONFIG, MAX_TASKS = 40_000, 300
#: The parts of a run whose means are compared: its first and its last so many steps.
ENDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A headline figure."""

    name: str
    value: str
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task in the first and in the last evaluation, as ``passes of n``; '' where it was not attempted."""

    instance_id: str
    before: str
    after: str
    change: float


def write_page(out_dir: Path) -> Path:
    """Write ``OUT/report.html`` from ``metrics.jsonl`` and, where they are there, ``rollouts.jsonl``, ``config.yaml``.

    It appears whole or not at all. A run that was stopped, at whichever moment, has a page of what it recorded.

    Raises:
        FormatError: the metrics are not there or cannot be read (``file:line``), or one of the others cannot be opened.
        StoreError: the disk is full or read-only.
    """
    # A step that was done twice counts as it was done last.
    found = {(type(record), record.step): record for record in read_metrics(out_dir / METRICS_FILE)}
    records = sorted(found.values(), key=lambda record: record.step)
    text = render(
        name=shown(out_dir.resolve().name),
        steps=[record for record in records if isinstance(record, StepRecord)],
        evaluations=[record for record in records if isinstance(record, EvaluationRecord)],
        readings=[record for record in records if isinstance(record, ReadingRecord)],
        held_out=[record for record in records if isinstance(record, HeldOutRecord)],
        config=_config(out_dir / CONFIG_FILE),
        samples=read_samples(out_dir / ROLLOUTS_FILE),
    )
    path = out_dir / PAGE_FILE
    with replacing_file(path) as scratch:
        scratch.write_text(text, "utf-8")
        shutil.copymode(out_dir / METRICS_FILE, scratch)  # who may read the one may read the other
    return path


def render(
    *,
    name: str,
    steps: Sequence[StepRecord],
    evaluations: Sequence[EvaluationRecord],
    readings: Sequence[ReadingRecord] = (),
    held_out: Sequence[HeldOutRecord] = (),
    config: str,
    samples: Samples,
) -> str:
    """The page's HTML. Steps must ascend."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    tasks, reads = task_rows(evaluations), bool(readings or held_out)
    return environment.from_string(TEMPLATE.read_text("utf-8")).render(
        name=name,
        tiles=reading_tiles(readings, held_out) if reads else tiles(steps, evaluations),
        charts=drawn_reading(readings, held_out) if reads else drawn(steps, evaluations),
        has_rollouts=not reads,
        tasks=tasks[:MAX_TASKS],
        n_tasks=len(tasks),
        config=config,
        samples=samples,
        size=curves,
        number=curves.number,
    )


def tiles(steps: Sequence[StepRecord], evaluations: Sequence[EvaluationRecord]) -> list[Tile]:
    """The headline figures: pass@1 before and after, and what the run was."""
    found = []
    for name, evaluation in zip(("pass@1 before", "pass@1 after"), _ends(evaluations), strict=False):
        low, high = evaluation.interval
        about = (
            f"{low:.3f} to {high:.3f}; step {evaluation.step}, {evaluation.n_tasks} tasks, "
            f"{evaluation.n_samples} samples each"
        )
        found.append(Tile(name=name, value=f"{evaluation.pass_at_1:.3f}", about=about))
    if not steps:
        return [*found, Tile(name="steps", value="0", about="no step was recorded")]
    found += _compared("training pass rate", [s.pass_rate for s in steps])
    found += _compared("training reward", [s.reward for s in steps])
    last = steps[-1]
    return [
        *found,
        Tile(name="steps", value=f"{last.step:,}", about=f"{duration(last.seconds)} of wall time"),
        Tile(name="tokens trained", value=f"{sum(s.tokens for s in steps):,}"),
        Tile(
            name="groups without signal",
            value=_share(sum(s.n_without_signal for s in steps), sum(s.n_groups for s in steps)),
            about=f"{sum(s.n_masked for s in steps):,} rollouts masked, {sum(s.n_faults for s in steps):,} faults",
        ),
    ]


def reading_tiles(readings: Sequence[ReadingRecord], held_out: Sequence[HeldOutRecord]) -> list[Tile]:
    """The headline figures of a run that reads text: the held-out loss before and after, and what the run was."""
    ends = [held_out[0], held_out[-1]] if len(held_out) > 1 else held_out
    found = [
        Tile(name=name, value=f"{record.loss:.3f}", about=f"step {record.step}, {record.tokens:,} tokens")
        for name, record in zip(("held-out loss before", "held-out loss after"), ends, strict=False)
    ]
    if not readings:
        return [*found, Tile(name="steps", value="0", about="no step was recorded")]
    last = readings[-1]
    return [
        *found,
        *_compared("training loss", [record.loss for record in readings]),
        Tile(name="steps", value=f"{last.step:,}", about=f"{duration(last.seconds)} of wall time"),
        Tile(name="tokens read", value=f"{sum(r.tokens for r in readings):,}", about=f"{last.epoch:.2f} epochs"),
    ]


def task_rows(evaluations: Sequence[EvaluationRecord]) -> list[TaskRow]:
    """The tasks of the first and of the last evaluation, those that changed most first. Fewer than two: none."""
    if len(evaluations) < 2:
        return []
    before, after = evaluations[0].per_task, evaluations[-1].per_task
    rows = []
    for instance_id in dict.fromkeys([*before, *after]):
        (n0, k0), (n1, k1) = before.get(instance_id, (0, 0)), after.get(instance_id, (0, 0))
        rows.append(
            TaskRow(
                instance_id=shown(instance_id),
                before=f"{k0} of {n0}" if n0 else "",
                after=f"{k1} of {n1}" if n1 else "",
                change=k1 / n1 - k0 / n0 if n0 and n1 else 0.0,
            )
        )
    return sorted(rows, key=lambda row: (-abs(row.change), row.instance_id))


def duration(seconds: float) -> str:
    """``1 h 05 min``, ``3 min 20 s``, ``12 s``."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


def _ends(evaluations: Sequence[EvaluationRecord]) -> Sequence[EvaluationRecord]:
    return evaluations if len(evaluations) < 2 else (evaluations[0], evaluations[-1])


def _compared(name: str, values: Sequence[float | None]) -> list[Tile]:
    """The mean of the last steps, with that of the first where they are others."""
    known = [value for value in values if value is not None]
    if not known:
        return []
    n = min(ENDS, len(known))
    about = f"mean of the last {n} steps"
    if len(known) >= 2 * ENDS:
        about += f"; of the first {n}: {fmean(known[:n]):.3f}"
    return [Tile(name=name, value=f"{fmean(known[-n:]):.3f}", about=about)]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "none"


def _config(path: Path) -> str:
    if not path.exists():
        return ""
    try:
        text = path.read_text("utf-8", errors="backslashreplace")
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}") from error
    return shown(text[:MAX_CONFIG]) + ("\n…" if len(text) > MAX_CONFIG else "")
