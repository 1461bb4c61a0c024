"""Mutants of Python definitions: one small fault each, in the body, by byte spans of the source.

The operators are those that mutation tools share (comparison, arithmetic, logic, constants, conditions, statements,
returns). Docstrings, annotations, decorators, messages of errors and formatted text are left alone: tests need not
look at those.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from taskgen.types import Definition

_COMPARE = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*",
    ast.BitAnd: "|", ast.BitOr: "&", ast.BitXor: "&", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip
#: Functions have their own turn; a class's statements are mostly declarations.
_LEFT_ALONE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.JoinedStr, ast.Import, ast.ImportFrom)
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A faulty version of a file.

    Attributes:
        definition: qualified name of what holds the fault.
        operator: the kind of fault; line: where it is, counted from 1.
        source: the whole file.
    """

    path: str
    definition: str
    operator: str
    line: int
    source: bytes


@dataclass(frozen=True, slots=True)
class _Fault:
    operator: str
    line: int
    start: int
    end: int
    text: bytes


def mutants(source: bytes, definitions: Sequence[Definition], *, limit: int, seed: int) -> list[Mutant]:
    """At most ``limit`` mutants of definitions of one file, spread evenly over definitions and operators.

    The same arguments give the same mutants. Each parses, and differs from the source and from the others.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    text = _Text(source)
    groups: dict[tuple[str, str], list[_Fault]] = defaultdict(list)
    seen: set[tuple[int, int, bytes]] = set()
    for definition in sorted(definitions, key=lambda d: d.end_line - d.start_line):
        for node in _within(tree, definition):
            for fault in text.faults(node):
                key = (fault.start, fault.end, fault.text)
                if key not in seen and source[fault.start : fault.end] != fault.text:
                    seen.add(key)
                    groups[definition.qualified_name, fault.operator].append(fault)
    path = definitions[0].path if definitions else ""
    found: list[Mutant] = []
    for (name, _), fault in _in_turn(groups, random.Random(seed)):
        mutated = source[: fault.start] + fault.text + source[fault.end :]
        if len(found) < limit and _parses(mutated):
            found.append(Mutant(path=path, definition=name, operator=fault.operator, line=fault.line, source=mutated))
    return found


def _in_turn(
    groups: dict[tuple[str, str], list[_Fault]], rng: random.Random
) -> Iterator[tuple[tuple[str, str], _Fault]]:
    """One fault of each group after another, groups and their faults in random order."""
    order = sorted(groups)
    rng.shuffle(order)
    for faults in groups.values():
        rng.shuffle(faults)
    while order:
        order = [key for key in order if groups[key]]
        for key in order:
            yield key, groups[key].pop()


def _parses(source: bytes) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


def _within(tree: ast.Module, definition: Definition) -> list[ast.stmt]:
    """The bodies of the functions that lie in a definition's lines, docstrings left out."""
    found: list[ast.stmt] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            definition.start_line <= node.lineno and (node.end_lineno or 0) <= definition.end_line
        ):
            found += node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return found


class _Text:
    """A source, and the faults that its nodes can be given."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def faults(self, statement: ast.stmt) -> Iterator[_Fault]:
        """All faults of a statement and what is in it."""
        for node in _worth_changing(statement):
            yield from self._statement_faults(node) if isinstance(node, ast.stmt) else self._expression_faults(node)

    def _replaced(self, operator: str, node: ast.expr | ast.stmt, text: bytes) -> _Fault:
        start, end = self.span(node)
        return _Fault(operator, node.lineno, start, end, text)

    def _statement_faults(self, node: ast.stmt) -> Iterator[_Fault]:
        if isinstance(node, _SIMPLE):
            yield self._replaced("statement removed", node, b"pass")
        elif isinstance(node, ast.Raise):
            yield self._replaced("error not raised", node, b"pass")
        elif isinstance(node, ast.Return) and not _is_none(node.value):
            yield self._replaced("returns None", node, b"return None")
        elif isinstance(node, ast.Break):
            yield self._replaced("break", node, b"continue")
        elif isinstance(node, ast.Continue):
            yield self._replaced("continue", node, b"break")
        elif isinstance(node, ast.If | ast.While):
            yield self._negated(node.test)

    def _negated(self, test: ast.expr) -> _Fault:
        start, end = self.span(test)
        return _Fault("condition negated", test.lineno, start, end, b"not (" + self.source[start:end] + b")")

    def _expression_faults(self, node: ast.AST) -> Iterator[_Fault]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from self._operator("comparison", node.left, node.comparators[0], _COMPARE[type(node.ops[0])])
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not _is_text(node.left):
            yield from self._operator("arithmetic", node.left, node.right, _ARITHMETIC[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            other = "or" if isinstance(node.op, ast.And) else "and"
            yield from self._operator("logic", node.values[0], node.values[1], other)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            start, end = self.span(node.operand)
            yield self._replaced("not removed", node, b"(" + self.source[start:end] + b")")
        elif isinstance(node, ast.IfExp):
            yield self._negated(node.test)
        elif isinstance(node, ast.Constant) and (text := _other(node.value)):
            yield self._replaced("constant", node, text)

    def _operator(self, kind: str, left: ast.expr, right: ast.expr, other: str) -> Iterator[_Fault]:
        """Between two operands stand the operator, white space and brackets."""
        start, end = self.span(left)[1], self.span(right)[0]
        between = self.source[start:end]
        word = between.strip(b" \t()\r\n\\")
        if word and b"#" not in between and b"\n" not in word:
            at = start + between.index(word)
            yield _Fault(kind, left.lineno, at, at + len(word), other.encode())


def _worth_changing(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is below it, without annotations, messages, formatted text and definitions."""
    if isinstance(
        node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.JoinedStr | ast.Import | ast.ImportFrom
    ):
        return  # functions have their own turn
    yield node
    if isinstance(node, ast.Raise | ast.Assert):
        return
    skipped: Iterable[ast.AST | None] = [node.annotation] if isinstance(node, ast.AnnAssign) else []
    for child in ast.iter_child_nodes(node):
        if child not in skipped:
            yield from _worth_changing(child)


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))


def _other(value: object) -> bytes:
    """Another constant of the same kind; nothing for those that may be mere messages."""
    if isinstance(value, bool):
        return repr(not value).encode()
    if isinstance(value, int):
        return repr(value + 1).encode()
    if isinstance(value, float):
        return repr(value + 1.0).encode()
    if isinstance(value, str) and len(value) <= 12 and "\n" not in value:
        return repr(value + "x" if value else "x").encode()
    if isinstance(value, bytes) and len(value) <= 12:
        return repr(value + b"x").encode()
    return b""
