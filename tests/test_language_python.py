from __future__ import annotations

from dataclasses import replace

import pytest

from taskgen.errors import ConfigError
from taskgen.languages import python
from tests.project_helpers import SPEC, MemoryTree, tree_of


def empty(*paths: str) -> MemoryTree:
    return tree_of(dict.fromkeys(paths, ""))


# -- layout --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (("pyproject.toml", "m.py"), True),
        (("setup.py",), True),
        (("setup.cfg", "a/b.py"), True),
        (("setup.cfg", "README"), False),
        (("m.py",), False),
        (("sub/pyproject.toml", "m.py"), False),
    ],
)
def test_detect(paths: tuple[str, ...], found: bool) -> None:
    assert python.detect(empty(*paths)) is found


@pytest.mark.parametrize(
    "path",
    ["tests/data/x.json", "test/a.py", "pkg/tests/helpers.py", "testing/x", "test_m.py", "a/m_test.py", "tests.py",
     "m_tests.py", "conftest.py", "a/test.py"],
)  # fmt: skip
def test_files_of_tests(path: str) -> None:
    assert python.is_test_file(path)


@pytest.mark.parametrize(
    "path", ["pkg/m.py", "pkg/testing.py", "attest_m.py", "contest.py", "latest/m.py", "test_m.txt"]
)
def test_files_that_are_no_tests(path: str) -> None:
    assert not python.is_test_file(path)


def test_modules_below_src() -> None:
    tree = empty("src/pkg/__init__.py", "src/pkg/a.py", "src/single.py", "setup.py", "tools/x.py", "src/pkg/test_a.py")
    assert python.source_modules(tree, SPEC) == {
        "src/pkg/__init__.py": "pkg",
        "src/pkg/a.py": "pkg.a",
        "src/single.py": "single",
    }


def test_modules_at_the_top() -> None:
    paths = ("pkg/__init__.py", "pkg/sub/a.py", "single.py", "setup.py", "noxfile.py", "conftest.py")
    tree = empty(*paths, "docs/conf.py", "examples/x.py", "tests/t.py", "not-a-module.py", "a-b/c.py", "pkg/docs/x.py")
    assert python.source_modules(tree, SPEC) == {
        "pkg/__init__.py": "pkg",
        "pkg/sub/a.py": "pkg.sub.a",
        "single.py": "single",
        "pkg/docs/x.py": "pkg.docs.x",
    }


def test_include_and_exclude() -> None:
    tree = empty("pkg/a.py", "pkg/b.py", "other/c.py")
    spec = replace(SPEC, include=("pkg/*",), exclude=("*/b.py",))
    assert list(python.source_modules(tree, spec)) == ["pkg/a.py"]


# -- requirements --------------------------------------------------------------------------------------

GROUPS = """\
[project.optional-dependencies]
test = ["freezegun>=1", "pytest", "mypy"]
docs = ["sphinx"]

[dependency-groups]
tests = ["hypothesis", {include-group = "base"}]
base = ["attrs", {include-group = "tests"}]
dev = ["never"]
"""


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"pyproject.toml": GROUPS}, ["attrs", "freezegun>=1", "hypothesis", "pytest"]),
        ({"setup.cfg": "[options.extras_require]\ntests =\n    pytest\n    trio ; python_version > '3'\n"},
         ["pytest", 'trio; python_version > "3"']),
        ({"tox.ini": "[testenv]\ndeps =\n    freezegun\n    py39: old\n    {[base]deps}\n    -r x.txt\n    coverage\n"},
         ["freezegun"]),
        ({"requirements-test.txt": "# comment\npytest-mock>=3 # why\n-r other.txt\n./local\nx @ https://x/y\nblack\n"},
         ["pytest-mock>=3"]),
        ({"requirements/tests.txt": "a\n", "deep/er/requirements-test.txt": "b\n", "docs/latest.txt": "c\n"}, ["a"]),
        ({"pyproject.toml": "broken [", "tox.ini": "[testenv]\ndeps = a\n"}, ["a"]),
        ({"setup.cfg": "no section\n"}, []),
    ],
)  # fmt: skip
def test_requirements_of_tests(files: dict[str, str], found: list[str]) -> None:
    assert python.test_requirements(tree_of(files)) == found


# -- arguments -----------------------------------------------------------------------------------------


INI = "[tool.pytest.ini_options]\n"


def arguments(files: dict[str, str]) -> list[str]:
    """What follows the guard against reordering."""
    first, second, *rest = python.test_arguments(tree_of(files), SPEC)
    assert (first, second) == ("-p", "no:randomly")
    return rest


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, []),
        ({"pytest.ini": "[pytest]\naddopts = -ra --strict-markers\n"}, ["-o", "addopts=--strict-markers"]),
        ({"pytest.ini": "[pytest]\naddopts = --strict-markers\n"}, []),
        ({"pytest.ini": "[pytest]\naddopts = -r a --strict-markers\n"}, ["-o", "addopts=--strict-markers"]),
        ({"tox.ini": "[pytest]\naddopts = --cov pkg --cov-report=xml -n 4 --import-mode=importlib\n"},
         ["-o", "addopts=--import-mode=importlib"]),
        ({"setup.cfg": "[tool:pytest]\naddopts = --doctest-modules -m 'not slow'\n"}, ["-o", "addopts=-m 'not slow'"]),
        ({"pyproject.toml": INI + 'addopts = ["-n4", "--durations=10", "-p", "no:cacheprovider"]\n'},
         ["-o", "addopts=-p no:cacheprovider"]),
        ({"pyproject.toml": INI + 'addopts = "-q --junitxml out.xml -k a"\n'}, ["-o", "addopts=-k a"]),
        ({"pytest.ini": "[pytest]\n", "setup.cfg": "[tool:pytest]\naddopts = --cov\n"}, []),
        ({"pyproject.toml": "[project]\n", "setup.cfg": "[tool:pytest]\naddopts = -x\n"}, ["-o", "addopts="]),
    ],
)  # fmt: skip
def test_own_options_are_kept_without_what_a_run_must_not_do(files: dict[str, str], found: list[str]) -> None:
    assert arguments(files) == found


@pytest.mark.parametrize("start", ["pytest", "python -m pytest"])
def test_a_given_command_replaces_the_projects_options(start: str) -> None:
    tree = tree_of({"pytest.ini": "[pytest]\naddopts = --cov\n"})
    spec = replace(SPEC, test_command=f"{start} -k 'a b'", test_paths=("tests",))
    assert python.test_arguments(tree, spec) == ["-p", "no:randomly", "-k", "a b", "tests"]


def test_a_command_without_pytest_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not call pytest"):
        python.test_arguments(empty(), replace(SPEC, test_command="make test"))
