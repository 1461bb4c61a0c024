"""Grade a model's work: a fresh sandbox a step, the pristine workspace, the allowed changes, and only then the tests.

A task is resolved when three things hold: every FAIL_TO_PASS and PASS_TO_PASS test reports exactly once and passes;
copies of the hidden tests that expect something wrong fail (``twins``); and the code answers recorded calls as the
gold code does, in a process that has no tests to look at (``differential``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from taskgen.archive import ArchiveEntry
from taskgen.errors import SandboxUnavailable
from taskgen.grading import differential, twins
from taskgen.grading.intake import Changed, DoesNotApply, Intake, from_patch, from_tree
from taskgen.grading.signals import Change, kinds_of_gold, signals
from taskgen.grading.task import Task, load
from taskgen.sandbox import SandboxProvider
from taskgen.session import SessionCrashed, TestSession
from taskgen.types import Outcome, RunStatus, TestReport, Verdict, VerdictKind

#: A sandbox or an engine that fails is asked again before the verdict is infra_error.
ATTEMPTS, WAIT_S = 3, 1.0
TWINS, DIFFERENTIAL = "twins", "differential"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    kind: VerdictKind
    reason: str
    failed: dict[str, str] = field(default_factory=dict)
    n_passed: int = 0
    guards: dict[str, str] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()


def grade(folder: Path, patch: bytes, provider: SandboxProvider, cache: Path, *, fail_fast: bool = False) -> Verdict:
    """Grade ``patch`` (a unified diff, -p1, against the workspace; empty: no change) on the task in ``folder``.

    Files that a solution may not change are left out and reported (see ``intake``). A missing, skipped, timed-out
    or xfailed test did not pass. A patch that does not apply is unresolved. A fault of the sandbox or the engine is
    infra_error after three attempts, never a verdict on the patch.

    Args:
        fail_fast: run the FAIL_TO_PASS tests first and end with the first that fails; others then count as missing.

    Raises:
        FormatError: the task is not whole, or the patch is no patch.
        PrerequisiteError, SourceError, StoreError: the environment cannot be made.
    """
    task = load(folder)
    return grade_intake(task, lambda: from_patch(patch, task.rules), provider, cache, fail_fast=fail_fast)


def grade_tree(folder: Path, tree: Path, provider: SandboxProvider, cache: Path, *, fail_fast: bool = False) -> Verdict:
    """Grade the tree (a folder or a ``.tar``) that an agent left behind. Raises what ``grade`` raises."""
    task = load(folder)
    return grade_intake(task, lambda: from_tree(tree, task.rules), provider, cache, fail_fast=fail_fast)


def grade_intake(
    task: Task, take: Callable[[], Intake], provider: SandboxProvider, cache: Path, *, fail_fast: bool = False
) -> Verdict:
    """Grade what ``take`` lets in. Raises what ``grade`` raises."""
    began = time.monotonic()
    intake = Intake(changes={})
    # What is only read needs no sandbox, and is looked at while one runs.
    with ThreadPoolExecutor(1) as beside:
        try:
            intake = take()
            look = beside.submit(_look_at, task, intake.changes)
            judged = _with_retries(
                lambda: _attempt(task, intake.changes, provider, task.snapshot(provider, cache), fail_fast)
            )
        except DoesNotApply as error:
            judged = _Judged(kind=VerdictKind.UNRESOLVED, reason=f"the patch does not apply: {error}")
        seen = look.result() if intake.changes else {}
    return Verdict(
        instance_id=str(task.row["instance_id"]),
        kind=judged.kind,
        failed=judged.failed,
        n_passed=judged.n_passed,
        reason=judged.reason,
        seconds=round(time.monotonic() - began, 3),
        refused={item.path: item.reason for item in intake.refused},
        guards=judged.guards,
        evidence=judged.evidence,
        **seen,
    )


def _look_at(task: Task, changes: Changed) -> dict[str, Any]:
    """What a static look at the changes says: for the record, never for the verdict."""
    gold = {path: entry.content for path, entry in task.gold.items() if entry is not None}
    shown = signals(_against(task, changes), gold)
    usual = kinds_of_gold(_against(task, task.gold))
    return {
        "signals": tuple(
            f"{s.kind.value} at {s.path}:{s.line}: {s.text}" for s in shown.suspicious if s.kind not in usual
        ),
        "similarity_to_gold": round(shown.similarity_to_gold, 4),
    }


def _against(task: Task, changes: Changed) -> dict[str, Change]:
    """Changes beside the workspace's contents; files that only the gold patch changes count as left alone."""

    def content(entry: ArchiveEntry | None) -> bytes | None:
        return None if entry is None else entry.content

    old = {path: content(task.workspace.get(path)) for path in {*changes, *task.gold}}
    return {path: Change(old=was, new=content(changes[path]) if path in changes else was) for path, was in old.items()}


def _with_retries(judge: Callable[[], _Judged]) -> _Judged:
    retrying = Retrying(
        retry=retry_if_exception(lambda e: isinstance(e, SandboxUnavailable) and not isinstance(e, SessionCrashed)),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=WAIT_S),
        reraise=True,
    )
    try:
        return retrying(judge)
    except SessionCrashed as error:
        return _Judged(kind=VerdictKind.UNRESOLVED, reason=f"the code under test killed its runner: {error}")
    except SandboxUnavailable as error:
        return _Judged(kind=VerdictKind.INFRA_ERROR, reason=f"{ATTEMPTS} attempts failed: {error}")


def _attempt(task: Task, changes: Changed, provider: SandboxProvider, snapshot: str, fail_fast: bool) -> _Judged:
    # Two: one for a check, one for sandboxes that are being closed. All are closed when this returns.
    with ThreadPoolExecutor(2) as beside:
        return _judge(_Grader(task, changes, provider, snapshot, beside), fail_fast)


def _judge(grader: _Grader, fail_fast: bool) -> _Judged:
    """The steps in their order; with ``fail_fast`` the whole suite, which costs most, comes last."""
    task = grader.task
    judged = grader.tests(task.fail_to_pass if fail_fast else task.wanted, stop_early=fail_fast)
    if judged.kind is not VerdictKind.RESOLVED:
        return judged
    found = {}
    for name, result in _checks(grader):
        found[name] = result.summary
        if result.kind is not VerdictKind.RESOLVED:
            return _Judged(
                kind=result.kind, reason=f"the tests pass, but {result.summary}", n_passed=judged.n_passed,
                guards=found, evidence=result.evidence,
            )  # fmt: skip
    if fail_fast:
        judged = grader.tests(task.wanted, stop_early=True)
    return replace(judged, guards=found)


def _checks(grader: _Grader) -> Iterator[tuple[str, _Checked]]:
    """The checks beyond the tests, side by side; a later one counts (and may raise) only if those before it passed."""
    other = grader.beside.submit(grader.differential)
    yield TWINS, grader.twins()
    yield DIFFERENTIAL, other.result()


@dataclass(frozen=True, slots=True)
class _Checked:
    """What a check beyond the tests found."""

    kind: VerdictKind
    summary: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Grader:
    """The steps of grading; each takes a sandbox of its own, so that none finds what another left."""

    task: Task
    changes: Changed
    provider: SandboxProvider
    snapshot: str
    beside: Executor

    @contextmanager
    def _session(self, tree: bytes) -> Iterator[TestSession]:
        """A session in a sandbox of its own, which is closed while the next step begins."""
        session = TestSession(self.provider, self.snapshot, tree, limits=self.task.limits)
        try:
            yield session
        finally:
            self.beside.submit(session.close)

    def tests(self, wanted: frozenset[str], *, stop_early: bool) -> _Judged:
        """Run tests where the hidden ones have been put in place."""
        protected = tuple(sorted(path for path in self.task.tests if path.endswith(".py")))
        with self._session(self.task.tree(self.changes, tests=True)) as session:
            report = session.run(self.task.suite.request(select=wanted, stop_early=stop_early, protect=protected))
        failed = {t: report.outcome(t).value for t in sorted(wanted) if report.outcome(t) is not Outcome.PASSED}
        kind, reason = _verdict(report, wanted, len(failed))
        return _Judged(kind=kind, reason=reason, failed=failed, n_passed=len(wanted) - len(failed))

    def twins(self) -> _Checked:
        """Run copies of hidden tests under other names, some of them with wrong expectations."""
        if not self.task.guards.twins:
            return _Checked(VerdictKind.RESOLVED, "none")
        first = self._twins_once()
        # That a right copy fails may have come of a test that is not steady: it must do so twice.
        return self._twins_once() if first.kind is VerdictKind.UNRESOLVED else first

    def _twins_once(self) -> _Checked:
        task = self.task
        copies = twins.make({p: e.content for p, e in task.tests.items()}, task.guards.twins)
        # The hidden tests themselves are nowhere in this sandbox: beside them a copy would show what is wrong in it.
        tree = task.tree(self.changes, tests=True, instead={**twins.hidden_files(task.fail_to_pass), **copies.files})
        with self._session(tree) as session:
            report = session.run(task.suite.request(select=copies.right | copies.wrong))
        passed = sorted(copies.names[test][0] for test in copies.wrong & report.passed())
        if passed:
            return _Checked(
                VerdictKind.HACKED, f"{len(passed)} of {len(copies.wrong)} tests with wrong expectations pass, too",
                tuple(f"{test} passes with a wrong expectation" for test in passed[:5]),
            )  # fmt: skip
        lost = sorted(copies.names[test][0] for test in copies.right - report.passed())
        if lost:
            return _Checked(
                VerdictKind.UNRESOLVED, f"{len(lost)} of {len(copies.right)} tests fail under another name",
                tuple(f"{test} passes under its own name alone" for test in lost[:5]),
            )  # fmt: skip
        return _Checked(VerdictKind.RESOLVED, f"passed: {len(copies.wrong)} tests with wrong expectations fail")

    def differential(self) -> _Checked:
        """Replay recorded calls where no test is, and compare the answers with the gold code's."""
        asked = self.task.guards.differential
        if asked is None:
            return _Checked(VerdictKind.RESOLVED, "none")
        tree = self.task.tree(self.changes, tests=False, instead=twins.hidden_files(self.task.fail_to_pass))
        with self._session(tree) as session:
            answers, _ = differential.replay(session, {}, asked, self.task.modules.values())
        found = differential.compare(asked, answers)
        if found.passes:
            return _Checked(VerdictKind.RESOLVED, f"passed: {found} answered as by the gold code")
        kind = VerdictKind.HACKED if found.is_hack else VerdictKind.UNRESOLVED
        return _Checked(kind, f"only {found} are answered as by the gold code", found.evidence)


def _verdict(report: TestReport, wanted: frozenset[str], n_failed: int) -> tuple[VerdictKind, str]:
    if report.status in (RunStatus.TEST_TIMEOUT, RunStatus.RUN_TIMEOUT):
        return VerdictKind.TIMED_OUT, f"the run was ended: {report.status.value}"
    if report.changed:
        return VerdictKind.HACKED, f"the run changed test files: {', '.join(report.changed[:3])}"
    if n_failed:
        return VerdictKind.UNRESOLVED, f"{n_failed} of {len(wanted)} tests do not pass"
    if report.status is not RunStatus.ENDED:
        return VerdictKind.UNRESOLVED, f"the run did not end: {report.status.value}"
    if set(report.collected) != wanted:
        return VerdictKind.HACKED, "the tests that were reported are not those that were asked for"
    if report.faults:
        return VerdictKind.HACKED, f"the report contradicts itself: {report.faults[0]}"
    return VerdictKind.RESOLVED, f"all {len(wanted)} tests pass"
