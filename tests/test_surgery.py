"""Removals and what follows from them. In these projects only the feature's tests run any line, but for those that a
test names as shared."""

from __future__ import annotations

from textwrap import dedent

import pytest

from taskgen.languages.python_surgery import Irreparable, Surgery
from taskgen.types import Deletion, Removal
from tests.project_helpers import find, operate, project_of

INIT = '"""The package."""\n'


def remove(
    files: dict[str, str], path: str, *names: str, shared: tuple[tuple[str, int], ...] = (), dead: bool = False
) -> Deletion:
    project = project_of(files)
    surgery = operate(project, shared=shared)
    for name in names:
        surgery.remove(find(project, path, name))
    if dead:
        surgery.remove_dead()
    return surgery.deletion()


def text_of(deletion: Deletion, path: str) -> str:
    return (deletion.files[path] or b"").decode()


def after(source: str, name: str, *, shared: tuple[int, ...] = (), dead: bool = False) -> str:
    """One module without a definition."""
    deletion = remove({"m.py": source}, "m.py", name, shared=tuple(("m.py", n) for n in shared), dead=dead)
    return text_of(deletion, "m.py")


# -- exports and imports -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "left"),
    [
        ("from .m import f\n\n__all__ = ['f', 'g']\n\nfrom .m import g\n", "\n__all__ = ['g']\n\nfrom .m import g\n"),
        ("from .m import (\n    f,\n    g,\n)\n", "from .m import (\n    g,\n)\n"),
        ("from .m import g, f\n", "from .m import g\n"),
        ("from .m import f as h, g\n\n__all__ = ('h', 'g')\n", "from .m import g\n\n__all__ = ('g',)\n"),
        ("from pkg.m import f\nfrom pkg import m\n\nz = [m.f, m.g]\n", "from pkg import m\n\nz = [m.g]\n"),
        ("from . import m as n\n\nz = {'f': n.f, 'g': n.g}\n", "from . import m as n\n\nz = {'g': n.g}\n"),
    ],
)
def test_exports_and_imports_go(init: str, left: str) -> None:
    files = {"pkg/__init__.py": INIT + init, "pkg/m.py": "def f(): pass\n\n\ndef g(): pass\n"}
    deletion = remove(files, "pkg/m.py", "f")
    assert text_of(deletion, "pkg/__init__.py") == INIT + left
    assert text_of(deletion, "pkg/m.py") == "def g(): pass\n"


def test_names_go_through_star_imports() -> None:
    files = {
        "pkg/__init__.py": "from .m import *\n\nx = [f, g]\n",
        "pkg/m.py": "__all__ = ['f', 'g']\n\n\ndef f(): pass\n\n\ndef g(): pass\n",
    }
    deletion = remove(files, "pkg/m.py", "f")
    assert text_of(deletion, "pkg/__init__.py") == "from .m import *\n\nx = [g]\n"
    assert text_of(deletion, "pkg/m.py") == "__all__ = ['g']\n\n\ndef g(): pass\n"


def test_an_import_in_a_function_takes_the_function_with_it() -> None:
    files = {"m.py": "def f(): pass\n", "n.py": "def g():\n    from m import f\n    return f()\n\n\nx = 1\n"}
    assert text_of(remove(files, "m.py", "f"), "n.py") == "x = 1\n"
    with pytest.raises(Irreparable):
        remove(files, "m.py", "f", shared=(("n.py", 3),))


def test_a_script_that_imports_it_makes_it_irreparable() -> None:
    with pytest.raises(Irreparable, match=r"setup\.py imports f"):
        remove({"m.py": "def f(): pass\n", "setup.py": "from m import f\n"}, "m.py", "f")


# -- registrations, branches, statements ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "left"),
    [
        ("all_of = [f, g]\n", "all_of = [g]\n"),
        ("all_of = {'f': f, 'g': g}\n", "all_of = {'g': g}\n"),
        ("all_of = [\n    ('f', 1, f),\n    ('g', 1, g),\n]\n", None),
        ("alias = f\nanother = alias\nother = g\n", "other = g\n"),
        ("register(f)\nregister(g)\n", "register(g)\n"),
        ("a = b = f\nuse(b)\n", ""),
    ],
)
def test_references_at_module_level_go(use: str, left: str | None) -> None:
    found = after(f"def g(): pass\n\n\ndef f(): pass\n\n\n{use}", "f").removeprefix("def g(): pass\n").strip("\n")
    if left is None:  # an element of the inner tuple, which is a collection itself
        assert found == "all_of = [\n    ('f', 1),\n    ('g', 1, g),\n]"
    else:
        assert found == left.strip("\n")


def test_assigning_more_than_a_name_is_irreparable() -> None:
    with pytest.raises(Irreparable, match="assigns more than a name"):
        after("def f(): pass\n\n\na, b = f()\n", "f")


BRANCHES = """\
def f(): pass

def user(x):
    if x == 1:
        y = f()
    elif x == 2:
        y = f()
    elif x == 3:
        y = 3
    else:
        y = 4
    return y
"""


@pytest.mark.parametrize(
    ("source", "left"),
    [
        (BRANCHES, "    if x == 3:\n        y = 3\n    else:\n        y = 4\n    return y\n"),
        (BRANCHES.replace("x == 2:\n        y = f()", "x == 2:\n        y = 2"),
         "    if x == 2:\n        y = 2\n    elif x == 3:\n        y = 3\n    else:\n        y = 4\n    return y\n"),
        (BRANCHES.replace("x == 1:\n        y = f()", "x == 1:\n        y = 1"),
         "    if x == 1:\n        y = 1\n    elif x == 3:\n        y = 3\n    else:\n        y = 4\n    return y\n"),
        (BRANCHES.replace("y = 3", "y = f()").replace("    else:\n        y = 4\n", ""), "    return y\n"),
    ],
)  # fmt: skip
def test_branches_that_only_the_feature_runs_go(source: str, left: str) -> None:
    shared = tuple(n for n, line in enumerate(source.splitlines(), 1) if "return" in line)
    assert after(source, "f", shared=shared) == "def user(x):\n" + left


def test_a_branch_that_would_leave_only_an_else_takes_the_user_or_is_irreparable() -> None:
    source = "def f(): pass\n\ndef user(x):\n    if x:\n        return f()\n    else:\n        return 2\n\ny = 1\n"
    assert after(source, "f") == "y = 1\n"
    with pytest.raises(Irreparable, match=r"m\.py:5 needs f"):
        after(source, "f", shared=(7,))


def test_a_branch_that_others_run_is_irreparable_and_says_who_needs_it() -> None:
    source = "def f(): pass\n\ndef user(x):\n    if x:\n        return f()\n    return 2\n"
    with pytest.raises(Irreparable) as caught:
        after(source, "f", shared=(5,))
    assert caught.value.definition is not None
    assert caught.value.definition.qualified_name == "user"


# -- users and methods ---------------------------------------------------------------------------------


def test_users_that_only_the_feature_runs_go_too() -> None:
    source = "def f(): pass\n\ndef user(): return f()\n\ndef user_of_user(): return user()\n\ndef other(): pass\n"
    project = project_of({"m.py": source})
    surgery = operate(project)
    surgery.remove(find(project, "m.py", "f"))
    deletion = surgery.deletion()
    assert text_of(deletion, "m.py") == "def other(): pass\n"
    assert [(d.definition.name, d.removal) for d in deletion.deleted] == [
        ("f", Removal.WHOLE), ("user", Removal.WHOLE), ("user_of_user", Removal.WHOLE),
    ]  # fmt: skip


def test_what_a_decorator_decorates_goes_with_it() -> None:
    source = "def d(f): return f\n\nclass C:\n    @d\n    def a(self): pass\n\n    def b(self): pass\n"
    assert after(source, "d") == "class C:\n    def b(self): pass\n"


METHODS = """\
class C:
    def a(self):
        return 1

    def b(self):
        return self.a()

    c = a

    def e(self):
        return self.c

    def z(self):
        return 2
"""


def test_methods_go_with_their_users_and_aliases_in_the_class() -> None:
    assert after(METHODS, "C.a").replace("\n\n", "\n") == "class C:\n    def z(self):\n        return 2\n"


def test_a_method_that_others_need_is_irreparable() -> None:
    with pytest.raises(Irreparable, match="needs a"):
        after(METHODS, "C.a", shared=(6,))


def test_a_method_of_the_same_name_elsewhere_protects_other_receivers() -> None:
    source = METHODS + "\n\nclass D:\n    def a(self): pass\n\n\ndef other(d):\n    return d.a()\n"
    assert "return d.a()" in after(source, "C.a")
    with pytest.raises(Irreparable):
        after(source.replace("def a(self): pass", "pass"), "C.a", shared=(22,))


def test_all_definitions_of_a_name_go() -> None:
    source = """\
    class C:
        @property
        def v(self): return 1

        @v.setter
        def v(self, value): pass

        def w(self): pass
    """
    assert after(source, "C.v") == "class C:\n    def w(self): pass\n"


# -- what died -----------------------------------------------------------------------------------------


def test_dead_private_helpers_and_imports_go() -> None:
    source = """\
    import json
    import os
    from typing import Any, cast


    def _helper(): return _deeper(json)


    def _deeper(x): return cast(Any, x)


    def _shared(): pass


    def public(): return _shared()


    def _never_used(): pass


    def f():
        return _helper(), _shared()


    print(os)
    """
    left = dedent(source)
    for gone in ("import json\n", "from typing import Any, cast\n"):
        left = left.replace(gone, "")
    for name in ("_helper", "_deeper", "f"):
        first = left.index(f"def {name}(")
        left = left[:first] + left[left.index("\n\n\n", first) + 3 :]
    assert after(source, "f", dead=True) == left


def test_an_import_that_other_files_take_stays() -> None:
    files = {"a.py": "import os\n\n\ndef f(): return os\n\n\nx = 1\n", "b.py": "from a import os\n"}
    assert text_of(remove(files, "a.py", "f", dead=True), "a.py") == "import os\n\n\nx = 1\n"
    del files["b.py"]
    assert text_of(remove(files, "a.py", "f", dead=True), "a.py") == "\n\nx = 1\n"


def test_a_private_name_that_tests_import_stays() -> None:
    files = {"m.py": "def _h(): pass\n\n\ndef f(): return _h()\n", "test_m.py": "from m import _h\n"}
    assert text_of(remove(files, "m.py", "f", dead=True), "m.py") == "def _h(): pass\n"


# -- modules, bodies, results --------------------------------------------------------------------------

PACKAGE = {
    "pkg/__init__.py": "from . import m, n\nfrom .m import f\n\n__all__ = ['f', 'g']\n\nfrom .n import g\n",
    "pkg/m.py": "LIMIT = 3\n\n\ndef f(): pass\n",
    "pkg/n.py": "import pkg.m\nfrom pkg.m import LIMIT\n\n\ndef g(): pass\n\n\ndef user(): return LIMIT\n",
}


def test_a_module_goes_with_all_imports_of_it() -> None:
    project = project_of(PACKAGE)
    surgery = operate(project)
    surgery.remove_file("pkg/m.py")
    deletion = surgery.deletion()
    assert deletion.files["pkg/m.py"] is None
    assert text_of(deletion, "pkg/__init__.py") == "from . import n\n\n__all__ = ['g']\n\nfrom .n import g\n"
    assert text_of(deletion, "pkg/n.py").strip() == "def g(): pass"
    assert deletion.removed_lines["pkg/m.py"] == {1, 4}


def test_what_a_module_took_from_elsewhere_is_forgotten_with_it() -> None:
    files = {"a.py": "from os import sep\n\n\ndef f(): pass\n", "b.py": "from a import sep\n\nx = [sep, 1]\n"}
    surgery = operate(project_of(files))
    surgery.remove_file("a.py")
    assert text_of(surgery.deletion(), "b.py") == "\nx = [1]\n"


def test_a_packages_init_cannot_go() -> None:
    surgery = operate(project_of(PACKAGE))
    with pytest.raises(Irreparable, match="__init__"):
        surgery.remove_file("pkg/__init__.py")


def test_bodies_keep_signatures_and_need_no_repair() -> None:
    source = "def f(a):\n    return a\n\n\ny = f(1)\n"
    project = project_of({"m.py": source})
    surgery = operate(project)
    surgery.remove_body(find(project, "m.py", "f"), keep_docstring=True)
    deletion = surgery.deletion()
    assert text_of(deletion, "m.py") == source.replace("return a", "raise NotImplementedError")
    assert [(d.definition.name, d.removal) for d in deletion.deleted] == [("f", Removal.BODY)]
    assert deletion.removed_lines == {"m.py": {2}}
    assert deletion.n_lines == 1


def test_a_trial_leaves_the_surgery_as_it_was() -> None:
    project = project_of({"m.py": "def f(): pass\n\n\ndef g(): pass\n"})
    surgery: Surgery = operate(project)
    surgery.trial().remove(find(project, "m.py", "f"))
    assert surgery.deletion() == Deletion(files={}, deleted=(), removed_lines={})


def test_methods_of_a_class_that_went_are_not_listed() -> None:
    deletion = remove({"m.py": "class A:\n    def f(self): pass\n\n\nx = 1\n"}, "m.py", "A")
    assert [d.definition.qualified_name for d in deletion.deleted] == ["A"]
