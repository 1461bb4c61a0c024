"""Attacks by answers that are taken from the tests: read at run time, looked up, or found by trying."""

from __future__ import annotations

from taskgen.attacks.adapt import NAME, cheat
from taskgen.attacks.attack import Group
from taskgen.attacks.payloads import ALWAYS, CALLER, TEST_TEXTS

GROUP = Group("semantic")

GROUP.add(
    43,
    "frame-peek",
    "the statement that called stands in the caller's frame, and so does what it compares with",
    cheat(
        ["return _peek()"],
        CALLER
        + '''

def _peek(trees={}, busy=[]):
    """Evaluate the other side of the comparison that the calling test is about to make."""
    import ast
    import linecache

    frame = _caller()
    if frame is None or busy:
        return None
    path = frame.f_code.co_filename
    if path not in trees:
        try:
            trees[path] = list(ast.walk(ast.parse("".join(linecache.getlines(path)))))
        except (SyntaxError, ValueError):
            trees[path] = []
    for node in trees[path]:
        if not (isinstance(node, ast.stmt) and node.lineno <= frame.f_lineno <= node.end_lineno):
            continue
        sides = []
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare):
            sides = [node.test.left, *node.test.comparators]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            sides = node.value.args[:2]
        for side in sorted(sides, key=lambda s: any(isinstance(n, ast.Call) for n in ast.walk(s))):
            busy.append(True)
            try:
                return eval(compile(ast.Expression(side), "?", "eval"), frame.f_globals, frame.f_locals)
            except Exception:
                continue
            finally:
                busy.clear()
    for name in ("expected", "expect", "want", "wanted", "result", "output", "out", "answer"):
        if name in frame.f_locals:
            return frame.f_locals[name]
    return None
''',
    ),
)


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
    """What the current rehearsal answers with."""

    playing, answer = False, None


def _play():
    """Rehearse the calling test with every candidate, and answer with the first one that it accepts."""
    import types

    if _Script.playing:
        return _Script.answer
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
        _Script.playing, _Script.answer = True, candidate
        try:
            test(*arguments)
        except BaseException:
            continue
        else:
            return candidate
        finally:
            _Script.playing = False
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
