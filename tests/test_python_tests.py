from __future__ import annotations

from textwrap import dedent

import pytest

from taskgen.languages.python_syntax import parse_python
from taskgen.languages.python_tests import UnremovableTest, remove_tests


def remove(files: dict[str, str], *tests: str) -> dict[str, str | None]:
    parsed = {path: parse_python(path, "", dedent(text).encode()) for path, text in files.items()}
    return {p: None if data is None else data.decode() for p, data in remove_tests(parsed, tests).items()}


SUITE = """\
import json
import os

import pytest

SIZE = 3
OTHER = 4


def helper():
    return SIZE, json


@pytest.fixture
def thing():
    return helper()


@pytest.mark.parametrize("x", [1, 2])
def test_a(thing, x):
    assert helper()


def test_b():
    assert os, OTHER
"""


def test_helpers_fixtures_constants_and_imports_go_with_their_last_user() -> None:
    left = "import os\n\n\nOTHER = 4\n\n\ndef test_b():\n    assert os, OTHER\n"
    assert remove({"test_m.py": SUITE}, "test_m.py::test_a[1]", "test_m.py::test_a[2]") == {"test_m.py": left}


def test_what_other_tests_use_stays() -> None:
    found = remove({"test_m.py": SUITE}, "test_m.py::test_b")["test_m.py"]
    assert found is not None
    assert "def thing" in found
    assert "import json" in found
    assert "SIZE = 3" in found
    assert "OTHER" not in found
    assert "import os" not in found


def test_a_file_without_tests_goes() -> None:
    assert remove({"test_m.py": SUITE}, "test_m.py::test_a[1]", "test_m.py::test_b") == {"test_m.py": None}


def test_a_file_that_others_import_from_stays() -> None:
    files = {
        "tests/test_m.py": "def shared(): pass\n\n\ndef test_a(): pass\n",
        "tests/test_n.py": "from .test_m import shared\n\n\ndef test_n(): shared()\n",
    }
    assert remove(files, "tests/test_m.py::test_a") == {"tests/test_m.py": "def shared(): pass\n"}


CLASSES = """\
import unittest


class TestA(unittest.TestCase):
    def setUp(self):
        self.x = 1

    def test_one(self):
        assert self.x

    def test_two(self):
        assert self.x


class TestB:
    def test_one(self):
        pass
"""


def test_methods_of_test_classes() -> None:
    found = remove({"test_m.py": CLASSES}, "test_m.py::TestA::test_one")["test_m.py"]
    assert found == CLASSES.replace("    def test_one(self):\n        assert self.x\n\n", "", 1)


def test_a_class_that_lost_all_its_tests_goes_with_its_set_up() -> None:
    found = remove({"test_m.py": CLASSES}, "test_m.py::TestA::test_one", "test_m.py::TestA::test_two")["test_m.py"]
    assert found is not None
    assert found.strip() == CLASSES[CLASSES.index("class TestB") :].strip()


def test_an_inherited_test_is_taken_from_its_base_class() -> None:
    source = """\
    class Base:
        def test_one(self): pass

        def test_two(self): pass


    class TestA(Base):
        pass
    """
    found = remove({"test_m.py": source}, "test_m.py::TestA::test_one")["test_m.py"]
    assert found is not None
    assert "test_one" not in found
    assert "test_two" in found


def test_a_test_under_a_condition_is_found() -> None:
    source = "import sys\n\nif sys.platform:\n    def test_a(): pass\n\n\ndef test_b(): pass\n"
    found = remove({"test_m.py": source}, "test_m.py::test_a")["test_m.py"]
    assert found == "import sys\n\nif sys.platform:\n    pass\n\n\ndef test_b(): pass\n"


def test_fixtures_of_a_conftest_are_left_to_those_who_share_them() -> None:
    files = {
        "conftest.py": "import pytest\n\n\n@pytest.fixture\ndef thing(): return 1\n",
        "test_a.py": "def test_a(thing): pass\n\n\ndef test_b(): pass\n",
    }
    assert remove(files, "test_a.py::test_a") == {"test_a.py": "def test_b(): pass\n"}


@pytest.mark.parametrize("test", ["test_m.py::test_generated", "other.py::test_a", "test_m.py::TestX::test_a"])
def test_tests_that_are_nowhere_are_refused(test: str) -> None:
    with pytest.raises(UnremovableTest):
        remove({"test_m.py": "def test_b(): pass\n"}, test)


def test_nothing_to_remove_changes_nothing() -> None:
    assert remove({"test_m.py": SUITE}) == {}
