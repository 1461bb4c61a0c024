"""Whether a candidate is a fair task: evidence from runs, or a Rejection that says what was missing.

The cheapest and most telling checks come first. Tests that the deletion touches run before anything else and
reject most candidates in a fraction of a suite; whole suites run only for what survives.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from taskgen import lint, stubs, syntax
from taskgen.baseline import Suite
from taskgen.deletions.survey import Survey
from taskgen.languages.python_project import Symbol
from taskgen.languages.python_syntax import PYTHON
from taskgen.languages.python_tests import UnremovableTest, remove_tests
from taskgen.session import SessionCrashed, TestSession
from taskgen.types import Candidate, Evidence, Outcome, Recipe, Rejection, RunStatus, TestReport

#: A broken program may hang where the pristine one was fast; it gets this many times the slowest test's time.
TIMEOUT_FACTOR = 10.0
MIN_TEST_TIMEOUT_S = 10.0
_NAMES_SHOWN = 5
Files = Mapping[str, bytes | None]


class _Rejected(Exception):
    def __init__(self, stage: str, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.stage, self.reason, self.detail = stage, reason, detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """What the runs proved: the test lists and the evidence.

    Attributes:
        unpredicted: F2P tests that coverage and references had not predicted.
    """

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    evidence: Evidence
    unpredicted: tuple[str, ...]


@dataclass(kw_only=True)
class Validator:
    """Validates candidates of one repository, one after another, in one session.

    Attributes:
        n_runs: how often each test must show the same outcome in the workspace.
        full_runs: how many of these runs are of the whole suite (the others: of touched tests only).
        build: runs the package's own build command on files; returns '' or what went wrong. None: there is none.
    """

    session: TestSession
    survey: Survey
    suite: Suite
    recipes: Mapping[str, Recipe]
    n_runs: int = 3
    full_runs: int = 3
    build: Callable[[Files], str] | None = None
    _passing: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._passing = frozenset(self.survey.baseline.passing)

    def validate(self, candidate: Candidate) -> Proven | Rejection:
        """Run the checks in order. Raises SandboxUnavailable if the sandbox (not the candidate) fails."""
        began = time.monotonic()
        try:
            self._check_syntax(candidate)
            self._check_imports(candidate)
            touched = candidate.predicted | self.survey.baseline.unmeasured
            failing = self._failing(candidate, touched)
            self._check_bounds(candidate, failing)
            self._check_stubs(candidate, failing)
            failing = self._confirm(candidate, failing, touched)
            self._check_visible(candidate, failing, touched)
            self._check_build(candidate)
            self._check_restored(failing)
        except _Rejected as no:
            return Rejection(candidate=candidate.instance_id, stage=no.stage, reason=no.reason, detail=no.detail)
        except SessionCrashed as error:
            return Rejection(
                candidate=candidate.instance_id, stage="null", reason="kills the test runner", detail=str(error)[-500:]
            )
        return Proven(
            fail_to_pass=tuple(sorted(failing)),
            pass_to_pass=tuple(sorted(self._passing - failing)),
            unpredicted=tuple(sorted(failing - candidate.predicted)),
            evidence=Evidence(
                n_runs=self.n_runs,
                full_runs=min(self.full_runs, self.n_runs),
                flaky=self.survey.baseline.flaky,
                null_fails=True,
                stub_fails=True,
                gold_passes=True,
                tree_restored=True,
                seconds=round(time.monotonic() - began, 3),
            ),
        )

    def passes(self, candidate: Candidate, files: Files, tests: frozenset[str]) -> bool:
        """Whether tests pass in the workspace with some files changed. Raises SandboxUnavailable."""
        try:
            report = self._run({**candidate.deletion.files, **files}, tests, stop_early=True)
        except SessionCrashed:
            return False
        return report.status is RunStatus.ENDED and tests <= report.passed()

    # -- the build stays green -------------------------------------------------------------------

    def _check_syntax(self, candidate: Candidate) -> None:
        edited = {path: data for path, data in candidate.deletion.files.items() if data is not None}
        for path, data in edited.items():
            if syntax.has_errors(syntax.parse(PYTHON, data)):
                raise _Rejected("build", "what is left of a file does not parse", path)
        pristine = {path: self.survey.project.sources[path].source for path in edited}
        fresh = [text for text in lint.new_findings(pristine, edited) if not self._is_reexport(text)]
        if fresh:
            raise _Rejected("build", "the linter finds new faults", "; ".join(fresh[:_NAMES_SHOWN]))

    def _is_reexport(self, finding: str) -> bool:
        """Whether an import is unused in its file alone: other files take the name from there."""
        path, _, text = finding.partition(": ")
        match = re.match(r"F401 `(?:.*[. ])?(\w+)` imported", text)
        project = self.survey.project
        if match is None:
            return False
        symbol = Symbol(path=path, name=match.group(1))
        return bool(project.bindings.get(symbol)) or any(True for _ in project.attribute_uses(symbol))

    def _check_imports(self, candidate: Candidate) -> None:
        sources = self.survey.project.sources
        gone = {sources[path].module for path, data in candidate.deletion.files.items() if data is None}
        names = [name for name in self.survey.baseline.importable if name not in gone]
        errors = {n: e for n, e in self.session.importable(names, candidate.deletion.files).items() if e}
        if errors:
            detail = "; ".join(f"{name}: {error}" for name, error in list(errors.items())[:_NAMES_SHOWN])
            raise _Rejected("build", "remaining modules do not import", detail)

    def _check_build(self, candidate: Candidate) -> None:
        if self.build is not None and (problem := self.build(candidate.deletion.files)):
            raise _Rejected("build", "the build command fails", problem[-1000:])

    # -- runs ------------------------------------------------------------------------------------

    def _run(
        self, files: Files, tests: frozenset[str] | None, *, stop_early: bool = False, shuffle: int | None = None
    ) -> TestReport:
        baseline = self.survey.baseline
        wanted = self._passing if tests is None else tests
        slowest = max((baseline.seconds.get(test, 0.0) for test in wanted), default=0.0)
        limit = min(self.suite.test_timeout_s, max(MIN_TEST_TIMEOUT_S, TIMEOUT_FACTOR * slowest))
        request = self.suite.request(
            files=files,
            select=tests,
            deselect=frozenset(baseline.slow) if tests is None else frozenset(),
            stop_early=stop_early,
            shuffle=shuffle,
        )
        return self.session.run(replace(request, test_timeout_s=limit))

    def _failing(self, candidate: Candidate, tests: frozenset[str]) -> frozenset[str]:
        """The touched tests that fail once the feature is gone."""
        report = self._run(candidate.deletion.files, tests)
        _must_end(report)
        return tests - report.passed()

    def _check_bounds(self, candidate: Candidate, failing: frozenset[str]) -> None:
        bounds = self.recipes[candidate.recipe].bounds
        if not failing:
            raise _Rejected("null", "no test fails without the feature")
        collateral = len(failing - candidate.covering)
        for bad, reason in (
            (len(failing) < bounds.min_fail_to_pass, f"fewer than {bounds.min_fail_to_pass} tests fail"),
            (len(failing) > bounds.max_fail_to_pass, f"more than {bounds.max_fail_to_pass} tests fail"),
            (len(failing) > bounds.max_suite_share * len(self._passing), "too much of the suite fails"),
            (collateral > bounds.max_collateral_share * len(failing), "most failing tests do not run the feature"),
        ):
            if bad:
                raise _Rejected("null", reason, f"{len(failing)} of {len(self._passing)} fail, {collateral} collateral")

    def _check_stubs(self, candidate: Candidate, failing: frozenset[str]) -> None:
        tried: list[Files] = [candidate.deletion.files]  # which fails, as the first run showed
        for kind in stubs.Stub:
            files = stubs.stubbed(self.survey.project, candidate.deletion, kind)
            if files in tried:
                continue
            tried.append(files)
            report = self._run(files, failing, stop_early=True)
            if report.status is RunStatus.ENDED and failing <= report.passed():
                raise _Rejected("stub", "a stub passes the hidden tests", kind.value)

    def _confirm(self, candidate: Candidate, failing: frozenset[str], touched: frozenset[str]) -> frozenset[str]:
        """Repeat, in random order, whole suites first. With the first run of the touched tests and the run of
        ``_check_visible`` each test then has shown its outcome ``n_runs`` times."""
        for number in range(1, self.n_runs):
            whole = number < self.full_runs
            report = self._run(candidate.deletion.files, None if whole else touched, shuffle=number)
            _must_end(report)
            expected = self._passing if whole else touched
            found = expected - report.passed()
            if number == 1 and found > failing:
                failing = found  # what the prediction missed
                self._check_bounds(candidate, failing)
            elif found != failing & expected:
                raise _Rejected("null", "not every run fails the same tests", _some(found ^ (failing & expected)))
        return failing

    def _check_visible(self, candidate: Candidate, failing: frozenset[str], touched: frozenset[str]) -> None:
        """Take the failing tests out of the tree; what is left of the suite must pass."""
        try:
            tests = remove_tests(self.survey.project.tests, failing)
        except UnremovableTest as error:
            raise _Rejected("tests", "a hidden test cannot be taken out", str(error)) from error
        for path, data in tests.items():
            if data is not None and syntax.has_errors(syntax.parse(PYTHON, data)):
                raise _Rejected("tests", "what is left of a test file does not parse", path)
        wanted, select = self._passing - failing, None
        if not self.full_runs:
            edited = {path for path, data in tests.items() if data is not None}
            wanted = frozenset(t for t in wanted if t in touched or t.split("::")[0] in edited)
            select = frozenset(t for t in wanted if tests.get(t.split("::")[0], b"") is not None)
            if not select:
                return
        report = self._run({**candidate.deletion.files, **tests}, select)
        _must_end(report)
        if left := failing & set(report.collected):
            raise _Rejected("tests", "hidden tests are still in the tree", _some(left))
        broken = (set(report.collected) & wanted) - report.passed()
        if broken or report.collection_errors:
            raise _Rejected("tests", "the remaining tests do not pass", _some(broken or report.collection_errors))
        self._check_hidden_neighbours(candidate, wanted - set(report.collected) - touched)

    def _check_hidden_neighbours(self, candidate: Candidate, tests: frozenset[str]) -> None:
        """Tests that pass and went with a function or class of hidden ones were not in the last run: run them."""
        if not tests:
            return
        report = self._run(candidate.deletion.files, tests)
        if broken := tests - report.passed():
            raise _Rejected("null", "not every run fails the same tests", _some(broken))

    def _check_restored(self, failing: frozenset[str]) -> None:
        """The gold tree is the pristine tree (compared byte by byte when the task is packed): run the hidden
        tests there alone, without those that ran before them in the suite."""
        report = self._run({}, failing)
        if lost := failing - report.passed():
            raise _Rejected("gold", "hidden tests fail with the gold patch when run alone", _some(lost))


def _must_end(report: TestReport) -> None:
    if report.status is RunStatus.ENDED:
        return
    lost = [t for t, r in report.results.items() if r.outcome in (Outcome.TIMED_OUT, Outcome.CRASHED)]
    raise _Rejected("null", f"a run did not end ({report.status.value})", _some(lost) or report.output[-300:])


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _NAMES_SHOWN} more" if len(listed) > _NAMES_SHOWN else ""
    return ", ".join(listed[:_NAMES_SHOWN]) + more
