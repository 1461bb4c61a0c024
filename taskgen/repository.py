"""A repository made ready: fetched, exported, installed, its suite measured, its code surveyed."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from taskgen import archive, baseline_cache, environment, facts
from taskgen.all_languages import language_of
from taskgen.archive import ArchiveEntry
from taskgen.baseline import RUN_TIMEOUT_S, Suite, measure
from taskgen.deletions.survey import Survey
from taskgen.environment import DEFAULT_INSTALL, Built, EnvironmentPlan
from taskgen.errors import SourceError
from taskgen.languages.python_project import PythonProject
from taskgen.sandbox import WORKSPACE_DIR, SandboxProvider
from taskgen.session import TestSession, runner_archive
from taskgen.sources.table import fetch
from taskgen.tree import Tree, export_tree
from taskgen.types import Baseline, Checkout, Environment, RepoSpec

#: Called with the name of each stage as it begins.
OnStage = Callable[[str], None]
#: The options that stand in every recorded test command.
TEST_COMMAND = "CI=true python -m pytest -p no:cacheprovider --continue-on-collection-errors"
BUILD_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """Everything about a repository that candidates are made and validated from."""

    spec: RepoSpec
    checkout: Checkout
    tree: Tree
    entries: Mapping[str, ArchiveEntry]
    test_files: tuple[str, ...]
    environment: Environment
    suite: Suite
    survey: Survey
    documents: Mapping[str, str]
    provider: SandboxProvider
    notes: tuple[str, ...]

    def session(self, hash_seed: int = 0) -> TestSession:
        """A new session on the pristine tree."""
        return TestSession(self.provider, self.environment.key, self.tar(), hash_seed=hash_seed)

    def tar(self) -> bytes:
        """The pristine tree as a tar."""
        return archive.pack(self.entries.values())

    def run_build(self, files: Mapping[str, bytes | None]) -> str:
        """Run the build command on an edited tree, without a network; '' or the tail of its output."""
        with self.provider.create(snapshot=self.environment.key) as sandbox:
            sandbox.put(WORKSPACE_DIR, archive.pack(edited(self.entries, files)))
            done = sandbox.exec(["/bin/sh", "-c", self.environment.build_command], timeout_s=BUILD_TIMEOUT_S)
        return (
            "" if done.returncode == 0 else (done.stdout + done.stderr).decode("utf-8", "replace")[-1000:] or "failed"
        )


def edited(entries: Mapping[str, ArchiveEntry], files: Mapping[str, bytes | None]) -> list[ArchiveEntry]:
    """A tree's entries with some files replaced, or left out (None)."""
    result = []
    for path, entry in entries.items():
        if path not in files:
            result.append(entry)
        elif (data := files[path]) is not None:
            result.append(ArchiveEntry(path=path, content=data, executable=entry.executable))
    return result


def prepare(
    spec: RepoSpec, provider: SandboxProvider, cache: Path, *, n_runs: int, seed: int, on_stage: OnStage
) -> Repository:
    """Make a repository ready. All steps are kept in ``cache`` by content and used again.

    Raises:
        SourceError: it cannot be fetched or installed, is of no known language, or its suite does not pass.
        SandboxUnavailable, StoreError, PrerequisiteError: this machine's fault, not the repository's.
    """
    on_stage("fetch")
    checkout = fetch(spec, cache)
    tree = export_tree(checkout.bare, checkout.commit, cache / "trees" / checkout.commit)
    language = language_of(spec, tree)
    modules = language.source_modules(tree, spec)
    if not modules:
        raise SourceError(f"{spec.where}: {spec.name} has no source files to delete from", hint="check `include`")
    on_stage("install")
    built = environment.build(provider, tree, _plan(spec, checkout, language.test_requirements(tree), modules), cache)
    args = tuple(language.test_arguments(tree, spec))
    run_timeout_s = spec.timeout_s or RUN_TIMEOUT_S
    # A hanging test must be found out well before the run itself is over.
    suite = Suite(args=args, run_timeout_s=run_timeout_s, test_timeout_s=min(60.0, run_timeout_s / 4))
    entries = {entry.path: entry for entry in archive.entries_of(tree.root, tree.files)}
    tar = archive.pack(entries.values())
    on_stage("baseline")
    key = hashlib.sha256(
        json.dumps([built.key, args, suite.run_timeout_s, n_runs, seed]).encode() + runner_archive()
    ).hexdigest()[:32]
    baseline = baseline_cache.cached(
        cache / "baselines" / f"{key}.json.zst",
        lambda: measure(
            lambda hash_seed: TestSession(provider, built.key, tar, hash_seed=hash_seed),
            suite, tuple(modules.values()), n_runs=n_runs, seed=seed,
        ),
    )  # fmt: skip
    on_stage("survey")
    python_tests = tuple(p for p in tree.paths if p.endswith(".py") and language.is_test_file(p))
    documents = facts.documentation(tree.paths, {p: e.content for p, e in entries.items() if e.link_target is None})
    project = PythonProject(tree, modules, python_tests)
    return Repository(
        spec=spec,
        checkout=checkout,
        tree=tree,
        entries=entries,
        test_files=tuple(p for p in tree.paths if language.is_test_file(p)),
        environment=environment.describe(
            built,
            test_command=_command(args),
            build_command=spec.build_command or "",
            timeout_s=suite.run_timeout_s,
            install=spec.install or DEFAULT_INSTALL,
        ),
        suite=suite,
        survey=Survey(project=project, baseline=baseline, documentation="\n".join(documents.values())),
        documents=documents,
        provider=provider,
        notes=(*_notes(checkout, tree, built, project), *_set_apart(baseline)),
    )


def _plan(spec: RepoSpec, checkout: Checkout, optional: Sequence[str], modules: Mapping[str, str]) -> EnvironmentPlan:
    return EnvironmentPlan(
        runtime=spec.runtime,
        requirements=spec.requirements,
        optional=tuple(optional),
        install=spec.install or DEFAULT_INSTALL,
        modules=tuple(modules.values()),
        # Without a repository, version tools need to be told.
        variables={"SETUPTOOLS_SCM_PRETEND_VERSION": checkout.version},
    )


def _command(args: tuple[str, ...]) -> str:
    # `-p no:randomly` only guards against a plugin that reorders tests, and is of no use to others.
    words = list(args[2:] if args[:2] == ("-p", "no:randomly") else args)
    return " ".join([TEST_COMMAND, shlex.join(words)]).strip()


def _notes(checkout: Checkout, tree: Tree, built: Built, project: PythonProject) -> tuple[str, ...]:
    unreadable = [f"{path}: {reason}, left alone" for path, reason in sorted(project.unreadable.items())]
    return (*checkout.warnings, *tree.skipped, *built.notes, *unreadable)


def _set_apart(baseline: Baseline) -> list[str]:
    """What of the suite is not used, by kind."""
    kinds = {
        "do not pass (skipped ones included)": baseline.failing,
        "are flaky": baseline.flaky,
        "are slow, hang or crash": baseline.slow,
    }
    return [f"{len(tests)} tests {kind} and are set apart: {tests[0]}, ..." for kind, tests in kinds.items() if tests]
