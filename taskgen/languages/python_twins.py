"""Copies of Python tests under random names, some of which expect something wrong.

A copy differs from its test by name and, where it is to be wrong, by one expectation: a constant of an assertion, a
compared value, or an expected exception. Which value stands there instead is fixed by the test, names are drawn anew
each time: code under test that looks at its caller sees two tests of equal looks, and not which of them is right.
"""

from __future__ import annotations

import ast
import itertools
import random
import re
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from taskgen.languages.python_source import parse
from taskgen.syntax import Edit, apply_edits

#: Wrong expectations tried a test function; the first assertions are rarely all about something else.
MAX_VARIANTS = 3
_CALLS = re.compile(r"^(?:assert|check|verify|expect)\w*$")
_RAISES = {"raises", "assertRaises", "assertRaisesRegex", "assertWarns", "warns"}
_OTHER_ERRORS = ("ZeroDivisionError", "BufferError", "ConnectionResetError")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Test files to be laid over a tree.

    Attributes:
        right, wrong: ids of copies that must pass, and that must not.
        names: id of a copy -> (id of its test, number of the changed expectation or -1).
    """

    files: dict[str, bytes]
    right: frozenset[str]
    wrong: frozenset[str]
    names: dict[str, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class _Function:
    """A test function: its bytes with decorators, where its name stands, and the edits that make it wrong."""

    start: int
    end: int
    name_at: int
    variants: tuple[Edit, ...]


def make(tests: Mapping[str, bytes], chosen: Iterable[tuple[str, int]]) -> Copies:
    """Copy tests: ``chosen`` are (test id, number of the expectation to change), many a test if need be.

    A test whose function is not found, or that has no such expectation, is left out.
    """
    wanted: dict[str, dict[str, set[tuple[str, int]]]] = defaultdict(lambda: defaultdict(set))
    for test, number in chosen:
        path, _, rest = test.partition("::")
        wanted[path][rest.split("[")[0]].add((test, number))
    files: dict[str, bytes] = {}
    names: dict[str, tuple[str, int]] = {}
    for path, functions in sorted(wanted.items()):
        place = _new_path(path)
        if place and path in tests and (copied := _copy(tests[path], functions, place)):
            files[place] = copied[0]
            names |= copied[1]
    right = frozenset(name for name, (_, number) in names.items() if number < 0)
    return Copies(files=files, right=right, wrong=frozenset(names) - right, names=names)


def expectations(tests: Mapping[str, bytes], ids: Iterable[str]) -> list[tuple[str, int]]:
    """All that ``make`` could change in tests: (test id, number)."""
    found = []
    wanted = sorted(ids)
    paths = {test.partition("::")[0] for test in wanted}
    parsed = {path: _functions(tests[path]) for path in paths if path in tests}
    for test in wanted:
        path, _, rest = test.partition("::")
        function = parsed.get(path, {}).get(rest.split("[")[0])
        found += [(test, i) for i in range(len(function.variants))] if function else []
    return found


def _new_path(path: str) -> str:
    folder, _, file = path.rpartition("/")
    word = secrets.token_hex(5)
    if file.startswith("test_"):
        name = f"test_{word}.py"
    elif file.endswith("_test.py"):
        name = f"t{word}_test.py"
    else:
        return ""
    return f"{folder}/{name}" if folder else name


def _copy(
    source: bytes, functions: Mapping[str, set[tuple[str, int]]], place: str
) -> tuple[bytes, dict[str, tuple[str, int]]] | None:
    found = _functions(source)
    classes: dict[str, str] = {}
    names: dict[str, tuple[str, int]] = {}
    edits = []
    for qualified, tests in sorted(functions.items()):
        function = found.get(qualified)
        if function is None:
            continue
        owners, _, bare = qualified.rpartition("::")
        numbers = sorted({number for _, number in tests if number < len(function.variants)})
        versions = [-1, *numbers]
        random.SystemRandom().shuffle(versions)
        pieces = []
        for number in versions:
            name = f"{bare.split('_')[0]}_{secrets.token_hex(5)}"
            pieces.append(_version(source, function, bare, name, number))
            scope = "".join(
                f"{classes.setdefault(o, 'Test' + secrets.token_hex(5))}::" for o in filter(None, owners.split("::"))
            )
            for test, of in tests:
                if number in (-1, of):
                    names[f"{place}::{scope}{name}{_parameters(test)}"] = (test, number)
        line = source.rfind(b"\n", 0, function.start) + 1
        edits.append(
            Edit(start=function.start, end=function.end, text=(b"\n\n" + source[line : function.start]).join(pieces))
        )
    if not edits:
        return None
    result = apply_edits(source, edits)
    for old, new in classes.items():
        result = re.sub(rb"\b" + old.encode() + rb"\b", new.encode(), result)
    return result, names


def _parameters(test: str) -> str:
    _, bracket, rest = test.partition("[")
    return bracket + rest


def _version(source: bytes, function: _Function, old: str, new: str, number: int) -> bytes:
    edits = [Edit(start=function.name_at, end=function.name_at + len(old.encode()), text=new.encode())]
    if number >= 0:
        edits.append(function.variants[number])
    shifted = [Edit(start=e.start - function.start, end=e.end - function.start, text=e.text) for e in edits]
    return apply_edits(source[function.start : function.end], shifted)


# -- what is in a file -----------------------------------------------------------------------------------


def _functions(source: bytes) -> dict[str, _Function]:
    """``Class::test`` -> its function, of all functions at the top level and in classes there."""
    try:
        tree = parse(source)
    except SyntaxError:
        return {}
    text = _Text(source)
    return {name: text.function(node, name) for name, node in _nodes(tree.body, "")}


def _nodes(body: Sequence[ast.stmt], owner: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _nodes(node.body, f"{owner}{node.name}::")


class _Text:
    """A source with its lines' offsets."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> _Function:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self.at(node.lineno, node.col_offset)
        name_at = self.source.index(b"def", start) + 3
        name_at = self.source.index(node.name.encode(), name_at)
        if node.decorator_list:
            first = self.span(node.decorator_list[0])[0]
            start = self.source.rindex(b"@", 0, first)
        rng = random.Random(name)
        variants = (edit for statement in ast.walk(node) for edit in self._wrong(statement, rng))
        return _Function(
            start,
            self.at(node.end_lineno, node.end_col_offset),
            name_at,
            tuple(itertools.islice(variants, MAX_VARIANTS)),
        )

    def _wrong(self, node: ast.AST, rng: random.Random) -> Iterator[Edit]:
        """The edit that makes an assertion expect something else; nothing for what is no assertion."""
        if isinstance(node, ast.Assert):
            yield from self._wrong_test(node.test, rng)
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _RAISES and node.args:
                start, end = self.span(node.args[0])
                yield Edit(start=start, end=end, text=rng.choice(_OTHER_ERRORS).encode())
            elif _CALLS.match(name) and node.args:
                # Most assertions are (actual, expected); some are written the other way round.
                first, second = node.args[0], node.args[min(1, len(node.args) - 1)]
                yield from self._wrong_value(first if _calls(second) and not _calls(first) else second, rng)

    def _wrong_test(self, test: ast.expr, rng: random.Random) -> Iterator[Edit]:
        if isinstance(test, ast.Compare):
            right = test.comparators[-1]
            expected_left = isinstance(test.ops[-1], ast.In | ast.NotIn) or (_calls(right) and not _calls(test.left))
            yield from self._wrong_value(test.left if expected_left else right, rng)
            return
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test = test.operand
        if not isinstance(test, ast.BoolOp):
            start, end = self.span(test)
            word = repr(_word(rng))
            yield Edit(start=start, end=end, text=b"((" + self.source[start:end] + b") == " + word.encode() + b")")

    def _wrong_value(self, value: ast.expr, rng: random.Random) -> Iterator[Edit]:
        constants = [node for node in _constants(value) if _changed(node.value, rng) is not None]
        start, end = self.span(value)
        if constants:
            chosen = rng.choice(constants)
            start, end = self.span(chosen)
            yield Edit(start=start, end=end, text=repr(_changed(chosen.value, rng)).encode())
        elif not isinstance(value, ast.Starred):
            yield Edit(
                start=start,
                end=end,
                text=b"(" + self.source[start:end] + b", " + str(rng.randrange(2, 99)).encode() + b")",
            )


def _calls(value: ast.expr) -> bool:
    return any(isinstance(node, ast.Call) for node in ast.walk(value))


def _constants(value: ast.expr) -> list[ast.Constant]:
    """Constants of an expected value that are no part of a formatted string, an index or a call's input."""
    if isinstance(value, ast.Constant):
        return [value]
    if isinstance(value, ast.JoinedStr | ast.Subscript | ast.Attribute | ast.Lambda):
        return []
    return [c for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr) for c in _constants(child)]


def _word(rng: random.Random) -> str:
    """A word as tests use them."""
    return "".join(rng.choice("abcdefghiklmnoprstuvwxy") for _ in range(rng.randrange(3, 8)))


def _changed(value: object, rng: random.Random) -> object:
    """Another value of the same kind; None if there is none that would look the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.randrange(1, 9)
    if isinstance(value, float):
        return value + rng.randrange(1, 9)
    if isinstance(value, str):
        return _changed_text(value, rng)
    if isinstance(value, bytes):
        return _changed_text(value.decode("latin-1"), rng).encode("latin-1", "replace")
    return None


def _changed_text(value: str, rng: random.Random) -> str:
    places = [i for i, c in enumerate(value) if c.isalnum() and c.isascii()]
    if not places:
        return value + _word(rng)
    at = rng.choice(places)
    letters = "0123456789" if value[at].isdigit() else "abcdefghiklmnoprstuvwxy"
    return value[:at] + rng.choice([c for c in letters if c != value[at].lower()]) + value[at + 1 :]
