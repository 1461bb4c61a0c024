"""Made-up Python projects, with made-up coverage, for tests that run nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

from taskgen.deletions.survey import Survey
from taskgen.languages import python
from taskgen.languages.python_project import PythonProject
from taskgen.languages.python_surgery import Surgery
from taskgen.types import Baseline, Bounds, Coverage, Definition, Operator, Recipe, RepoSpec, SourceKind

SPEC = RepoSpec(name="local/demo", kind=SourceKind.PATH, location=".", revision="")


@dataclass
class MemoryTree:
    """A tree that lies nowhere."""

    files: Mapping[str, bytes]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(sorted(self.files))

    def read(self, path: str) -> bytes:
        return self.files[path]


def tree_of(files: Mapping[str, str]) -> MemoryTree:
    return MemoryTree({path: dedent(text).encode() for path, text in files.items()})


def project_of(files: Mapping[str, str]) -> PythonProject:
    """Texts are dedented; which file is a test is decided as in a real project."""
    tree = tree_of(files)
    tests = tuple(p for p in tree.paths if python.is_test_file(p))
    return PythonProject(tree, python.source_modules(tree, SPEC), tests)


def operate(project: PythonProject, *, shared: tuple[tuple[str, int], ...] = ()) -> Surgery:
    """A surgery for which only the feature's tests run every line, but those in ``shared``."""
    return Surgery(project, lambda path, first, last: not any(p == path and first <= n <= last for p, n in shared))


def find(project: PythonProject, path: str, name: str) -> Definition:
    return project.definitions[path, name]


def survey_of(files: Mapping[str, str], runs: Mapping[str, tuple[str, ...]], documentation: str = "") -> Survey:
    """``runs``: test id -> the qualified names whose whole bodies it runs. All tests pass."""
    project = project_of(files)
    tests = tuple(runs)
    lines: dict[str, dict[int, int]] = {}
    for bit, test in enumerate(tests):
        for (path, name), definition in project.definitions.items():
            if name in runs[test]:
                found = lines.setdefault(path, {})
                for line in range(definition.body_line, definition.end_line + 1):
                    found[line] = found.get(line, 0) | 1 << bit
    coverage = Coverage(tests=tests, lines=lines, import_lines={})
    return Survey(project=project, baseline=baseline_of(tests, coverage), documentation=documentation)


def baseline_of(tests: tuple[str, ...], coverage: Coverage) -> Baseline:
    return Baseline(
        n_runs=3, passing=tests, flaky=(), slow=(), failing=(), seconds=dict.fromkeys(tests, 0.01), coverage=coverage,
        unmeasured=frozenset(), importable=(), suite_s=1.0, suite_cpu_s=1.0,
    )  # fmt: skip


def recipe_of(operator: Operator, *, template: str = "", max_tasks: int = 5, **bounds: float) -> Recipe:
    limits: dict[str, Any] = {
        "min_lines": 1, "max_lines": 100, "min_files": 1, "max_files": 5, "min_definitions": 1, "max_definitions": 10,
        "min_fail_to_pass": 1, "max_fail_to_pass": 100, "max_suite_share": 1.0, "max_collateral_share": 0.5,
    }  # fmt: skip
    return Recipe(
        name=operator, operator=operator, languages=("python",), bounds=Bounds(**{**limits, **bounds}),
        max_tasks=max_tasks, max_candidates=20, keep_signature=True, keep_docstring=True, sha256="", template=template,
    )  # fmt: skip
