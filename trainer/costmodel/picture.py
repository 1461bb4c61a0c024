"""A timeline as an SVG file: one lane for each kind of work, bars over milliseconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

from trainer.costmodel.timeline import Bar, Lane, ends

WIDTH, LEFT, RIGHT, TOP, LANE, TICKS = 900, 120, 20, 40, 34, 8
LEAST = 1.0  # pixels: what is narrower is drawn together with its neighbours
COLOURS = {Lane.INBOUND: "#4c78a8", Lane.NS: "#f58518", Lane.OUTBOUND: "#54a24b", Lane.ELEMENTWISE: "#b279a2"}


def picture(bars: Sequence[Bar], title: str) -> str:
    """The SVG text. Chunks alternate in shade; bars of one lane that are too narrow to be seen are merged."""
    total = ends(bars) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / total
    bottom = TOP + LANE * len(Lane)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 40}" font-family="sans-serif" '
        f'font-size="13" role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">',
        f'<rect width="{WIDTH}" height="{bottom + 40}" fill="white"/>',
        f'<text x="{WIDTH // 2}" y="22" text-anchor="middle" font-weight="bold" fill="#222">{escape(title)}</text>',
    ]
    for row, lane in enumerate(Lane):
        y = TOP + LANE * row
        parts.append(f'<text x="{LEFT - 10}" y="{y + 21}" text-anchor="end" fill="#222">{lane}</text>')
        for start, end, chunk in _merged((bar for bar in bars if bar.lane is lane), LEAST / scale):
            shade = "1" if chunk % 2 == 0 else "0.65"
            parts.append(
                f'<rect x="{LEFT + start * scale:.1f}" y="{y + 4}" width="{max((end - start) * scale, 0.3):.1f}" '
                f'height="{LANE - 8}" fill="{COLOURS[lane]}" fill-opacity="{shade}"/>'
            )
    parts.append(f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}" stroke="#555"/>')
    for tick in _ticks(total * 1000):
        x = LEFT + tick / 1000 * scale
        parts.append(f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}" stroke="#555"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle" fill="#555">{tick:g}</text>')
    parts.append(f'<text x="{LEFT - 10}" y="{bottom + 20}" text-anchor="end" fill="#555">ms</text>')
    return "\n".join([*parts, "</svg>", ""])


def _merged(bars: Iterable[Bar], least: float) -> list[tuple[float, float, int]]:
    merged: list[tuple[float, float, int]] = []
    for bar in bars:
        if merged and merged[-1][1] - merged[-1][0] < least and bar.start_s - merged[-1][1] < least:
            merged[-1] = (merged[-1][0], bar.end_s, merged[-1][2])
        else:
            merged.append((bar.start_s, bar.end_s, bar.chunk))
    return merged


def _ticks(total_ms: float) -> list[float]:
    """About ``TICKS`` round numbers from 0 on."""
    rough = total_ms / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    return [step * i for i in range(int(total_ms / step) + 1)]
