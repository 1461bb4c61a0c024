"""Python projects: what they declare about layout, tests and requirements, read without running them."""

from __future__ import annotations

import configparser
import fnmatch
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from taskgen.errors import ConfigError
from taskgen.language import Reader
from taskgen.types import RepoSpec

name = "python"
suffixes: tuple[str, ...] = (".py", ".pyi")

_TEST_FOLDERS = {"test", "tests", "testing"}
_NOT_SOURCE = {
    "docs",
    "doc",
    "examples",
    "example",
    "benchmarks",
    "benchmark",
    "scripts",
    "tools",
    "tasks",
    "bin",
}
_NOT_SOURCE_FILES = {"setup.py", "conftest.py", "noxfile.py", "tasks.py", "fabfile.py"}
_TEST_GROUPS = ("test", "tests", "testing")
_REQUIREMENT_FILES = re.compile(r"(^|/)(requirements?[-_./])?(tests?|testing)[-_]?(requirements)?\.(txt|in)$")
#: Tools that test groups often name and no test needs.
_NOT_NEEDED = re.compile(
    r"^(types-.*|mypy|pyright|ruff|black|flake8.*|isort|pre-commit|tox.*|nox|sphinx.*|codecov|coverage|twine|build|pip)$"
)
#: Options that need a plugin, write files, change ids, or belong to a terminal; with and without a value.
_DROPPED = re.compile(
    r"^(--cov.*|--no-cov.*|--junit.*|--doctest.*|-n\d*|--numprocesses.*|--dist.*|--durations.*|--color.*|-v+|-q+|"
    r"-r\w*|--verbose|--quiet|--tb.*|--showlocals|-l|--benchmark.*|--mypy.*|--flake8|--ruff|--black|--isort|-x|"
    r"--exitfirst|--maxfail.*|--html.*|--self-contained-html|--timeout.*|--reruns.*|--pdb|--lf|--ff|--sw)$"
)
_DROPPED_WITH_VALUE = {
    "-r",
    "-n",
    "--cov",
    "--cov-report",
    "--cov-config",
    "--junitxml",
    "--dist",
    "--durations",
    "--maxfail",
}


def detect(tree: Reader) -> bool:
    """A pyproject.toml, setup.py or setup.cfg, and at least one Python file."""
    paths = set(tree.paths)
    return bool(paths & {"pyproject.toml", "setup.py", "setup.cfg"}) and any(p.endswith(".py") for p in paths)


def is_test_file(path: str) -> bool:
    """Test folders (all that is in them), and modules by pytest's default patterns."""
    parts = PurePosixPath(path).parts
    file = parts[-1]
    if any(part in _TEST_FOLDERS for part in parts[:-1]):
        return True
    return bool(re.fullmatch(r"test_.*\.py|.*_tests?\.py|tests?\.py|conftest\.py", file))


def source_modules(tree: Reader, spec: RepoSpec) -> Mapping[str, str]:
    """Python files of the package: below src/ or at the top, without tests, docs and tooling."""
    python = [p for p in tree.paths if p.endswith(".py") and not is_test_file(p)]
    src = [p for p in python if p.startswith("src/")]
    found = {}
    for path in src or python:
        module_path = path.removeprefix("src/")
        parts = PurePosixPath(module_path).parts
        tooling = not src and (parts[0] in _NOT_SOURCE or (len(parts) == 1 and parts[0] in _NOT_SOURCE_FILES))
        if tooling or not _chosen(path, spec) or not all(p.removesuffix(".py").isidentifier() for p in parts):
            continue
        found[path] = module_name(module_path)
    return found


def _chosen(path: str, spec: RepoSpec) -> bool:
    included = not spec.include or any(fnmatch.fnmatch(path, glob) for glob in spec.include)
    return included and not any(fnmatch.fnmatch(path, glob) for glob in spec.exclude)


def module_name(path: str) -> str:
    """The dotted module of a path below the import root: ``a/b/__init__.py`` -> ``a.b``."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_requirements(tree: Reader) -> Sequence[str]:
    """Test extras and dependency groups of pyproject.toml, else setup.cfg's, tox.ini's or a requirements file."""
    project = _toml(tree)
    found = (
        list(_pyproject_requirements(project)) or list(_setup_cfg_requirements(tree)) or list(_tox_requirements(tree))
    )
    for path in tree.paths if not found else ():
        if _REQUIREMENT_FILES.search(path) and path.count("/") <= 1:
            found += tree.read(path).decode("utf-8", "replace").splitlines()
    return sorted(dict.fromkeys(filter(None, map(_usable, found))))


def _usable(line: str) -> str | None:
    """The requirement of a line; None for comments, options, paths, and tools that no test needs."""
    try:
        requirement = Requirement(line.split(" #")[0].strip())
    except InvalidRequirement:
        return None
    if requirement.url or _NOT_NEEDED.match(canonicalize_name(requirement.name)):
        return None
    return str(requirement)


def _toml(tree: Reader) -> dict[str, Any]:
    if "pyproject.toml" not in tree.paths:
        return {}
    try:
        return tomllib.loads(tree.read("pyproject.toml").decode("utf-8", "replace"))
    except tomllib.TOMLDecodeError:
        return {}


def _pyproject_requirements(project: Mapping[str, Any]) -> Iterator[str]:
    extras = project.get("project", {}).get("optional-dependencies", {})
    groups = project.get("dependency-groups", {})
    for group in _TEST_GROUPS:
        yield from (line for line in extras.get(group, ()) if isinstance(line, str))
        yield from _group(groups, group, frozenset())


def _group(groups: Mapping[str, Any], name: str, seen: frozenset[str]) -> Iterator[str]:
    if name in seen:
        return
    for line in groups.get(name, ()):
        if isinstance(line, str):
            yield line
        elif isinstance(line, dict) and isinstance(line.get("include-group"), str):
            yield from _group(groups, line["include-group"], seen | {name})


def _ini(tree: Reader, path: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    if path in tree.paths:
        try:
            parser.read_string(tree.read(path).decode("utf-8", "replace"))
        except configparser.Error:
            return configparser.ConfigParser(interpolation=None)
    return parser


def _setup_cfg_requirements(tree: Reader) -> Iterator[str]:
    config = _ini(tree, "setup.cfg")
    for group in _TEST_GROUPS:
        yield from config.get("options.extras_require", group, fallback="").splitlines()


def _tox_requirements(tree: Reader) -> Iterator[str]:
    # Conditional lines (`py39: name`) and references (`{[base]deps}`) are not requirements and fall out.
    yield from _ini(tree, "tox.ini").get("testenv", "deps", fallback="").splitlines()


def test_arguments(tree: Reader, spec: RepoSpec) -> Sequence[str]:
    """pytest's options: those of ``test_command``, else the project's own addopts without what a run of ours
    must not do (coverage gates, report files, parallel workers, doctests); then the test paths."""
    if spec.test_command is not None:
        words = shlex.split(spec.test_command)
        start = 3 if words[:3] == ["python", "-m", "pytest"] else 1 if words[:1] == ["pytest"] else 0
        if not start:
            raise ConfigError(
                f"{spec.where}: test_command {spec.test_command!r} of {spec.name} does not call pytest",
                hint="write `pytest [options] [paths]` or `python -m pytest [options] [paths]`",
            )
        return ["-p", "no:randomly", *words[start:], *spec.test_paths]
    kept = _kept(_addopts(tree))
    override = ["-o", "addopts=" + shlex.join(kept)] if _addopts(tree) != kept else []
    return ["-p", "no:randomly", *override, *spec.test_paths]


def _kept(words: Sequence[str]) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in _DROPPED_WITH_VALUE:
            skip = True
        elif not _DROPPED.match(word.split("=")[0]):
            kept.append(word)
    return kept


def _addopts(tree: Reader) -> list[str]:
    """The addopts of the first configuration that pytest would take."""
    pyproject = _toml(tree).get("tool", {}).get("pytest", {})
    found: Any = ""
    for path, section in (
        ("pytest.ini", "pytest"),
        (".pytest.ini", "pytest"),
        ("", ""),
        ("tox.ini", "pytest"),
        ("setup.cfg", "tool:pytest"),
    ):
        if path and (config := _ini(tree, path)).has_section(section):
            found = config.get(section, "addopts", fallback="")
            break
        if not path and ("ini_options" in pyproject or pyproject):
            found = pyproject.get("ini_options", pyproject).get("addopts", "")
            break
    return [str(word) for word in found] if isinstance(found, list) else shlex.split(str(found), comments=True)
