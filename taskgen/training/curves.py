"""Curves as SVG paths: coordinates, ticks, bands. What they look like is the page's matter.

Steps run to the right, values up. A value that is missing or not finite leaves a gap. Long curves are thinned to the
least and the greatest value of each of ``BUCKETS`` stretches of steps, so that no peak is lost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

#: In units of the SVG's viewBox.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 190, 50, 12, 10, 26
BUCKETS, TICKS = 250, 5
#: Values beyond it are drawn as gaps, as those that are not finite are.
GREATEST = 1e100
#: Values that lie no further apart make a flat line.
LEAST = 1e-100
#: Curves of at least so many points get a running mean, over a twentieth of them.
SMOOTH_FROM, SMOOTH_SHARE = 40, 20

Point = tuple[int, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A curve. ``points``: (step, value), steps ascending. ``name``: '' where a chart has one line."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over the same steps.

    Attributes:
        about: what is drawn, with its unit.
        band: (step, low, high) around the first line.
        marked: points are few and stand apart: each gets a dot.
        smooth: a running mean helps where there are many points.
    """

    title: str
    about: str
    lines: tuple[Line, ...]
    band: Sequence[tuple[int, float, float]] = ()
    marked: bool = False
    smooth: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLine:
    """``path``: an SVG path. ``mean``: that of the running mean, or ''. ``last``: the last value, as text."""

    name: str
    path: str
    mean: str
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A chart in coordinates.

    Attributes:
        x_ticks, y_ticks: (coordinate, label).
        dots: (x, y, label) of marked points.
        window: points in a running mean; 0: there is none.
        n_gaps: values that are not finite.
    """

    title: str
    about: str
    lines: tuple[DrawnLine, ...]
    band: str
    dots: tuple[tuple[float, float, str], ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    window: int
    n_gaps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What of the plane is seen: steps from ``first`` to ``last``, values from ``low`` to ``high``."""

    first: int
    last: int
    low: float
    high: float

    def x(self, step: float) -> float:
        """The x coordinate of a step."""
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - self.first) / (self.last - self.first)

    def y(self, value: float) -> float:
        """The y coordinate of a value: it grows downwards."""
        return TOP + (HEIGHT - TOP - BOTTOM) * (self.high - value) / (self.high - self.low)


def draw(chart: Chart) -> Drawn | None:
    """A chart in coordinates; None where it has no value."""
    frame = _frame(chart)
    if frame is None:
        return None
    window = max((len(line.points) for line in chart.lines), default=0) // SMOOTH_SHARE
    smooth = chart.smooth and window * SMOOTH_SHARE >= SMOOTH_FROM
    return Drawn(
        title=chart.title,
        about=chart.about,
        lines=tuple(
            DrawnLine(
                name=line.name,
                path=_path(line.points, frame),
                mean=_path(running_mean(line.points, window), frame) if smooth else "",
                last=next((number(value) for _, value in reversed(line.points) if _drawable(value)), ""),
            )
            for line in chart.lines
        ),
        band=_band(chart.band, frame),
        dots=tuple(_dots(chart, frame)),
        x_ticks=tuple((frame.x(step), number(step)) for step in ticks(frame.first, frame.last, whole=True)),
        y_ticks=_labelled(ticks(frame.low, frame.high), frame),
        window=window if smooth else 0,
        n_gaps=sum(value is not None and not _drawable(value) for line in chart.lines for _, value in line.points),
    )


def running_mean(points: Sequence[Point], window: int) -> list[Point]:
    """The mean of the last ``window`` points, less those that are missing, at the last and at some ``BUCKETS`` others.

    None where all are missing.
    """
    means: list[Point] = []
    for end in range(len(points), 0, -max(len(points) // BUCKETS, 1)):
        values = [value for _, value in points[max(end - window, 0) : end] if value is not None and _drawable(value)]
        means.append((points[end - 1][0], math.fsum(values) / len(values) if values else None))
    return means[::-1]


def thinned(points: Sequence[tuple[int, float]], buckets: int = BUCKETS) -> list[tuple[int, float]]:
    """At most ``2 * buckets`` of the points: of each stretch of steps the least and the greatest, in their order."""
    if len(points) <= 2 * buckets:
        return list(points)
    first, span = points[0][0], points[-1][0] - points[0][0] + 1
    kept: list[tuple[int, float]] = []
    for _, group in itertools.groupby(points, key=lambda p: (p[0] - first) * buckets // span):
        stretch = list(group)
        ends = (min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1]))
        kept += sorted(set(ends))
    return kept


def ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """About ``TICKS`` round numbers from ``low`` to ``high``."""
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    if whole:
        step = max(round(step), 1)
    start = math.ceil(low / step - 1e-9)
    return [step * i for i in range(start, math.floor(high / step + 1e-9) + 1)]


def number(value: float | None) -> str:
    """Three digits that count; thousands apart. '' for None."""
    if value is None:
        return ""
    if value and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.2e}" if math.isfinite(value) else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _labelled(values: Sequence[float], frame: Frame) -> tuple[tuple[float, str], ...]:
    """Ticks with as many decimals as tell them apart."""
    step = values[1] - values[0] if len(values) > 1 else 0.0
    if not 1e-4 <= step < 1e6:
        return tuple((frame.y(value), number(value)) for value in values)
    decimals = max(-math.floor(math.log10(step) + 1e-9), 0)
    return tuple((frame.y(value), f"{value:,.{decimals}f}") for value in values)


def _frame(chart: Chart) -> Frame | None:
    seen = [(step, value) for line in chart.lines for step, value in line.points if value is not None]
    values = [value for _, value in seen if _drawable(value)]
    if not values:
        return None
    steps = [step for step, _ in seen]
    values += [edge for _, *edges in chart.band for edge in edges]
    low, high = min(values), max(values)
    if 0 <= low <= high / 2:
        low = 0.0
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, LEAST):  # a flat line lies in the middle
        half = size / 2 if size > LEAST else 1.0
        low, high = low - half, high + half
    room = 0.05 * (high - low)
    return Frame(
        first=min(steps), last=max(max(steps), min(steps) + 1), low=low - room if low else 0.0, high=high + room
    )


def _drawable(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and abs(value) <= GREATEST


def _runs(points: Iterable[Point]) -> Iterator[list[tuple[int, float]]]:
    """The stretches without a gap."""
    run: list[tuple[int, float]] = []
    for step, value in points:
        if value is not None and _drawable(value):
            run.append((step, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _path(points: Sequence[Point], frame: Frame) -> str:
    parts = []
    runs = list(_runs(points))
    if len(runs) > BUCKETS:  # more gaps than can be seen
        runs = [[point] for point in thinned([point for run in runs for point in run])]
    buckets = BUCKETS // len(runs) or 1 if runs else 0
    for run in runs:
        # A point alone is a line of no length, which round ends make a dot.
        at = [f"{frame.x(step):.1f},{frame.y(value):.1f}" for step, value in thinned(run, buckets)]
        parts.append("M" + "L".join(at if len(at) > 1 else at * 2))
    return "".join(parts)


def _band(band: Sequence[tuple[int, float, float]], frame: Frame) -> str:
    if not band:
        return ""
    there = [f"{frame.x(step):.1f},{frame.y(high):.1f}" for step, _, high in band]
    back = [f"{frame.x(step):.1f},{frame.y(low):.1f}" for step, low, _ in reversed(band)]
    return f"M{'L'.join(there + back)}Z"


def _dots(chart: Chart, frame: Frame) -> Iterator[tuple[float, float, str]]:
    if chart.marked:
        for line in chart.lines:
            for step, value in line.points[:: max(len(line.points) // BUCKETS, 1)]:
                if value is not None and _drawable(value):
                    yield round(frame.x(step), 1), round(frame.y(value), 1), f"step {step}: {number(value)}"
