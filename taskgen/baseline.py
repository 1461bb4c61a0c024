"""What the pristine suite does: repeated runs, tests that cannot be trusted set apart, coverage by test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from taskgen.errors import SourceError
from taskgen.session import RunRequest, TestSession
from taskgen.types import Baseline, Coverage, Outcome, RunStatus, TestReport

#: A test that takes longer than this is set apart: rollouts and grading would pay for it each time.
SLOW_S = 15.0
#: The least share of tests that must pass for a suite to count as passing.
MIN_PASSING_SHARE = 0.9
#: How many hanging or crashing tests are set apart before the suite is given up.
MAX_LOST_TESTS = 5
#: The suite as a whole, unless the repository says otherwise.
RUN_TIMEOUT_S = 900.0
_TAIL_CHARS = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """How to run a repository's tests: options for the runner and limits in seconds."""

    args: tuple[str, ...]
    test_timeout_s: float = 60.0
    run_timeout_s: float = RUN_TIMEOUT_S

    def request(self, **more: object) -> RunRequest:
        """A run with this suite's options; ``more`` as in RunRequest."""
        return RunRequest(
            args=self.args,
            test_timeout_s=self.test_timeout_s,
            run_timeout_s=self.run_timeout_s,
            **more,  # type: ignore[arg-type]
        )


def measure(
    make_session: Callable[[int], TestSession],
    suite: Suite,
    modules: Sequence[str],
    *,
    n_runs: int,
    seed: int,
) -> Baseline:
    """Run the suite ``n_runs`` times (the last in random order with another hash seed) and once for coverage.

    Args:
        make_session: hash seed -> a session on the pristine tree.

    Raises:
        SourceError: the suite does not pass, or has no tests; with the tail of its log.
        SandboxUnavailable: the sandbox failed.
    """
    set_apart: dict[str, Outcome] = {}
    with make_session(0) as session:
        reports = [_whole_run(session, suite, set_apart)]
        _must_pass(reports[0])
        for _ in range(n_runs - 2):
            reports.append(_whole_run(session, suite, set_apart))
        measured = _whole_run(session, suite, set_apart, coverage=True, without=_slow(reports))
        importable = session.importable(modules, {})
    if n_runs > 1:
        with make_session(1 + seed % 4_000_000_000) as session:
            reports.append(_whole_run(session, suite, set_apart, shuffle=seed))
    return _summarise(reports, measured, set_apart, tuple(m for m, error in importable.items() if not error))


def _slow(reports: Sequence[TestReport]) -> frozenset[str]:
    """Tests that were too slow in some run: coverage would slow them further, past what a test may take."""
    return frozenset(t for report in reports for t, result in report.results.items() if result.seconds > SLOW_S)


def _whole_run(
    session: TestSession,
    suite: Suite,
    set_apart: dict[str, Outcome],
    *,
    shuffle: int | None = None,
    coverage: bool = False,
    without: frozenset[str] = frozenset(),
) -> TestReport:
    """Run the suite ``without`` some tests; one that hangs or crashes is set apart, and the run begins again."""
    while True:
        report = session.run(suite.request(shuffle=shuffle, coverage=coverage, deselect=without | frozenset(set_apart)))
        if report.status is RunStatus.ENDED:
            return report
        lost = {t: r.outcome for t, r in report.results.items() if r.outcome in (Outcome.TIMED_OUT, Outcome.CRASHED)}
        set_apart.update(lost)
        if not lost or len(set_apart) > MAX_LOST_TESTS or report.status is RunStatus.RUN_TIMEOUT:
            raise SourceError(
                f"the suite does not end: {report.status} after {report.seconds:.0f} s"
                f" ({len(report.results)} of {len(report.collected)} tests ran;"
                f" lost: {', '.join(set_apart) or 'none'})\n" + report.output[-_TAIL_CHARS:],
                hint="raise `timeout_s`, or leave tests out with `test_command`",
            )


def _must_pass(report: TestReport) -> None:
    ran = [r for r in report.results.values() if r.outcome not in (Outcome.SKIPPED, Outcome.XFAILED)]
    passed = sum(r.outcome is Outcome.PASSED for r in ran)
    if ran and passed >= MIN_PASSING_SHARE * (len(ran) + len(report.collection_errors)):
        return
    first = next(iter(report.collection_errors.items()), None)
    detail = f"\nfirst collection error: {first[0]}: {first[1][-600:]}" if first else ""
    raise SourceError(
        f"the suite does not pass: {passed} of {len(ran)} tests that ran passed, "
        f"{len(report.collection_errors)} files did not load{detail}\n{report.output[-_TAIL_CHARS:]}",
        hint="add what the tests need to `requirements`, or choose tests with `test_paths` or `test_command`",
    )


def _summarise(
    reports: Sequence[TestReport],
    measured: TestReport,
    set_apart: dict[str, Outcome],
    importable: tuple[str, ...],
) -> Baseline:
    counts: dict[str, Counter[Outcome]] = {}
    seconds: dict[str, list[float]] = {}
    for report in reports:
        for test in report.collected:
            counts.setdefault(test, Counter())[report.outcome(test)] += 1
            if test in report.results:
                seconds.setdefault(test, []).append(report.results[test].seconds)
    medians = {test: median(found) for test, found in seconds.items()}
    steady = {t: next(iter(c)) for t, c in counts.items() if len(c) == 1 and c.total() == len(reports)}
    apart = set(set_apart) | {test for test, taken in medians.items() if taken > SLOW_S}
    passing = [t for t, outcome in steady.items() if outcome is Outcome.PASSED and t not in apart]
    # None: no line of the project ran.
    coverage = measured.coverage or Coverage(tests=measured.collected, lines={}, import_lines={})
    incomplete = coverage.ids(coverage.spawning) | (set(passing) - measured.passed())
    return Baseline(
        n_runs=len(reports),
        passing=tuple(sorted(passing)),
        flaky=tuple(sorted(set(counts) - set(steady) - apart)),
        slow=tuple(sorted(apart)),
        failing=tuple(sorted(t for t, o in steady.items() if o is not Outcome.PASSED and t not in apart)),
        seconds=medians,
        coverage=coverage,
        unmeasured=frozenset(incomplete) & frozenset(passing),
        importable=importable,
        suite_s=median(report.seconds for report in reports),
        suite_cpu_s=median(report.cpu_s for report in reports),
    )
