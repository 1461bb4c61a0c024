"""tree-sitter, in the little of it that taskgen needs: parse, walk, and edit by byte spans.

Nodes are only valid while their tree is alive; a ``Parsed`` keeps both together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tree_sitter import Language, Node, Parser, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replace the bytes [start, end) of a file by ``text``."""

    start: int
    end: int
    text: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A parsed file."""

    source: bytes
    tree: Tree

    @property
    def root(self) -> Node:
        return self.tree.root_node

    def text(self, node: Node) -> str:
        """The source of a node."""
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "replace")


def parse(language: Language, source: bytes) -> Parsed:
    """Parse a file; errors in it become ERROR nodes (see ``has_errors``)."""
    return Parsed(source=source, tree=Parser(language).parse(source))


def has_errors(parsed: Parsed) -> bool:
    """Whether the file does not follow its grammar."""
    return parsed.root.has_error


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, in source order, without recursion (hostile files nest deeply)."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(current.children))


def ancestors(node: Node) -> Iterator[Node]:
    """The node's parents, the nearest first."""
    while (parent := node.parent) is not None:
        yield parent
        node = parent


def line_span(source: bytes, start: int, end: int) -> tuple[int, int]:
    """Widen a byte span to whole lines, the last newline included, if only blanks surround it."""
    first = source.rfind(b"\n", 0, start) + 1
    newline = source.find(b"\n", end)
    last = len(source) if newline < 0 else newline + 1
    if source[first:start].strip() or source[end:last].strip():
        return start, end
    return first, last


def merge(edits: Iterable[Edit]) -> list[Edit]:
    """Sort edits; one inside a larger one is dropped, overlapping deletions are joined, insertions come first."""
    merged: list[Edit] = []
    for edit in sorted(set(edits), key=lambda e: (e.start, e.end > e.start, -e.end, e.text)):
        last = merged[-1] if merged else None
        if last is None or edit.start >= last.end:
            merged.append(edit)
        elif edit.end > last.end:
            merged[-1] = Edit(start=last.start, end=edit.end, text=last.text + edit.text)
    return merged


def apply_edits(source: bytes, edits: Iterable[Edit]) -> bytes:
    """Return ``source`` with the edits made; see ``merge`` for edits that overlap."""
    parts, position = [], 0
    for edit in merge(edits):
        parts += [source[position : edit.start], edit.text]
        position = edit.end
    return b"".join([*parts, source[position:]])
