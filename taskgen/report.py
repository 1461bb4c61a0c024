"""What the events of a test run say together, and where they contradict each other.

They were written next to hostile code: what is missing or of another shape is an error, never a default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taskgen.types import Coverage, Outcome, RunStatus, TestReport, TestResult


def of_events(events: Sequence[dict[str, Any]]) -> TestReport:
    """The report of a run from its events, of which the last is ``done``.

    Raises KeyError, TypeError, ValueError or AttributeError: they are not those of a run.
    """
    collected: tuple[str, ...] = ()
    results: dict[str, TestResult] = {}
    errors: dict[str, str] = {}
    lines: dict[str, dict[int, int]] = {}
    imported: dict[str, set[int]] = {}
    faults: list[str] = []
    codes: list[int] = []
    n_collected = 0
    for event in events:
        match event["e"]:
            case "collected":
                collected = tuple(str(test) for test in event["ids"])
                n_collected += 1
            case "collect_error":
                errors[str(event["id"])] = str(event["message"])
            case "finish":
                codes.append(int(event["code"]))
            case "end" if 0 <= event["i"] < len(collected):
                if collected[event["i"]] in results:
                    faults.append(f"{collected[event['i']]} was reported twice")
                results[collected[event["i"]]] = TestResult(
                    outcome=Outcome(event["o"]),
                    seconds=float(event["s"]),
                    spawned=bool(event["p"]),
                    message=str(event["m"]),
                )
            case "coverage":
                _add_coverage(event, len(collected), lines, imported)
    done = events[-1]
    status = RunStatus(done["status"])
    running = done.get("running")
    if status is not RunStatus.ENDED and isinstance(running, int) and 0 <= running < len(collected):
        ended = Outcome.CRASHED if status is RunStatus.CRASHED else Outcome.TIMED_OUT
        results[collected[running]] = TestResult(outcome=ended)
    spawning = sum(1 << i for i, test in enumerate(collected) if test in results and results[test].spawned)
    coverage = Coverage(
        tests=collected,
        lines=lines,
        import_lines={path: frozenset(found) for path, found in imported.items()},
        spawning=spawning,
    )
    if status is RunStatus.ENDED:
        faults += _disagreements(n_collected, codes, int(done["code"]), results, bool(errors))
    return TestReport(
        faults=tuple(faults),
        changed=tuple(str(path) for path in done.get("changed", ())),
        status=status,
        results=results,
        collected=collected,
        collection_errors=errors,
        output=str(done["output"]),
        seconds=float(done["seconds"]),
        cpu_s=float(done["cpu_s"]),
        coverage=coverage if lines or imported else None,
    )


def _disagreements(
    n_collected: int, codes: Sequence[int], exit_code: int, results: Mapping[str, TestResult], errors: bool
) -> Iterator[str]:
    """What the parts of a report say against each other: events, the runner's code, the process's exit code."""
    if n_collected != 1:
        yield f"the tests were collected {n_collected} times"
    if codes != [exit_code]:
        yield f"the runner ended with {codes}, its process with {exit_code}"
    failed = errors or any(r.outcome in (Outcome.FAILED, Outcome.ERROR) for r in results.values())
    if results and (exit_code != 0) != failed:
        yield f"exit code {exit_code} and {'failures' if failed else 'no failure'} do not agree"


def _add_coverage(
    event: Mapping[str, Any], n_tests: int, lines: dict[str, dict[int, int]], imported: dict[str, set[int]]
) -> None:
    path = str(event["f"])
    for key, flat in event["t"].items():
        test = int(key)
        if test >= n_tests:
            continue
        spans = zip(flat[::2], flat[1::2], strict=True)
        numbers = [line for first, last in spans for line in range(int(first), int(last) + 1)]
        if test < 0:
            imported.setdefault(path, set()).update(numbers)
            continue
        found, bit = lines.setdefault(path, {}), 1 << test
        for line in numbers:
            found[line] = found.get(line, 0) | bit
