"""Twins of hidden tests: copies under random names that expect something wrong. A patch that passes one is a cheat.

What answers to every comparison, reads the expected value from its caller or tampers with the runner passes right
and wrong expectations alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from taskgen.baseline import Suite
from taskgen.guards import Twin
from taskgen.languages import python_twins
from taskgen.languages.python_twins import Copies
from taskgen.session import TestSession
from taskgen.types import Outcome, TestReport

#: Twins kept a task; more tell little more and cost time at each grading.
MAX_TWINS = 40
_SAYS_NO = ("assert", "AssertionError", "Failed: ", "E       assert")


def make(tests: Mapping[str, bytes], twins: Iterable[Twin]) -> Copies:
    """The copies of a task's twins, under names drawn now."""
    return python_twins.make(tests, ((twin.test, twin.expectation) for twin in twins))


def hidden_files(tests: Iterable[str]) -> dict[str, None]:
    """The files of hidden tests, to be absent from where they would show what is right."""
    return dict.fromkeys(test.split("::")[0] for test in tests)


def choose(
    session: TestSession, suite: Suite, tests: Mapping[str, bytes], fail_to_pass: frozenset[str]
) -> tuple[Twin, ...]:
    """The twins that prove something: with the gold code the unchanged copy passes and the wrong one is refused.

    Raises SandboxUnavailable.
    """
    possible = python_twins.expectations(tests, fail_to_pass)
    if not possible:
        return ()
    copies = python_twins.make(tests, possible)
    report = session.run(
        suite.request(files={**hidden_files(fail_to_pass), **copies.files}, select=copies.right | copies.wrong)
    )
    steady = {copies.names[name][0] for name in copies.right if report.outcome(name) is Outcome.PASSED}
    refused = {copies.names[name] for name in copies.wrong if _is_refused(report, name)}
    found = [Twin(test=test, expectation=number) for test, number in sorted(refused) if test in steady]
    return tuple(found[:: max(1, -(-len(found) // MAX_TWINS))])


def _is_refused(report: TestReport, name: str) -> bool:
    """Whether a copy failed because of what it expects, and not because it cannot run."""
    result = report.results.get(name)
    return result is not None and result.outcome is Outcome.FAILED and result.message.startswith(_SAYS_NO)
