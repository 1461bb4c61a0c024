"""A task as the grader sees it: its files, what may be changed in it, and its environment."""

from __future__ import annotations

import hashlib
import json
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from taskgen import archive, environment, guards, taskset
from taskgen.all_languages import LANGUAGES
from taskgen.archive import ArchiveEntry
from taskgen.baseline import Suite
from taskgen.environment import EnvironmentPlan
from taskgen.errors import FormatError, SourceError
from taskgen.grading.intake import Changed, Rules, from_patch
from taskgen.guards import Guards
from taskgen.patchread import patch_paths
from taskgen.sandbox import Limits, SandboxProvider
from taskgen.tree import Tree, files_digest, scan_directory
from taskgen.types import Environment, RepoSpec, SourceKind

TEST_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """The files of a task's folder, read once; and what one test may take, and all of them together."""

    row: Mapping[str, Any]
    workspace: Mapping[str, ArchiveEntry]
    tests: Mapping[str, ArchiveEntry]
    gold_patch: bytes
    guards: Guards
    test_timeout_s: float = TEST_TIMEOUT_S
    limits: Limits = field(default_factory=Limits)

    @cached_property
    def environment(self) -> Environment:
        """How its machine is made."""
        return taskset.read_environment(self.row)

    @cached_property
    def suite(self) -> Suite:
        """How its tests are run."""
        args = _arguments(self.environment)
        return Suite(args=args, test_timeout_s=self.test_timeout_s, run_timeout_s=self.environment.timeout_s)

    @property
    def fail_to_pass(self) -> frozenset[str]:
        return frozenset(self.row["FAIL_TO_PASS"])

    @property
    def wanted(self) -> frozenset[str]:
        """All tests that must pass."""
        return self.fail_to_pass | frozenset(self.row["PASS_TO_PASS"])

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """path -> module of each source file, those that the deletion took away included."""
        gold = {entry.path: ArchiveEntry(path=entry.path) for entry in patch_paths(self.gold_patch)}
        language = LANGUAGES[self.environment.language]
        spec = RepoSpec(name=str(self.row["repo"]), kind=SourceKind.PATH, location="", revision="")
        return language.source_modules(_Paths({**gold, **self.workspace}), spec)

    @cached_property
    def rules(self) -> Rules:
        """What of the workspace a solution may change."""
        language = LANGUAGES[self.environment.language]
        return Rules.of(language, sources=self.modules, test_files=self.row["test_files"], workspace=self.workspace)

    @cached_property
    def gold(self) -> Changed:
        """What the gold patch changes."""
        return from_patch(self.gold_patch, self.rules).changes

    def tree(self, changes: Changed, *, tests: bool, instead: Mapping[str, bytes | None] | None = None) -> bytes:
        """The workspace with changes, as a tar.

        Args:
            tests: put the test files in place, the hidden tests with them.
            instead: files that are laid over it at last; None: the file is not there.
        """
        entries = {**self.workspace, **{p: e for p, e in changes.items() if e is not None}}
        for path in (p for p, entry in changes.items() if entry is None):
            del entries[path]
        if tests:
            entries |= self.tests
        for path, content in (instead or {}).items():
            entries.pop(path, None)
            if content is not None:
                entries[path] = ArchiveEntry(path=path, content=content)
        return archive.pack(entries.values())

    def snapshot(self, provider: SandboxProvider, cache: Path) -> str:
        """The snapshot of the environment, made from the workspace (never from the pristine tree) if it is not there.

        All tasks of a repository share one: it is keyed by what is installed, and holds no source of the project.

        Raises SandboxUnavailable, PrerequisiteError, SourceError, StoreError: it cannot be made.
        """
        described = self.environment
        parts = [self.row["repo"], self.row["base_commit"], described.runtime]
        identity = hashlib.sha256(json.dumps([*parts, described.install, described.requirements]).encode()).hexdigest()
        with tempfile.TemporaryDirectory(prefix="taskgen-grade-") as folder:
            root = Path(folder)
            archive.write_entries(self.workspace.values(), root)
            files = scan_directory(root)
            tree = Tree(root=root, files=files, digest=files_digest(files), skipped=(), scrubbed={})
            here = [module for path, module in self.modules.items() if path in self.workspace]
            if not here:
                raise SourceError(f"{self.row['instance_id']}: its workspace has no source files")
            plan = EnvironmentPlan(
                runtime=described.runtime,
                requirements=described.requirements,
                optional=(),
                install=described.install,
                modules=tuple(here),
                variables={"SETUPTOOLS_SCM_PRETEND_VERSION": str(self.row["source"]["revision"]).lstrip("v") or "0"},
                pinned=True,
            )
            return environment.build(provider, tree, plan, cache, identity=identity).key


@dataclass(frozen=True)
class _Paths:
    """A tree by its entries, as languages read it."""

    entries: Mapping[str, ArchiveEntry]

    @property
    def paths(self) -> list[str]:
        return sorted(self.entries)

    def read(self, path: str) -> bytes:
        return self.entries[path].content


def load(folder: Path, *, test_timeout_s: float = TEST_TIMEOUT_S, limits: Limits | None = None) -> Task:
    """Read a task's folder. Raises FormatError: it is not whole."""
    taskset.must_be_whole(folder)
    return Task(
        row=taskset.read_row(folder),
        workspace={e.path: e for e in archive.read_entries((folder / taskset.WORKSPACE).read_bytes())},
        tests={e.path: e for e in archive.read_entries((folder / taskset.TESTS).read_bytes())},
        gold_patch=(folder / "gold.patch").read_bytes(),
        guards=guards.read(folder),
        test_timeout_s=test_timeout_s,
        limits=limits or Limits(),
    )


def _arguments(described: Environment) -> tuple[str, ...]:
    """The options behind ``pytest`` in the recorded test command."""
    words = shlex.split(described.test_command)
    if "pytest" not in words:
        raise FormatError(f"test_command {described.test_command!r} does not call pytest")
    return tuple(words[words.index("pytest") + 1 :])
