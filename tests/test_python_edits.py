from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgen.languages.python_edits import FileEdits, Spans
from taskgen.languages.python_syntax import parse_python
from taskgen.syntax import Edit, apply_edits, line_span


def edits_of(text: str) -> FileEdits:
    return FileEdits(parse_python("m.py", "m", dedent(text).encode()))


def without_body(text: str, *, keep_docstring: bool = True) -> str:
    edits = FileEdits(parse_python("m.py", "m", text.encode()))
    edits.remove_body(edits.file.definitions[-1], keep_docstring=keep_docstring)
    return (edits.result() or b"").decode()


def without(text: str, *names: str) -> str:
    edits = edits_of(text)
    for name in names:
        edits.remove_definition(edits.file.nodes[name])
    return (edits.result() or b"").decode()


# -- edits and spans -----------------------------------------------------------------------------------


def test_edits_inside_others_are_dropped_and_overlapping_ones_are_joined() -> None:
    edits = [
        Edit(start=2, end=6),
        Edit(start=3, end=4, text=b"x"),
        Edit(start=5, end=8),
        Edit(start=9, end=9, text=b"!"),
    ]
    assert apply_edits(b"0123456789", edits) == b"018!9"


def test_an_insertion_where_a_deletion_begins_survives() -> None:
    assert apply_edits(b"(a, b)", [Edit(start=2, end=5), Edit(start=2, end=2, text=b",")]) == b"(a,)"


def test_line_span_takes_whole_lines_only_if_nothing_else_is_on_them() -> None:
    assert line_span(b"a\n  bc \nd\n", 4, 6) == (2, 8)
    assert line_span(b"a\n x bc\nd\n", 5, 7) == (5, 7)
    assert line_span(b"a\n  bc", 4, 6) == (2, 6)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted)))
def test_spans_are_disjoint_ordered_and_hold_what_was_added(added: list[list[int]]) -> None:
    spans, covered = Spans(), set()
    for start, end in added:
        spans.add(start, end)
        covered |= set(range(start, end))
    assert {n for start, end in spans.all for n in range(start, end)} == covered
    assert all(left[1] < right[0] for left, right in zip(spans.all, spans.all[1:], strict=False))
    for start in range(31):
        for end in range(start + 1, 31):
            assert (spans.around(start, end) is not None) == (set(range(start, end)) <= covered)


# -- bodies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('def f():\n    """Doc."""\n    return 1\n', 'def f():\n    """Doc."""\n    raise NotImplementedError\n'),
        ("def f():\n    return 1\n", "def f():\n    raise NotImplementedError\n"),
        ("def f(): return 1\n", "def f():\n    raise NotImplementedError\n"),
        ("def f(): 'doc'; return 1\n", "def f():\n    'doc'\n    raise NotImplementedError\n"),
        ("def f():  # type: () -> int\n    # secret\n    return 1\n    # secret\n\nx = 1\n",
         "def f():  # type: () -> int\n    raise NotImplementedError\n\nx = 1\n"),
        ("def f():\r\n    return 1\r\n", "def f():\r\n    raise NotImplementedError\r\n"),
        ("class A:\n\tdef f(self): return 1\n", "class A:\n\tdef f(self):\n\t    raise NotImplementedError\n"),
        ("class A:\n\tdef f(self):\n\t\treturn 1\n", "class A:\n\tdef f(self):\n\t\traise NotImplementedError\n"),
        ("@d\nasync def f(\n    a,\n):\n    await a", "@d\nasync def f(\n    a,\n):\n    raise NotImplementedError"),
        ("def f(a=lambda: 1) -> {1: 2}[1]:\n    if a:\n        b()\n    else:\n        c()\n",
         "def f(a=lambda: 1) -> {1: 2}[1]:\n    raise NotImplementedError\n"),
    ],
)  # fmt: skip
def test_a_body_is_replaced_and_its_header_stays(text: str, left: str) -> None:
    assert without_body(text) == left


def test_the_docstring_can_go_too() -> None:
    text = 'def f():\n    """Doc."""\n    return 1\n'
    assert without_body(text, keep_docstring=False) == "def f():\n    raise NotImplementedError\n"


# -- definitions ---------------------------------------------------------------------------------------

THREE = """\
x = 1


# about a
# still about a
@d
def a():
    return 1
    # the end of a


def b():
    return 2


# a section

def c():
    return 3
"""


def test_a_definition_goes_with_its_decorators_comments_and_one_of_the_gaps() -> None:
    assert without(THREE, "a") == THREE.replace(THREE[THREE.index("# about") : THREE.index("def b")], "")


def test_the_last_definition_leaves_no_blank_lines_at_the_end_and_keeps_a_section_heading() -> None:
    assert without(THREE, "c").endswith("    return 2\n\n\n# a section\n")


def test_the_wider_gap_stays_between_the_neighbours_of_the_last_method() -> None:
    text = "class A:\n    def a(self): pass\n\n    def b(self): pass\n\n\nclass B: pass\n"
    assert without(text, "A.b") == "class A:\n    def a(self): pass\n\n\nclass B: pass\n"


def test_a_class_that_lost_all_members_gets_a_pass() -> None:
    text = "class A:\n    def a(self): pass\n\n    def b(self): pass\n\n\nclass B: pass\n"
    assert without(text, "A.a", "A.b") == "class A:\n    pass\n\nclass B: pass\n"
    assert without(text.replace("\n", "\r\n"), "A.a", "A.b") == "class A:\r\n    pass\r\n\r\nclass B: pass\r\n"


def test_the_line_of_an_interpreter_is_no_comment_of_a_definition() -> None:
    assert without("#!/usr/bin/env python\ndef a(): pass\nx = 1\n", "a") == "#!/usr/bin/env python\nx = 1\n"


def test_removed_lines_are_pristine_ones_and_not_blank() -> None:
    edits = edits_of(THREE)
    edits.remove_definition(edits.file.nodes["a"])
    assert edits.removed_lines() == {4, 5, 6, 7, 8, 9}


# -- statements, elements, imports ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "index", "left"),
    [
        ("a = 1\nb = 2  # why\nc = 3\n", 1, "a = 1\nc = 3\n"),
        ("a = 1; b = 2\n", 0, " b = 2\n"),
        ("a = 1; b = 2\n", 1, "a = 1\n"),
    ],
)
def test_statements(text: str, index: int, left: str) -> None:
    edits = edits_of(text)
    edits.remove_statement(edits.file.parsed.root.named_children[index])
    assert (edits.result() or b"").decode().strip() == left.strip()


@pytest.mark.parametrize(
    ("text", "indices", "left"),
    [
        ("[a, b, c]", [0], "[b, c]"),
        ("[a, b, c]", [1], "[a, c]"),
        ("[a, b, c]", [2], "[a, b]"),
        ("[a, b]", [0, 1], "[]"),
        ("(a, b)", [0], "(b,)"),
        ("(a, b)", [1], "(a,)"),
        ("(a, b,)", [0], "(b,)"),
        ("(a, b)", [0, 1], "()"),
        ("[\n    a,  # about a\n    b,\n]", [0], "[\n    b,\n]"),
        ("{'a': a, 'b': b}", [1], "{'a': a}"),
    ],
)
def test_elements_go_with_their_commas(text: str, indices: list[int], left: str) -> None:
    edits = edits_of(text)
    collection = edits.file.parsed.root.named_children[0].named_children[0]
    for index in indices:
        edits.remove_element([c for c in collection.named_children if c.type != "comment"][index])
    assert (edits.result() or b"").decode() == left


@pytest.mark.parametrize(
    ("text", "names", "left"),
    [
        ("import a\nx = 1\n", "a", "x = 1\n"),
        ("import a, b, c\n", "a", "import b, c\n"),
        ("import a, b, c\n", "b", "import a, c\n"),
        ("import a, b, c\n", "c", "import a, b\n"),
        ("import a, b, c\n", "bc", "import a\n"),
        ("import a, b, c\n", "cb", "import a\n"),
        ("import a, b, c\nx\n", "abc", "x\n"),
        ("from m import (a, b, c)\n", "c", "from m import (a, b)\n"),
        ("from m import (\n    a,\n    b as c,\n)\n", "c", "from m import (\n    a,\n)\n"),
        ("from m import a, \\\n    b\nx\n", "b", "from m import a\nx\n"),
        ("try:\n    import a\nexcept ImportError:\n    a = None\n", "a",
         "try:\n    pass\nexcept ImportError:\n    a = None\n"),
        ("if x: import a\n", "a", "if x: pass\n"),
    ],
)  # fmt: skip
def test_import_lines(text: str, names: str, left: str) -> None:
    edits = edits_of(text)
    for name in names:
        edits.remove_import(next(i for i in edits.file.imports if i.local == name))
    assert (edits.result() or b"").decode() == left


def test_copies_are_independent() -> None:
    edits = edits_of("def a(): pass\nx = 1\n")
    copy = edits.copy()
    copy.remove_definition(copy.file.nodes["a"])
    assert edits.result() == edits.file.source
    assert copy.result() == b"x = 1\n"


def test_a_file_can_go() -> None:
    edits = edits_of("a = 1\n\nb = 2\n")
    edits.remove_everything()
    assert edits.result() is None
    assert edits.removed_lines() == {1, 3}
