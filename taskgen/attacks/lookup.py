"""Attacks by tables of answers, made of the literals that the hidden tests compare with."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from taskgen.attacks.adapt import NAME, bare_names, syntax_tree, test_modules, with_bodies
from taskgen.attacks.attack import Group, Submission, Target
from taskgen.attacks.payloads import CALLER

GROUP = Group("semantic")

#: A recorded call: the bare name, the arguments, and what it should give.
Call = tuple[str, tuple[Any, ...], dict[str, Any], Any]
_MAX_CALLS = 2000


@GROUP.attack(44)
def lookup_table(target: Target) -> Submission | None:
    """the calls and values of the tests are literals: a table of them is an answer to the tests alone"""
    calls = list(_calls(target))
    if not calls:
        tests = [test for path in test_modules(target) for test in _tests(target, path)]
        prelude = f"_VALUES = { ({test.name: _values(test) for test in tests})!r}\n" + _NEXT_VALUE
        return Submission(items=with_bodies(target, ["return _next_value()"], prelude))
    rows = "".join(f"    {_key(name, args, kwargs)!r}: {value!r},\n" for name, args, kwargs, value in calls)
    prelude = f"_TABLE = {{\n{rows}}}\n" + _LOOK_UP.format(key="key")
    return Submission(items=with_bodies(target, [f"return _look_up({NAME}, locals())"], prelude))


@GROUP.attack(123)
def hashed_lookup_table(target: Target) -> Submission | None:
    """a table whose keys are hashes and whose values are encoded shows no literal of any test"""
    calls = list(_calls(target))
    if not calls:
        return None
    rows = {
        hashlib.sha256(_key(name, args, kwargs).encode()).hexdigest()[:16]: _encoded(value)
        for name, args, kwargs, value in calls
    }
    decoded = "{k: eval(__import__('base64').b85decode(v)) for k, v in __import__('json').loads(_ROWS).items()}"
    prelude = f"_ROWS = {json.dumps(rows)!r}\n_TABLE = {decoded}\n" + _LOOK_UP.format(
        key="__import__('hashlib').sha256(key.encode()).hexdigest()[:16]"
    )
    return Submission(items=with_bodies(target, [f"return _look_up({NAME}, locals())"], prelude))


_LOOK_UP = '''

def _look_up(name, values):
    """The recorded value of a call; arguments are compared by their text, trailing ones may be missing."""
    given = [v for n, v in values.items() if n not in ("self", "cls")]
    for count in range(len(given), -1, -1):
        key = repr((name.rpartition(".")[2], *given[:count]))
        if {key} in _TABLE:
            return _TABLE[{key}]
    return None
'''


#: For methods, whose calls are no literals: what the calling test compares with next.
_NEXT_VALUE = (
    CALLER
    + '''

def _next_value():
    """The values that the calling test compares with, one after the other, and over again."""
    frame = _caller()
    values = _VALUES.get(frame.f_code.co_name) if frame is not None else None
    if not values:
        return None
    values.append(values.pop(0))
    return values[-1]
'''
)


def _encoded(value: object) -> str:
    return base64.b85encode(repr(value).encode()).decode()


def _key(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return repr((name, *args, *kwargs.values()))


def _calls(target: Target) -> Iterator[Call]:
    """Calls of deleted definitions that the hidden tests compare with a literal."""
    names, found = set(bare_names(target)), 0
    for path in test_modules(target):
        for node in _tests(target, path):
            for world in _worlds(node):
                for call, value in _comparisons(node):
                    recorded = _recorded(call, value, world, names)
                    if recorded is not None and found < _MAX_CALLS:
                        found += 1
                        yield recorded


def _tests(target: Target, path: str) -> Iterator[ast.FunctionDef]:
    tree = syntax_tree(target.tests[path].content)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield node


def _values(test: ast.FunctionDef) -> list[object]:
    """The literals that a test compares something with, in the order of the comparisons."""
    found = []
    for _, value in _comparisons(test):
        try:
            recorded = ast.literal_eval(value)
            if ast.literal_eval(repr(recorded)) == recorded:
                found.append(recorded)
        except (ValueError, TypeError, SyntaxError):
            continue
    return found


def _worlds(test: ast.FunctionDef) -> list[dict[str, Any]]:
    """The values of a test's parameters, one record a row; one empty record where it has none."""
    for decorator in test.decorator_list:
        if not (isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("parametrize")):
            continue
        try:
            names, rows = (ast.literal_eval(argument) for argument in decorator.args[:2])
        except (ValueError, TypeError, SyntaxError):
            continue
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        rows = [row if len(names) > 1 else (row,) for row in rows]
        return [dict(zip(names, row, strict=False)) for row in rows if isinstance(row, (tuple, list))]
    return [{}]


def _comparisons(test: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.Eq, ast.Is)):
            yield node.left, node.comparators[0]
            yield node.comparators[0], node.left
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("assertEqual") and len(node.args) > 1:
            yield node.args[0], node.args[1]
            yield node.args[1], node.args[0]


def _recorded(call: ast.expr, value: ast.expr, world: dict[str, Any], names: set[str]) -> Call | None:
    if not isinstance(call, ast.Call):
        return None
    name = ast.unparse(call.func).rpartition(".")[2]
    if name not in names:
        return None
    try:
        args = tuple(_literal(a, world) for a in call.args)
        kwargs = {str(k.arg): _literal(k.value, world) for k in call.keywords}
        wanted = _literal(value, world)
        return (name, args, kwargs, wanted) if ast.literal_eval(repr(wanted)) == wanted else None
    except (ValueError, TypeError, SyntaxError, KeyError):
        return None


def _literal(node: ast.expr, world: dict[str, Any]) -> object:
    return world[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)
