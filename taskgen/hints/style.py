"""Where a written body departs from the file around it: what can be seen without running anything.

A file counts as having a habit only if it shows it often and without exception, so that nothing is said where people
differ. Python alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from tree_sitter import Node

from taskgen import syntax
from taskgen.fill import Site
from taskgen.languages.python_syntax import PYTHON
from taskgen.languages.python_text import docstring_node
from taskgen.syntax import Parsed

#: How often a file must show a habit.
MIN_BLOCKS, MIN_STRINGS, MIN_FUNCTIONS, MIN_LINES = 4, 8, 4, 60
MAX_FILE_BYTES = 1 << 20
#: Files that speak to a person at a terminal.
_SPEAKING = {"__main__", "cli", "main", "console", "setup"}


@dataclass(slots=True)
class _Seen:
    """Counts over a piece of code. ``indents``: columns that blocks are indented by; ``quotes``: of one-line strings
    that could have either; ``documented``: functions with a docstring."""

    indents: Counter[int]
    quotes: Counter[str]
    tabs: int = 0
    comments: int = 0
    functions: int = 0
    documented: int = 0
    prints: int = 0


def departures(site: Site, code: str) -> Iterator[str]:
    """What is other than in the file, as sentences without a full stop, the plainest first.

    ``code``: the lines of the body with their indentation.
    """
    around = "\n".join([*site.lines[: site.line], *site.lines[site.line + 1 :]]).encode("utf-8", "replace")
    parsed = _as_function(site, code)
    header = next((n for n in syntax.walk(parsed.root) if n.type == "function_definition"), None)
    block = None if header is None else header.child_by_field_name("body")
    if header is None or block is None or len(around) > MAX_FILE_BYTES:
        return
    theirs = _seen(file := syntax.parse(PYTHON, around), syntax.walk(file.root))
    ours = _seen(parsed, (n for n in syntax.walk(header) if n.id not in (header.id, block.id)))
    yield from _indentation(theirs, ours)
    yield from _quotes(theirs, ours)
    if theirs.functions >= MIN_FUNCTIONS and not theirs.documented and docstring_node(block) is not None:
        yield "Functions in this file have no docstrings"
    if len(site.lines) >= MIN_LINES and not theirs.comments and ours.comments:
        yield "The code in this file has no comments"
    if ours.prints and not theirs.prints and PurePosixPath(site.path).stem not in _SPEAKING:
        yield "This is a library: it returns values and raises errors, and does not print"


def _as_function(site: Site, code: str) -> Parsed:
    """The body below a header of its own, one column to the left."""
    indent = site.indent
    opening = f"if 1:\n{indent[:-1]}" if len(indent) > 1 else ""
    return syntax.parse(PYTHON, f"{opening}def body():\n{code}\n".encode("utf-8", "replace"))


def _seen(parsed: Parsed, nodes: Iterable[Node]) -> _Seen:
    seen = _Seen(Counter(), Counter())
    for node in nodes:
        match node.type:
            case "block":
                _count_block(parsed, node, seen)
            case "string":
                _count_string(parsed, node, seen)
            case "comment":
                seen.comments += not parsed.text(node).startswith("#!")
            case "function_definition":
                body = node.child_by_field_name("body")
                seen.functions += 1
                seen.documented += body is not None and docstring_node(body) is not None
            case "call":
                function = node.child_by_field_name("function")
                seen.prints += function is not None and parsed.text(function) == "print"
    return seen


def _count_block(parsed: Parsed, block: Node, seen: _Seen) -> None:
    if block.parent is None or block.start_point[0] == block.parent.start_point[0]:
        return
    line_start = parsed.source.rfind(b"\n", 0, block.start_byte) + 1
    if b"\t" in parsed.source[line_start : block.start_byte]:
        seen.tabs += 1
    else:
        seen.indents[block.start_point[1] - block.parent.start_point[1]] += 1


def _count_string(parsed: Parsed, node: Node, seen: _Seen) -> None:
    text = parsed.text(node).lstrip("rRuUbBfF")
    quote, inner = text[:1], text[1:-1]
    if not text.startswith(('"""', "'''")) and not ("'" in inner or '"' in inner or "\\" in inner):
        seen.quotes[quote] += 1


def _indentation(theirs: _Seen, ours: _Seen) -> Iterator[str]:
    if theirs.tabs >= MIN_BLOCKS and not theirs.indents and ours.indents:
        yield "This file is indented with tabs"
    if sum(theirs.indents.values()) < MIN_BLOCKS or theirs.tabs or len(theirs.indents) != 1:
        return
    (unit,) = theirs.indents
    if ours.tabs or any(step != unit for step in ours.indents):
        yield f"This file is indented by {unit} spaces"


def _quotes(theirs: _Seen, ours: _Seen) -> Iterator[str]:
    if sum(theirs.quotes.values()) >= MIN_STRINGS and len(theirs.quotes) == 1:
        (quote,) = theirs.quotes
        if any(other != quote for other in ours.quotes):
            kind = "double" if quote == '"' else "single"
            yield f"Strings in this file are in {kind} quotes"
