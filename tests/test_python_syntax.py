from __future__ import annotations

from textwrap import dedent

import pytest

from taskgen.languages.python_syntax import PythonFile, parse_python


def parsed(text: str) -> PythonFile:
    return parse_python("pkg/m.py", "pkg.m", dedent(text).encode())


def uses(text: str) -> set[tuple[str, str | None]]:
    """(name, what it is an attribute of)."""
    return {(use.name, use.attribute_of) for found in parsed(text).uses.values() for use in found}


# -- definitions ---------------------------------------------------------------------------------------

NESTED = '''\
import functools


@functools.cache
@other(1,
       2)
async def first(a):  # why
    # before the docstring
    """Doc."""
    # before the code
    return a

class Outer:
    class Inner:
        def deep(self): return 1

    @property
    def value(self):
        def helper():
            pass
        return helper
'''


def test_definitions_in_source_order_with_their_lines_and_kinds() -> None:
    found = [(d.qualified_name, d.kind, d.start_line, d.body_line, d.end_line) for d in parsed(NESTED).definitions]
    assert found == [
        ("first", "function", 4, 11, 11),
        ("Outer", "class", 13, 14, 21),
        ("Outer.Inner", "class", 14, 15, 15),
        ("Outer.Inner.deep", "method", 15, 15, 15),
        ("Outer.value", "method", 17, 19, 21),
    ]


def test_owner_and_name() -> None:
    deep = parsed(NESTED).definitions[3]
    assert (deep.owner, deep.name, deep.body_lines) == ("Outer.Inner", "deep", 1)


def test_crlf_does_not_shift_lines_or_bytes() -> None:
    source = b'def f():\r\n    """Doc."""\r\n    return 1\r\n\r\n\r\ndef g():\r\n    return 2\r\n'
    f, g = parse_python("m.py", "m", source).definitions
    assert (f.body_line, f.end_line, g.start_line) == (3, 3, 6)
    assert source[f.body_byte : f.after_doc_byte] == b'"""Doc."""'
    assert source[g.start_byte : g.end_byte] == b"def g():\r\n    return 2"


def test_the_last_of_several_definitions_wins_and_all_are_listed() -> None:
    file = parsed("def f(): return 1\ndef f(): return 2\n")
    assert file.parsed.text(file.nodes["f"]) == "def f(): return 2"
    assert [file.parsed.text(node)[-1] for node in file.nodes_named("f")] == ["1", "2"]


# -- signatures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "signature"),
    [
        ("def f(a, b=1): pass", "def f(a, b=1)"),
        ("def f(\n    a,  # don't\n    b,\n) -> dict[\n    str, int\n]:\n    pass", "def f(a, b) -> dict[str, int]"),
        ("def f(a='  # no', b=\"it's\"): pass", "def f(a='  # no', b=\"it's\")"),
        ("def f(a=(1, )): pass", "def f(a=(1,))"),
        ("def f(a, /, *, b): pass", "def f(a, /, *, b)"),
        ("class C(Base, metaclass=M):\n    x = 1", "class C(Base, metaclass=M)"),
        ("class C: pass", "class C"),
        ("async def f(*a: int, **k: str) -> None: ...", "async def f(*a: int, **k: str) -> None"),
        ("@d\n@e.f(1,\n   2)\ndef f(): pass", "@d\n@e.f(1, 2)\ndef f()"),
        ("def f(a, \\\n      b): pass", "def f(a, b)"),
        ("def f(a=lambda x: {x: 1}): pass", "def f(a=lambda x: {x: 1})"),
    ],
)
def test_signatures_are_one_line(text: str, signature: str) -> None:
    assert parsed(text).definitions[0].signature == signature


# -- docstrings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ('"""One."""', "One."),
        ("'single'", "single"),
        ('r"""raw \\d"""', "raw \\d"),
        ('"""One.\n\n        Indented.\n            More.\n    """', "One.\n\nIndented.\n    More."),
        ('"""\n    Two.\n    """', "Two."),
    ],
)
def test_docstrings_are_cleaned(literal: str, text: str) -> None:
    file = parse_python("m.py", "m", f"def f():\n    {literal}\n    return 1\n".encode())
    assert file.definitions[0].docstring == text


@pytest.mark.parametrize("body", ["return 'text'", "x = 'text'", "print('text')", "f'text'.strip()"])
def test_other_strings_are_no_docstrings(body: str) -> None:
    assert parsed(f"def f():\n    {body}\n").definitions[0].docstring == ""


# -- imports and __all__ -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("import a.b", [("a", "a.b", None)]),
        ("import a.b as c, d", [("c", "a.b", None), ("d", "d", None)]),
        ("from . import a", [("a", ".", "a")]),
        ("from ..x.y import a as b, c", [("b", "..x.y", "a"), ("c", "..x.y", "c")]),
        ("from x import (\n    a,\n    b as c,  # why\n)", [("a", "x", "a"), ("c", "x", "b")]),
        ("from x import *", []),
    ],
)
def test_imported_names(statement: str, found: list[tuple[str, str, str | None]]) -> None:
    assert [(i.local, i.module, i.name) for i in parsed(statement).imports] == found


@pytest.mark.parametrize(
    "text",
    [
        "__all__ = ['a', \"b\"]",
        "__all__ = ('a', 'b')",
        "__all__: list[str] = ['a', 'b']",
        "__all__ = ['a']\n__all__ += ['b']",
        "__all__ = ['a']\n__all__.append('b')",
        "__all__ = []\n__all__.extend(['a', 'b'])",
        "__all__ = ['a'] + ['b']",
    ],
)
def test_all_forms_of_all(text: str) -> None:
    assert set(parsed(text).exported) == {"a", "b"}


def test_other_lists_export_nothing() -> None:
    assert parsed("names = ['a']\nnames.append('b')\nprint(__all__)").exported == {}


# -- uses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(a):\n    b = a\n    return b + c", {("c", None)}),
        ("def f(a, *b, c=1, **d):\n    return a, b, c, d", set()),
        ("def f(a=a): pass", {("a", None)}),
        ("def f(a: b = c) -> d: pass", {("b", None), ("c", None), ("d", None)}),
        ("x = lambda a, *b: (a, b, c)", {("c", None)}),
        ("x = [i + j for i, (k, l) in y if k]", {("j", None), ("y", None)}),
        ("def f():\n    global g\n    g = 1\n    return g", {("g", None)}),
        ("def f():\n    def inner():\n        g = 1\n    return g", {("g", None)}),
        ("f(name=value)", {("f", None), ("value", None)}),
        ("a.b.c", {("a", None), ("b", "a"), ("c", "a.b")}),
        ("def f():\n    with g(p) as (a, b), q as c:\n        return a, b, c", {("g", None), ("p", None), ("q", None)}),
        ("def f():\n    if (n := g()): return n", {("g", None)}),
        ("def f():\n    import os\n    return os", set()),
        ("def f():\n    for i in y: print(i)", {("y", None), ("print", None)}),
        ("def f():\n    try: pass\n    except E as e: raise e", {("E", None)}),
        ("for i, (j, k) in y: pass", {("y", None)}),
        ("a, b = c", {("c", None)}),
        ("a = b = c", {("c", None)}),
        ("a += 1", {("a", None)}),
        ("import a\nfrom b import c as d", set()),
        ("from __future__ import annotations", set()),
        ("__all__ = ['a']", {("a", None)}),
        ("@d\ndef f(): pass", {("d", None)}),
    ],
)  # fmt: skip
def test_uses_are_reads_of_global_names_and_attributes(text: str, found: set[tuple[str, str | None]]) -> None:
    assert uses(text) == found


def test_members_named_in_their_class_are_its_attributes() -> None:
    text = """\
    class C:
        limit = 3

        def a(self, n=limit):
            return limit

        b = a

        @b.setter
        def c(self): pass
    """
    assert {(u.name, u.attribute_of, u.node.start_point[0]) for f in parsed(text).uses.values() for u in f} == {
        ("limit", "cls", 3),
        ("limit", None, 4),  # a method does not see the names of its class
        ("a", "cls", 6),
        ("b", "cls", 8),
        ("setter", "b", 8),
    }


def test_a_name_is_no_member_before_its_class_binds_it() -> None:
    text = "class C:\n    policy = policy.default\n    x = policy\n"
    assert uses(text) == {("policy", None), ("default", "policy"), ("policy", "cls")}


def test_names_in_case_patterns() -> None:
    text = """\
    def f(x):
        match x:
            case Color.RED: return 1
            case Point(x=0, y=z) as p: return z, p
            case [a, *rest]: return a, rest
            case other: return other
    """
    assert uses(text) == {("Color", None), ("RED", "Color"), ("Point", None)}
