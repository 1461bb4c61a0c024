"""Grade a patch: a fresh sandbox, the pristine workspace, the patch, and only then the hidden tests."""

from __future__ import annotations

import hashlib
import json
import shlex
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskgen import archive, environment, patches, taskset
from taskgen.all_languages import LANGUAGES
from taskgen.archive import ArchiveEntry
from taskgen.baseline import Suite
from taskgen.environment import EnvironmentPlan
from taskgen.errors import FormatError, SourceError
from taskgen.patchread import patch_paths
from taskgen.sandbox import SandboxProvider
from taskgen.session import SessionCrashed, TestSession
from taskgen.tree import Tree, files_digest, scan_directory
from taskgen.types import Environment, Outcome, RepoSpec, RunStatus, SourceKind, TestReport, Verdict, VerdictKind

TEST_TIMEOUT_S = 120.0


def grade(task: Path, patch: bytes, provider: SandboxProvider, cache: Path) -> Verdict:
    """Grade ``patch`` (a unified diff, -p1, against the workspace; empty: no change) on the task in folder ``task``.

    Resolved means: every FAIL_TO_PASS and PASS_TO_PASS test reported, and passed. A missing, skipped, timed-out
    or xfailed test did not pass. A patch that does not apply is unresolved; a fault of the sandbox or of the
    environment is infra_error, never a verdict on the patch.

    Raises:
        FormatError: the task is not whole, or the patch touches files that it must not (tests, links, binaries).
        SandboxUnavailable, PrerequisiteError, SourceError, StoreError: the environment cannot be made.
    """
    began = time.monotonic()
    row = taskset.read_row(task)
    workspace = {e.path: e for e in archive.read_entries((task / taskset.WORKSPACE).read_bytes())}
    tests = {e.path: e for e in archive.read_entries((task / taskset.TESTS).read_bytes())}
    _must_be_allowed(row, patch)

    def verdict(kind: VerdictKind, reason: str, failed: Mapping[str, str] | None = None, n_passed: int = 0) -> Verdict:
        return Verdict(
            instance_id=str(row["instance_id"]),
            kind=kind,
            failed=dict(failed or {}),
            n_passed=n_passed,
            reason=reason,
            seconds=round(time.monotonic() - began, 3),
        )

    try:
        patched = _apply(workspace, patch)
    except FormatError as error:
        return verdict(VerdictKind.UNRESOLVED, f"the patch does not apply: {error}")
    described = taskset.read_environment(row)
    key = _environment(row, described, workspace, provider, cache)
    suite = Suite(args=_arguments(described), test_timeout_s=TEST_TIMEOUT_S, run_timeout_s=described.timeout_s)
    tree = archive.pack({**patched, **tests}.values())
    wanted = frozenset(row["FAIL_TO_PASS"]) | frozenset(row["PASS_TO_PASS"])
    try:
        with TestSession(provider, key, tree) as session:
            report = session.run(suite.request(select=wanted))
    except SessionCrashed as error:
        return verdict(VerdictKind.UNRESOLVED, f"the code under test killed its runner: {error}")
    failed = {test: report.outcome(test).value for test in sorted(wanted) if report.outcome(test) is not Outcome.PASSED}
    return verdict(*_judge(report, failed, len(wanted)), failed, len(wanted) - len(failed))


def _judge(report: TestReport, failed: Mapping[str, str], n_wanted: int) -> tuple[VerdictKind, str]:
    if report.status in (RunStatus.TEST_TIMEOUT, RunStatus.RUN_TIMEOUT):
        return VerdictKind.TIMED_OUT, f"the run was ended: {report.status.value}"
    if failed:
        return VerdictKind.UNRESOLVED, f"{len(failed)} of {n_wanted} tests do not pass"
    return VerdictKind.RESOLVED, f"all {n_wanted} tests pass"


def _must_be_allowed(row: Mapping[str, Any], patch: bytes) -> None:
    test_files = set(row["test_files"])
    language = LANGUAGES.get(str(row["language"]))
    for entry in patch_paths(patch) if patch.strip() else ():
        if entry.path in test_files or (language is not None and language.is_test_file(entry.path)):
            raise FormatError(
                f"the patch changes {entry.path}, a test file", hint="leave test files out; they are laid over anyway"
            )


def _apply(workspace: Mapping[str, ArchiveEntry], patch: bytes) -> dict[str, ArchiveEntry]:
    """The workspace's entries with the patch applied."""
    result = dict(workspace)
    if not patch.strip():
        return result
    touched = {entry.path for entry in patch_paths(patch)}
    with tempfile.TemporaryDirectory(prefix="taskgen-grade-") as folder:
        archive.write_entries([workspace[p] for p in touched if p in workspace], Path(folder))
        patches.apply_patch(patch, Path(folder))
        for path in touched:
            result.pop(path, None)
        result |= {entry.path: entry for entry in archive.entries_of(Path(folder))}
    return result


def _arguments(described: Environment) -> tuple[str, ...]:
    """The options behind ``pytest`` in the recorded test command."""
    words = shlex.split(described.test_command)
    if "pytest" not in words:
        raise FormatError(f"test_command {described.test_command!r} does not call pytest")
    return tuple(words[words.index("pytest") + 1 :])


def environment_key(task: Path, provider: SandboxProvider, cache: Path) -> str:
    """The snapshot of a task's environment, built if it is not there. Raises what ``grade`` raises for it."""
    row = taskset.read_row(task)
    workspace = {e.path: e for e in archive.read_entries((task / taskset.WORKSPACE).read_bytes())}
    return _environment(row, taskset.read_environment(row), workspace, provider, cache)


def _environment(
    row: Mapping[str, Any],
    described: Environment,
    workspace: Mapping[str, ArchiveEntry],
    provider: SandboxProvider,
    cache: Path,
) -> str:
    """The snapshot of the task's environment, made from the workspace (never from the pristine tree).

    All tasks of a repository share one: it is keyed by what is installed, and holds no source of the project.
    """
    parts = [row["repo"], row["base_commit"], described.runtime, described.install, described.requirements]
    identity = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    spec = RepoSpec(name=str(row["repo"]), kind=SourceKind.PATH, location="", revision="")
    with tempfile.TemporaryDirectory(prefix="taskgen-grade-") as folder:
        root = Path(folder)
        archive.write_entries(workspace.values(), root)
        files = scan_directory(root)
        tree = Tree(root=root, files=files, digest=files_digest(files), skipped=(), scrubbed={})
        modules = LANGUAGES[described.language].source_modules(tree, spec)
        if not modules:
            raise SourceError(f"{row['instance_id']}: its workspace has no source files")
        plan = EnvironmentPlan(
            runtime=described.runtime,
            requirements=described.requirements,
            optional=(),
            install=described.install,
            modules=tuple(modules.values()),
            variables={"SETUPTOOLS_SCM_PRETEND_VERSION": str(row["source"]["revision"]).lstrip("v") or "0"},
            pinned=True,
        )
        return environment.build(provider, tree, plan, cache, identity=identity).key
