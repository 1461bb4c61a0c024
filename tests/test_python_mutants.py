from __future__ import annotations

import ast
import bisect
import configparser
import heapq
import json.decoder
import shlex
import textwrap
import types
from collections import Counter
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskgen.languages.python_mutants import Mutant, mutants
from taskgen.languages.python_mutations import MutationOperator
from taskgen.languages.python_syntax import PythonFile, parse_python

Op = MutationOperator


def changed(text: str, *names: str, limit: int = 1000) -> list[Mutant]:
    """The mutants of the named definitions of a text (of all, without names)."""
    source = dedent(text).encode()
    file = parse_python("m.py", "m", source)
    chosen = [d for d in file.definitions if not names or d.qualified_name in names]
    return mutants("m.py", source, chosen, limit=limit, seed=0)


def lines(text: str, operator: MutationOperator, *names: str) -> set[str]:
    """The lines that an operator makes."""
    before = dedent(text).splitlines()
    found = [m for m in changed(text, *names) if m.operator is operator]
    after = [m.source.decode().splitlines() for m in found]
    return {line.strip() for text in after for line, old in zip(text, before, strict=True) if line != old}


@pytest.mark.parametrize(
    ("operator", "line", "expected"),
    [
        (Op.COMPARISON, "u = a < b", {"u = a <= b"}),
        (Op.COMPARISON, "u = a == b", {"u = a != b"}),
        (Op.COMPARISON, "u = a is not b", {"u = a is b"}),
        (Op.COMPARISON, "u = a in b", {"u = a not in b"}),
        (Op.COMPARISON, "u = a < b <= c", {"u = a <= b <= c", "u = a < b < c"}),
        (Op.ARITHMETIC, "u = a + b * c", {"u = a - b * c", "u = a + b / c"}),
        (Op.ARITHMETIC, "u = a + 'text'", set()),
        (Op.ARITHMETIC, "u = '%s' % a", set()),
        (Op.BOOLEAN, "u = a and b", {"u = a or b"}),
        (Op.CONDITION, "if a: b()", {"if not (a): b()"}),
        (Op.CONDITION, "if(a): b()", {"if not ((a)): b()"}),
        (Op.CONDITION, "if a == b: b()", set()),
        (Op.CONDITION, "if a < b: b()", {"if not (a < b): b()"}),
        (Op.CONDITION, "while a: b()", {"while not (a): b()"}),
        (Op.CONDITION, "while True: b()", set()),
        (Op.CONDITION, "u = b if a else c", {"u = b if not (a) else c"}),
        (Op.CONDITION, "u = [b for b in c if a]", {"u = [b for b in c if not (a)]"}),
        (Op.CONSTANT, "u = 0x10", {"u = 17"}),
        (Op.CONSTANT, "u = 1.5", {"u = 2.5"}),
        (Op.CONSTANT, "u = 1j", set()),
        (Op.CONSTANT, "u = True", {"u = False"}),
        (Op.CONSTANT, "u = r'a\\'", set()),
        (Op.CONSTANT, "u = b''", {"u = b'x'"}),
        (Op.CONSTANT, "u = f'{a}'", {"u = f'{a}x'"}),
        (Op.CONSTANT, "u = None", set()),
        (Op.RETURN, "return a", {"return None"}),
        (Op.RETURN, "return(a)", {"return None"}),
        (Op.RETURN, "return None", set()),
        (Op.RETURN, "return", set()),
        (Op.STATEMENT, "u = a", {"pass"}),
        (Op.STATEMENT, "a()", {"pass"}),
        (Op.STATEMENT, "u: int", set()),
        (Op.STATEMENT, "...", set()),
        (Op.STATEMENT, "logger.info('text')", set()),
        (Op.NOT, "u = not a", {"u = a"}),
        (Op.NOT, "if not a: b()", {"if a: b()"}),
        (Op.LOOP, "while a: break", {"while a: continue"}),
        (Op.LOOP, "while a: continue", {"while a: break"}),
        (Op.SLICE, "u = a[:]", {"u = a[1:]", "u = a[:-1]"}),
        (Op.SLICE, "u = a[b:c:2]", {"u = a[(b) + 1:c:2]", "u = a[b:(c) + 1:2]"}),
        (Op.SLICE, "u = a[::2]", {"u = a[1::2]", "u = a[:-1:2]"}),
        (Op.SLICE, "u = a[2:]", {"u = a[2:-1]"}),
        (Op.AUGMENTED, "u += a", {"u -= a"}),
        (Op.AUGMENTED, "u += 'text'", {"u = 'text'"}),
        (Op.AUGMENTED, "u @= a", set()),
        (Op.EXCEPTION, "raise KeyError(a)", {"raise RuntimeError(a)"}),
        (Op.EXCEPTION, "raise RuntimeError", {"raise LookupError"}),
        (Op.EXCEPTION, "raise m.Broken from a", {"raise RuntimeError from a"}),
        (Op.EXCEPTION, "raise a", set()),
        (Op.EXCEPTION, "raise", set()),
    ],
)
def test_what_each_operator_makes(operator: MutationOperator, line: str, expected: set[str]) -> None:
    assert lines(f"def f(a, b, c, u):\n    {line}\n", operator) == expected


def test_defaults_of_arguments_are_changed_and_annotations_are_not() -> None:
    text = "def f(a: 'int' = 1, *, b: bool = True, c: 'str | None' = None, d=(), e='x') -> 'int':\n    return g\n"
    swaps = [("= 1", "= 2"), ("= True", "= False"), ("= None", "= 1"), ("=()", "=None"), ("e='x'", "e='xx'")]
    assert lines(text, Op.DEFAULT) == {text.splitlines()[0].replace(old, new) for old, new in swaps}
    assert {m.operator for m in changed(text)} == {Op.DEFAULT, Op.RETURN}


LEFT_ALONE = '''\
from typing import TYPE_CHECKING, TypeVar, cast, overload

LIMIT = 3


@decorated(1, "a")
class C(Base, flag=True):
    """Doc: 1."""

    x: "int"
    """Doc of x."""

    @overload
    def f(self, a: int = 1) -> int: ...

    @decorated(2)
    def f(self, a: "A[2]") -> "B":
        """Doc: 2."""
        if TYPE_CHECKING:
            from m import T
            u = 3
        T = TypeVar("T", bound="C")
        v: "Dict[4]" = cast("int", a)
        log.warning("text")
        raise Problem(f"text {a}", "text" % a)
        return 5


def outside(a=6):
    return 7
'''


def test_nothing_is_touched_that_does_not_run_or_is_a_message() -> None:
    made = {(m.operator, m.source.decode().splitlines()[m.line - 1].strip()) for m in changed(LEFT_ALONE, "C")}
    assert made == {
        (Op.STATEMENT, "pass"),
        (Op.EXCEPTION, 'raise RuntimeError(f"text {a}", "text" % a)'),
    }
    assert {m.line for m in changed(LEFT_ALONE, "C") if m.operator is Op.STATEMENT} == {22, 23}


def test_a_mutant_belongs_to_the_innermost_definition_and_says_what_it_is() -> None:
    (found,) = changed("class C:\n    def f(self):\n        return self.g\n", "C")
    assert found == Mutant(
        path="m.py",
        definition="C.f",
        operator=Op.RETURN,
        line=3,
        source=b"class C:\n    def f(self):\n        return None\n",
        description="return None: self.g -> None",
    )


def test_an_assignment_that_a_nonlocal_needs_is_not_deleted() -> None:
    text = "def f(a):\n    u = a\n    def g():\n        nonlocal u\n        u = 2\n    return g\n"
    deleted = [m.line for m in changed(text) if m.operator is Op.STATEMENT]
    assert deleted == [5]


def test_syntax_that_this_python_may_not_know() -> None:
    text = "type A = int\ndef f[T](a: T) -> T:\n    return a < 1\n"
    assert {m.operator for m in changed(text)} == {Op.COMPARISON, Op.RETURN, Op.CONSTANT}


def test_the_choice_is_even_over_definitions_and_operators() -> None:
    big = "".join(f"    u{i} = a + {i}\n" for i in range(200))
    text = f"def big(a):\n{big}    return u1\n" + "".join(
        f"def f{i}(a):\n    u = a < {i}\n    return u\n" for i in range(4)
    )
    found = changed(text, limit=20)
    assert set(Counter(m.definition for m in found).values()) == {4}
    assert {m.operator for m in found if m.definition == "big"} == {Op.ARITHMETIC, Op.CONSTANT, Op.STATEMENT, Op.RETURN}


def test_the_seed_chooses() -> None:
    file = parsed(textwrap)
    first, second = (mutants(file.path, file.source, file.definitions, limit=20, seed=s) for s in (1, 2))
    assert first == mutants(file.path, file.source, list(file.definitions)[::-1], limit=20, seed=1)
    assert first != second


def test_definitions_of_other_files_are_ignored_and_stale_ones_an_error() -> None:
    file = parsed(bisect)
    assert mutants("other.py", file.source, file.definitions, limit=5, seed=0) == []
    assert mutants(file.path, file.source, file.definitions, limit=0, seed=0) == []
    with pytest.raises(ValueError, match="has no"):
        mutants(file.path, b"\n" + file.source, file.definitions, limit=5, seed=0)


# -- properties, over real sources -----------------------------------------------------------------------


@cache
def parsed(module: types.ModuleType) -> PythonFile:
    assert module.__file__
    return parse_python(f"{module.__name__}.py", module.__name__, Path(module.__file__).read_bytes())


def protected(source: bytes) -> list[object]:
    """What no mutant may change, as the compiler sees it."""
    found: list[object] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append((node.name, ast.get_docstring(node), [ast.dump(d) for d in node.decorator_list]))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [a for a in ast.walk(node.args) if isinstance(a, ast.arg)]
            annotations = [a.annotation for a in arguments if a.annotation] + ([node.returns] if node.returns else [])
            found.append(([a.arg for a in arguments], [ast.dump(a) for a in annotations]))
        if isinstance(node, ast.ClassDef):
            found.append([ast.dump(b) for b in [*node.bases, *node.keywords]])
        if isinstance(node, ast.Raise):
            found.append([c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)])
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal):
            found.append(ast.dump(node))
    return found


@given(
    module=st.sampled_from([textwrap, bisect, heapq, shlex, json.decoder, configparser]),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
@settings(max_examples=20, deadline=None)
def test_only_the_definitions_change_and_all_mutants_parse(
    module: types.ModuleType, seed: int, data: st.DataObject
) -> None:
    file = parsed(module)
    chosen = data.draw(st.lists(st.sampled_from(file.definitions), min_size=1, max_size=4, unique=True))
    found = mutants(file.path, file.source, chosen, limit=12, seed=seed)
    assert len({m.source for m in found} | {file.source}) == len(found) + 1
    kept = protected(file.source)
    for mutant in found:
        assert protected(mutant.source) == kept
        assert ast.dump(ast.parse(mutant.source)) != ast.dump(ast.parse(file.source))
        assert any(
            mutant.source.startswith(file.source[: d.start_byte]) and mutant.source.endswith(file.source[d.end_byte :])
            for d in chosen
            if d.qualified_name == mutant.definition or mutant.definition.startswith(d.qualified_name + ".")
        )
