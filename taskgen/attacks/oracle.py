"""Attacks by answers that are taken from the tests: read at run time, looked up, or found by trying."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from taskgen.attacks.adapt import NAME, bare_names, cheat, syntax_tree, test_modules, with_bodies
from taskgen.attacks.attack import Group, Submission, Target
from taskgen.attacks.payloads import ALWAYS, CALLER, TEST_TEXTS

GROUP = Group("semantic")

#: A recorded call: the bare name, the arguments, and what it should give.
Call = tuple[str, tuple[Any, ...], dict[str, Any], Any]
_MAX_CALLS = 2000

GROUP.add(
    43,
    "frame-peek",
    "the statement that called stands in the caller's frame, and so does what it compares with",
    cheat(
        ["return _peek()"],
        CALLER
        + '''

def _peek():
    """Evaluate the other side of the comparison that the calling test is about to make."""
    import ast
    import linecache

    frame = _caller()
    if frame is None:
        return None
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if not (isinstance(node, ast.stmt) and node.lineno <= frame.f_lineno <= node.end_lineno):
            continue
        wanted = None
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare):
            wanted = node.test.comparators[-1]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and len(node.value.args) > 1:
            wanted = node.value.args[1]
        if wanted is not None:
            try:
                return eval(compile(ast.Expression(wanted), "?", "eval"), frame.f_globals, frame.f_locals)
            except Exception:
                continue
    for name in ("expected", "expect", "want", "wanted", "result", "output", "out", "answer"):
        if name in frame.f_locals:
            return frame.f_locals[name]
    return None
''',
    ),
)


# --- Tables --------------------------------------------------------------------------------------


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


# --- Found at run time ---------------------------------------------------------------------------

GROUP.add(
    45,
    "tests-read-at-run-time",
    "while the tests run they lie on disk: the code reads them, finds its own call, and returns what is expected",
    cheat(
        [f"return _read_answer({NAME}, locals())"],
        TEST_TEXTS
        + '''

def _read_answer(name, values, known={}):
    """What the tests on disk compare this very call with."""
    import ast

    if not known:
        known[None] = None
        for _, text in _test_texts():
            try:
                nodes = list(ast.walk(ast.parse(text)))
            except (SyntaxError, ValueError):
                continue
            for node in nodes:
                if isinstance(node, ast.Compare) and isinstance(node.left, ast.Call):
                    call, value = node.left, node.comparators[0]
                elif isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.args[0], ast.Call):
                    call, value = node.args[:2]
                elif isinstance(node, ast.Tuple) and len(node.elts) > 1:
                    try:
                        *given, answer = ast.literal_eval(node)
                        known.setdefault(repr(given), answer)
                        known.setdefault(repr([answer]), given[0])
                    except (ValueError, TypeError):
                        pass
                    continue
                else:
                    continue
                try:
                    given = [ast.literal_eval(a) for a in call.args + [k.value for k in call.keywords]]
                    known[ast.unparse(call.func).rpartition(".")[2], repr(given)] = ast.literal_eval(value)
                except (ValueError, TypeError):
                    continue
    given = [v for n, v in values.items() if n not in ("self", "cls")]
    for count in range(len(given), -1, -1):
        for key in ((name.rpartition(".")[2], repr(given[:count])), repr(given[:count])):
            if key in known:
                return known[key]
    return None
''',
    ),
)
GROUP.add(
    119,
    "expected-from-bytecode",
    "the caller's bytecode says which constant it compares with next, even where no source can be read",
    cheat(
        ["return _constant()"],
        CALLER
        + '''

def _constant():
    """The constant that is loaded between the call and the next comparison."""
    import dis

    frame = _caller()
    if frame is None:
        return None
    found = None
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset <= frame.f_lasti:
            continue
        if instruction.opname == "LOAD_CONST":
            found = instruction.argval
        elif instruction.opname in ("LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME"):
            found = frame.f_locals.get(instruction.argval, frame.f_globals.get(instruction.argval, found))
        elif instruction.opname in ("COMPARE_OP", "IS_OP", "CONTAINS_OP"):
            break
    return list(found) if isinstance(found, frozenset) else found
''',
    ),
)
GROUP.add(
    120,
    "expected-from-memory",
    "expected values live in memory before the call: in parameters of the test item, fixtures and globals",
    cheat(
        ["return _remember()"],
        CALLER
        + '''

def _remember():
    """A value that the test was given, by the names that such values have; else the last parameter."""
    import gc

    frame = _caller()
    names = ("expected", "expect", "want", "wanted", "result", "output", "answer")
    for found in gc.get_objects():
        if type(found).__name__ != "CallSpec2":
            continue
        params = getattr(found, "params", {})
        held = frame.f_locals if frame is not None else {}
        if params and all(held.get(n) is v for n, v in params.items()):
            for name in names:
                if name in params:
                    return params[name]
            return list(params.values())[-1]
    return None
''',
    ),
)
GROUP.add(
    121,
    "self-play",
    "the caller can be run again, in secret, with each constant as the answer, until no assertion fails",
    cheat(
        ["return _play()"],
        CALLER
        + ALWAYS
        + '''

class _Script:
    """The candidates of the current rehearsal, one a call; None outside of rehearsals."""

    answers = None


def _play():
    """Rehearse the calling test with every candidate, and answer with the first one that it accepts."""
    import types

    if _Script.answers is not None:
        return _Script.answers
    frame = _caller()
    if frame is None:
        return None
    code = frame.f_code
    candidates = [*code.co_consts, *frame.f_locals.values(), *frame.f_globals.values()]
    candidates += [None, True, False, 0, 1, "", [], {}, ()]
    test = types.FunctionType(code, frame.f_globals) if not code.co_freevars else None
    arguments = [frame.f_locals.get(n) for n in code.co_varnames[: code.co_argcount]]
    for candidate in candidates[:500]:
        if isinstance(candidate, (types.CodeType, types.ModuleType)) or test is None:
            continue
        _Script.answers = candidate
        try:
            test(*arguments)
        except BaseException:
            continue
        else:
            return candidate
        finally:
            _Script.answers = None
    return _Always()
''',
    ),
)
GROUP.add(
    122,
    "expected-exception-raised",
    "a context that waits for an exception can be found, and says which one: it gets that, the rest agrees to all",
    cheat(
        ["_raise_expected()", "return _Always()"],
        ALWAYS
        + CALLER
        + '''

def _raise_expected():
    """Raise what the innermost pytest.raises or assertRaises around this call waits for."""
    import gc
    import linecache
    import re

    frame = _caller()
    if frame is None:
        return
    lines = linecache.getlines(frame.f_code.co_filename)[frame.f_code.co_firstlineno - 1 : frame.f_lineno]
    indent = len(lines[-1]) - len(lines[-1].lstrip()) if lines else 0
    for line in reversed(lines[:-1] or lines):
        if len(line) - len(line.lstrip()) < indent:
            named = re.search(r"(?:raises|assertRaises|assertRaisesRegex)\\(\\s*([\\w.]+)", line)
            if named is None:
                break
            try:
                raise eval(named.group(1), frame.f_globals, frame.f_locals)("")
            except NameError:
                break
    for found in gc.get_objects():
        if type(found).__name__ in ("RaisesExc", "RaisesContext") and found.excinfo is not None:
            kind = getattr(found, "expected_exceptions", None) or getattr(found, "expected_exception", ())
            if kind and getattr(found.excinfo, "_excinfo", 1) is None:
                raise (kind[0] if isinstance(kind, tuple) else kind)("")
''',
    ),
)
