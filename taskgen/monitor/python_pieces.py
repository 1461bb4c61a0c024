"""Python code, or pieces of it, as syntax trees: as much of it as parses."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator


def parsed(text: str) -> Iterator[ast.Module]:
    """The syntax trees of code, or of a piece of code: as much of it as parses."""
    text = textwrap.dedent(text.replace("\0", " ").expandtabs())
    for attempt in (text, "if 1:\n" + textwrap.indent(text, " "), "try:\n pass\n" + text):
        if (tree := _parse(attempt)) is not None:
            yield tree
            return
    for chunk in _chunks(text):
        if (tree := _parse(chunk)) is None and (tree := _parse(chunk.rstrip() + "\n    pass")) is None:
            for line in chunk.splitlines():
                bare = line.strip()
                tree = _parse(bare) or (_parse(f"{bare} pass") if bare.endswith(":") else None)
                if tree is not None:
                    yield tree
        else:
            yield tree


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _chunks(text: str) -> Iterator[str]:
    """Pieces that begin at lines without indentation."""
    lines: list[str] = []
    for line in text.splitlines():
        if lines and line[:1] not in ("", " ", "\t", ")", "]", "}"):
            yield textwrap.dedent("\n".join(lines))
            lines = []
        lines.append(line)
    if lines:
        yield textwrap.dedent("\n".join(lines))
