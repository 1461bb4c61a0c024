"""What the tests of the decoders of Python's leftovers share: the fixtures, and what a source defines."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data" / "python"


def fixture(name: str) -> bytes:
    return (DATA / name).read_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A function or a class as its source has it. ``words``: attributes and texts that its own body uses."""

    name: str
    qualified_name: str
    parameters: tuple[str, ...] | None
    docstring: str
    words: frozenset[str]


def definitions(source: str) -> list[Definition]:
    """All functions and classes of a source, nested ones too."""
    found: list[Definition] = []

    def visit(node: ast.AST, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = owner
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = f"{owner}.{child.name}" if owner else child.name
                found.append(_definition(child, inner))
            visit(child, inner)

    visit(ast.parse(source), "")
    return found


def _definition(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, qualified: str) -> Definition:
    parameters = None
    if not isinstance(node, ast.ClassDef):
        known = node.args
        parameters = tuple(
            a.arg
            for a in (*known.posonlyargs, *known.args, known.vararg, *known.kwonlyargs, known.kwarg)
            if a is not None
        )
    return Definition(
        name=node.name,
        qualified_name=qualified,
        parameters=parameters,
        docstring=ast.get_docstring(node, clean=False) or "",
        words=frozenset(_words(node.body)),
    )


def _words(body: list[ast.stmt]) -> list[str]:
    """Attributes, calls' keywords and long texts that stand in a body, not in what is defined in it."""
    found: list[str] = []
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp)):
            continue
        if isinstance(node, ast.Attribute):
            found.append(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            found.append(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        stack += ast.iter_child_nodes(node)
    return found
