"""Text of a Python file's pieces: docstrings without their quotes, headers on one line."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from taskgen import syntax
from taskgen.syntax import Parsed

_OPENING, _CLOSING = {"(", "[", "{"}, {")", "]", "}"}
#: Between tokens these count as blanks.
_BLANK = {"comment", "line_continuation"}


def docstring_node(body: Node) -> Node | None:
    """The docstring's expression statement of a block, if its first statement is one."""
    statements = [c for c in body.named_children if c.type != "comment"]
    if not statements or statements[0].type != "expression_statement":
        return None
    inner = statements[0].named_children
    return statements[0] if len(inner) == 1 and inner[0].type in ("string", "concatenated_string") else None


def string_value(literal: str) -> str:
    """The text between the quotes of a string literal, prefixes dropped, escapes left as they are."""
    text = literal.strip().lstrip("rRuUbBfF")
    for quotes in ('"""', "'''", '"', "'"):
        if text.startswith(quotes) and text.endswith(quotes) and len(text) >= 2 * len(quotes):
            return text[len(quotes) : -len(quotes)]
    return text


def clean_docstring(literal: str) -> str:
    """A docstring without quotes and common indentation (PEP 257)."""
    lines = string_value(literal).expandtabs().splitlines()
    indents = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    margin = min(indents, default=0)
    cleaned = [line.strip() for line in lines[:1]] + [line[margin:].rstrip() for line in lines[1:]]
    return "\n".join(cleaned).strip("\n")


def one_line(parsed: Parsed, node: Node, end: int) -> str:
    """The source of a node up to byte ``end`` on one line: comments dropped, blanks joined, strings kept."""
    parts: list[str] = []
    last: Node | None = None
    blank = False
    for token in _tokens(node):
        if token.start_byte >= end:
            break
        if token.type in _BLANK:
            continue
        gap = last is not None and last.end_byte < token.start_byte
        if token.type in _CLOSING and last is not None and last.type == "," and _ends_parameters(token):
            parts.pop()
        elif gap and not blank and token.type not in _CLOSING:
            parts.append(" ")
        parts.append(parsed.text(token))
        last, blank = token, token.type in _OPENING
    return "".join(parts)


def _tokens(node: Node) -> Iterator[Node]:
    """The leaves of a node in source order; a string is one."""
    stack = [node]
    while stack:
        current = stack.pop()
        if current.child_count and current.type != "string":
            stack.extend(reversed(current.children))
        else:
            yield current


def _ends_parameters(token: Node) -> bool:
    """Whether a bracket closes a list that means the same without its last comma."""
    return token.parent is not None and token.parent.type in ("parameters", "argument_list")


def strings(parsed: Parsed, node: Node) -> Iterator[tuple[str, Node]]:
    """The string literals below a node: value, node."""
    for inner in syntax.walk(node):
        if inner.type == "string":
            yield string_value(parsed.text(inner)), inner
