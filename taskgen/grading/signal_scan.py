"""Signals in the code of a Python file, from its syntax tree: nothing is compiled or run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set
from itertools import accumulate

from taskgen.grading import signal_rules as rules
from taskgen.grading.signal_rules import SignalKind
from taskgen.grading.signal_text import is_opaque_bytes, of_text

_TEST_PATH = re.compile(r"(?:^|[/\\])tests?(?:[/\\]|$)|(?:^|[/\\])test_\w*|\w_test\.py|conftest")
#: What these methods return for objects that equal everything.
_EQUALITY = {"__eq__": True, "__ne__": False}
#: Longer chains of attributes name nothing that the rules know.
_MAX_PARTS = 8

_Found = Iterator[tuple[SignalKind, int]]


def scan(tree: ast.Module, n_lines: int, changed: Set[int]) -> _Found:
    """(kind, line) of what stands in changed lines; the same pair may come more than once."""
    return _Scan(tree, n_lines, changed).run()


class _Scan:
    def __init__(self, tree: ast.Module, n_lines: int, changed: Set[int]) -> None:
        self._tree = tree
        self._changed = changed
        # How many of the lines 1..n are changed: whether any of a span is costs the same for any length.
        self._before = [0, *accumulate(int(n in changed) for n in range(1, n_lines + 2))]
        self._aliases = dict(_aliases(tree))

    def run(self) -> _Found:
        # Own stack: hostile files nest deeply. (node, whether it runs when called rather than at import)
        stack: list[tuple[ast.AST, bool]] = [(self._tree, False)]
        while stack:
            node, in_function = stack.pop()
            if isinstance(node, ast.Module) or not hasattr(node, "lineno") or self._is_changed(node):
                for kind in self._kinds(node, in_function):
                    yield kind, self._line(node)
            inner: set[int] = set()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = {id(child) for child in node.body}
            elif isinstance(node, ast.Lambda):
                inner = {id(node.body)}
            stack.extend((c, in_function or id(c) in inner) for c in ast.iter_child_nodes(node))

    def _span(self, node: ast.AST) -> tuple[int, int]:
        first = getattr(node, "lineno", 1)
        last = getattr(node, "end_lineno", None) or first
        return min(first, len(self._before) - 1), min(last, len(self._before) - 1)

    def _is_changed(self, node: ast.AST) -> bool:
        first, last = self._span(node)
        return self._before[last] > self._before[first - 1]

    def _line(self, node: ast.AST) -> int:
        """The first changed line of a node."""
        first, last = self._span(node)
        return next((n for n in range(first, last + 1) if n in self._changed), first)

    def _kinds(self, node: ast.AST, in_function: bool) -> Iterator[SignalKind]:
        match node:
            case ast.Import() | ast.ImportFrom():
                for name in _imported(node):
                    yield from self._name(name)
            case ast.Constant(value=str(text)):
                yield from of_text(text)
                if text in rules.ATTRIBUTES:
                    yield rules.ATTRIBUTES[text]
            case ast.Constant(value=bytes(data)):
                yield from of_text(data.decode("latin-1"))
                if is_opaque_bytes(data):
                    yield SignalKind.OPAQUE
            case ast.Name():
                yield from self._name(self._dotted(node))
            case ast.Attribute():
                yield from self._attribute(node)
            case ast.Subscript(ctx=ast.Store() | ast.Del()):
                yield from self._item_set(node.value)
            case ast.Call():
                yield from self._call(node, in_function)
            case ast.FunctionDef() | ast.Assign() | ast.AnnAssign():
                if _is_always_equal(node):
                    yield SignalKind.ALWAYS_EQUAL

    def _name(self, dotted: str) -> Iterator[SignalKind]:
        if (kind := rules.kind_of(dotted)) is not None:
            yield kind

    def _attribute(self, node: ast.Attribute) -> Iterator[SignalKind]:
        dotted = self._dotted(node)
        yield from self._name(dotted)
        if node.attr in rules.ATTRIBUTES:
            yield rules.ATTRIBUTES[node.attr]
        if not isinstance(node.ctx, ast.Load):
            yield from self._set(dotted)
            if node.attr in rules.FUNCTION_PARTS:
                yield SignalKind.MONKEY_PATCH

    def _set(self, dotted: str) -> Iterator[SignalKind]:
        """What it is to assign to, or delete, an attribute of that full name."""
        if not dotted:
            return
        if dotted in rules.IMPORT_STATE:
            yield SignalKind.IMPORT_SYSTEM
        elif dotted.partition(".")[0] in rules.CLOCKS:
            yield SignalKind.CLOCK
        else:
            yield SignalKind.MONKEY_PATCH

    def _item_set(self, value: ast.expr) -> Iterator[SignalKind]:
        """``sys.path[0] = x``, ``module.__dict__["name"] = x``, ``vars(module)["name"] = x``."""
        if self._dotted(value) in rules.IMPORT_STATE:
            yield SignalKind.IMPORT_SYSTEM
        elif isinstance(value, ast.Attribute) and value.attr == "__dict__" and (owner := self._dotted(value.value)):
            yield from self._set(owner + ".item")
        elif isinstance(value, ast.Call) and self._dotted(value.func) == "vars" and value.args:
            yield from self._set(owner + ".item" if (owner := self._dotted(value.args[0])) else "")

    def _call(self, node: ast.Call, in_function: bool) -> Iterator[SignalKind]:
        dotted = self._dotted(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if dotted in ("getattr", "setattr", "delattr") and len(node.args) >= 2:
            yield from self._by_name(dotted, node.args[0], node.args[1])
        if not in_function and dotted.startswith(rules.THREADS):
            yield SignalKind.IMPORT_THREADS
        if method in rules.LIST_CHANGES and dotted.rpartition(".")[0] in rules.IMPORT_STATE:
            yield SignalKind.IMPORT_SYSTEM
        reads = dotted in rules.READERS or method in rules.READING_METHODS
        if reads and (not in_function or _names_tests(node)):
            yield SignalKind.FILE_READ

    def _by_name(self, function: str, owner: ast.expr, name: ast.expr) -> Iterator[SignalKind]:
        """getattr and its kin on something imported: the attribute is as good as written out."""
        dotted = self._dotted(owner)
        if not dotted:
            return
        if function != "getattr":
            yield from self._set(f"{dotted}.item")
        elif isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield from self._name(f"{dotted}.{name.value}")
        elif dotted.partition(".")[0] in ("os", "sys", "gc", "inspect", "builtins", "importlib"):
            yield SignalKind.DYNAMIC_IMPORT  # which member is not to be seen

    def _dotted(self, node: ast.expr) -> str:
        """The full name of something imported or built in (``o.path`` is os.path after ``import os as o``), or ''."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute) and len(parts) < _MAX_PARTS:
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        known = self._aliases.get(node.id) or (node.id if node.id in rules.BUILTINS else "")
        return ".".join([known, *reversed(parts)]) if known else ""


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Local name -> full name, of imports anywhere in the file, and of ``name = imported``."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=other)):
                if full := found.get(other) or (other if other in rules.BUILTINS else ""):
                    found.setdefault(name, full)
    yield from found.items()


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif not node.level and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _names_tests(node: ast.AST) -> bool:
    """Whether a path in an expression looks like one of tests."""
    return any(
        isinstance(n, ast.Constant) and isinstance(n.value, str) and _TEST_PATH.search(n.value) for n in ast.walk(node)
    )


def _is_always_equal(node: ast.FunctionDef | ast.Assign | ast.AnnAssign) -> bool:
    """``__eq__`` that only returns True, or ``__ne__`` that only returns False."""
    values: list[ast.expr | None] = []
    if isinstance(node, ast.FunctionDef):
        name = node.name
        if name in _EQUALITY:
            values = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
    else:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        name = next((t.id for t in targets if isinstance(t, ast.Name)), "")
        if name in _EQUALITY and isinstance(node.value, ast.Lambda):
            values = [node.value.body]
    return bool(values) and all(isinstance(v, ast.Constant) and v.value is _EQUALITY[name] for v in values)
