from __future__ import annotations

import ast

import pytest

from taskgen import stubs
from taskgen.stubs import Stub
from taskgen.types import Deletion
from tests.project_helpers import find, operate, project_of

SOURCE = '''\
from typing import overload


def f(self, first: dict[str, int] = {}, *rest) -> str:
    """Join them.

    >>> f(1)
    'one'
    """
    return "x"


class C:
    limit = 3

    @staticmethod
    def s(a, b): return a

    def m(self, *args):
        "Return a set of things; default is 12."
        return set(args)

    def bare(self): return {}


def untouched():
    return 0
'''


def stubbed(kind: Stub, *names: str, source: str = SOURCE) -> str:
    project = project_of({"m.py": source})
    surgery = operate(project)
    for name in names:
        surgery.remove(find(project, "m.py", name))
    return (stubs.stubbed(project, surgery.deletion(), kind)["m.py"] or b"").decode()


def bodies(source: str) -> dict[str, str]:
    """The last statement of each function."""
    return {n.name: ast.unparse(n.body[-1]) for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Stub.NONE, {"f": "return None", "s": "return None", "m": "return None", "bare": "return None"}),
        (Stub.RAISE, dict.fromkeys(["f", "s", "m", "bare"], "raise NotImplementedError")),
        (Stub.EMPTY, {"f": "return ''", "s": "return []", "m": "return set()", "bare": "return []"}),
        (Stub.FIRST_ARGUMENT, {"f": "return self", "s": "return a", "m": "return args", "bare": "return self"}),
        (Stub.DOCSTRING_CONSTANT, {"f": "return 'one'", "s": "return 0", "m": "return 12", "bare": "return 0"}),
    ],
)
def test_what_each_stub_answers(kind: Stub, expected: dict[str, str]) -> None:
    assert bodies(stubbed(kind, "f", "C")) == {**expected, "untouched": "return 0"}


def test_stubs_keep_signatures_constants_and_docstrings() -> None:
    text = stubbed(Stub.NONE, "f", "C")
    for kept in ("def f(self, first: dict[str, int] = {}, *rest) -> str:", "limit = 3", "Join them.", "@staticmethod"):
        assert kept in text


def test_a_docstring_and_code_on_one_line() -> None:
    assert stubbed(Stub.NONE, "g", source="def g(): 'doc'; return 1\n") == "def g(): 'doc'; return None\n"


def test_a_file_that_went_is_stubbed_whole() -> None:
    project = project_of({"m.py": SOURCE})
    surgery = operate(project)
    surgery.remove_file("m.py")
    deletion: Deletion = surgery.deletion()
    text = (stubs.stubbed(project, deletion, Stub.NONE)["m.py"] or b"").decode()
    assert set(bodies(text).values()) == {"return None"}
