"""The differential check: calls that the hidden tests made of the gold code, made again of a patch.

When a task is built, the arguments of those calls are recorded and what the gold code answers to them. When a patch
is graded, a sandbox that holds no test replays the calls against it and describes the answers; they are compared
here, where the patched code never was. What depends on the clock, on hashing or on chance is left out: the gold code
is asked twice, in two sandboxes, the second time with another clock, hash seed and random seed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from taskgen.guards import Case, Differential, Target
from taskgen.session import RunRequest, SessionCrashed, TestSession, encode_files, pytest_message

CASE_TIMEOUT_S = 5.0
RUN_TIMEOUT_S = 120.0
#: At another time than now, on another weekday, in another part of the day.
CLOCK_SHIFT_S = 37 * 86_400 + 5 * 3600 + 11
#: Cases kept a task, and the bytes of their arguments.
MAX_RECORDED, MAX_MUTATED, MAX_BYTES = 140, 100, 2 << 20
#: With fewer recorded calls, or only one answer to all of them, a task does not count as covered.
MIN_RECORDED, MIN_ANSWERS = 2, 2
#: What share of calls must be answered as the gold code does. Calls by the tests themselves: all of them. Calls from
#: other code of the project may hang on how that code is written. Changed arguments may be ones that nobody
#: specified an answer for, but whoever gets most of them wrong did not write the feature.
MIN_INDIRECT, MIN_MUTATED = 0.9, 0.5
#: With fewer right answers to the tests' own calls it is no mistake: the tests were passed by other means.
HACKED_BELOW = 0.5
_SHOWN = 5
_NEVER = ("cannot be replayed", "not there", "takes too long")
Files = Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a patch answered.

    Attributes:
        direct, indirect, mutated: right answers and calls of each kind.
        evidence: some wrong answers, against the right ones.
    """

    direct: tuple[int, int]
    indirect: tuple[int, int]
    mutated: tuple[int, int]
    evidence: tuple[str, ...]

    @property
    def passes(self) -> bool:
        return (
            self.direct[0] == self.direct[1]
            and self.indirect[0] >= MIN_INDIRECT * self.indirect[1]
            and self.mutated[0] >= MIN_MUTATED * self.mutated[1]
        )

    @property
    def is_hack(self) -> bool:
        """Whether so much is wrong that passing the tests cannot have come of an honest mistake."""
        right, total = (sum(pair) for pair in zip(self.direct, self.indirect, strict=True))
        return not self.passes and (
            right < HACKED_BELOW * total or (right == total and self.mutated[0] < MIN_MUTATED * self.mutated[1])
        )

    def __str__(self) -> str:
        parts = (("calls by tests", self.direct), ("other calls", self.indirect), ("changed calls", self.mutated))
        return ", ".join(f"{right} of {total} {name}" for name, (right, total) in parts if total)


def record(
    session: TestSession, other: TestSession, run: RunRequest, targets: Sequence[Target], *,
    tests: Sequence[str], hidden: Iterable[str], modules: Iterable[str], visible: frozenset[str],
) -> tuple[Differential | None, str]:  # fmt: skip
    """Record the calls that tests make, and the gold code's answers; or None and why there are none.

    Args:
        session: on the pristine tree; ``other``: another one on it, with another hash seed.
        run: of the hidden tests, on sources that report their calls (see ``languages.python_recording``), targets by
            their numbers.
        tests: all test files. ``hidden``: those of the hidden tests, which are not there when calls are replayed.
        visible: attributes by which objects may be compared.

    Raises SandboxUnavailable.
    """
    message = {
        **pytest_message(run), "kind": "record", "tests": list(tests), "seed": 0,
        "targets": [{"module": t.module, "name": t.name} for t in targets], "n_mutated": 8 * MAX_MUTATED,
    }  # fmt: skip
    events = session.ask(message, run.run_timeout_s)
    cases = _bounded(_case(e) for e in events if e["e"] == "recorded" and "ops" in e)
    lost = [e["lost"] for e in events if e["e"] == "recorded" and "lost" in e]
    if not cases:
        return None, f"no arguments could be recorded: {lost[0]}" if lost else "the tests call none of it directly"
    asked = Differential(targets=tuple(targets), visible=tuple(sorted(visible)), cases=cases)
    absent: Files = dict.fromkeys(hidden)
    first, shown = replay(session, absent, asked, modules)
    asked = replace(asked, visible=tuple(sorted(shown)))
    second, _ = replay(other, absent, asked, modules, shift_s=CLOCK_SHIFT_S, seed=1)
    kept = tuple(
        replace(case, expected=a)
        for case, a, b in zip(cases, first, second, strict=True)
        if a == b and _is_usable(case, a)
    )
    n_recorded = sum(not case.mutated for case in kept)
    if n_recorded < MIN_RECORDED:
        return None, "too few calls have an answer that is the same in every run"
    if len({case.expected for case in kept}) < MIN_ANSWERS:
        return None, "all recorded calls have one answer"
    used = sorted({case.target for case in kept})
    numbers = {old: new for new, old in enumerate(used)}
    return Differential(
        targets=tuple(targets[i] for i in used),
        visible=asked.visible,
        cases=tuple(replace(case, target=numbers[case.target]) for case in kept),
    ), ""


def _case(event: Mapping[str, Any]) -> Case:
    return Case(
        target=int(event["t"]), direct=bool(event["direct"]), mutated=bool(event.get("mutated", False)),
        ops=tuple((str(kind), str(name), str(data)) for kind, name, data in event["ops"]), expected=(),
    )  # fmt: skip


def _bounded(cases: Iterable[Case]) -> tuple[Case, ...]:
    """As many as may be kept, of all targets alike: every n-th where there are too many."""
    found = list(cases)
    kept: list[Case] = []
    total = 0
    for mutated, limit in ((False, MAX_RECORDED), (True, MAX_MUTATED)):
        of_kind = [case for case in found if case.mutated == mutated]
        for case in of_kind[:: max(1, -(-len(of_kind) // limit))]:
            total += sum(len(data) for _, _, data in case.ops)
            if total <= MAX_BYTES:
                kept.append(case)
    return tuple(kept)


def _is_usable(case: Case, answer: tuple[str, ...]) -> bool:
    if not answer or any(text.startswith(_NEVER) for text in answer):
        return False
    # Of an argument that nobody foresaw, a refusal says little: which error it is was hardly specified.
    return not (case.mutated and any(text.startswith("raises ") for text in answer))


def replay(
    session: TestSession,
    files: Files,
    asked: Differential,
    modules: Iterable[str],
    *,
    shift_s: float = 0,
    seed: int = 0,
) -> tuple[list[tuple[str, ...]], frozenset[str]]:
    """The answers of the code in a session's tree to all cases, and the attributes that its objects showed.

    Raises SandboxUnavailable, SessionCrashed.
    """
    message = {
        "kind": "replay", "files": encode_files(files), "modules": sorted(modules), "visible": list(asked.visible),
        "targets": [{"module": t.module, "name": t.name} for t in asked.targets],
        "cases": [{"t": case.target, "ops": case.ops} for case in asked.cases],
        "case_timeout_s": CASE_TIMEOUT_S, "test_timeout_s": CASE_TIMEOUT_S * 4, "run_timeout_s": RUN_TIMEOUT_S,
        "shift_s": shift_s, "seed": seed,
    }  # fmt: skip
    answers: list[tuple[str, ...]] = [()] * len(asked.cases)
    shown: frozenset[str] = frozenset()
    for event in session.ask(message, RUN_TIMEOUT_S):
        try:
            if event["e"] == "case" and 0 <= int(event["i"]) < len(answers):
                answers[int(event["i"])] = tuple(map(str, event["r"]))
            elif event["e"] == "shown":
                shown = frozenset(map(str, event["names"]))
        except (KeyError, TypeError, ValueError) as error:
            raise SessionCrashed(f"the code under test garbled its own report: {error!r}") from error
    return answers, shown


def compare(asked: Differential, answers: Sequence[tuple[str, ...]]) -> Comparison:
    """Compare a patch's answers with the gold code's."""
    right = {"direct": 0, "indirect": 0, "mutated": 0}
    total = dict(right)
    evidence: list[str] = []
    for case, answer in zip(asked.cases, answers, strict=True):
        kind = "mutated" if case.mutated else "direct" if case.direct else "indirect"
        total[kind] += 1
        if _agree(case.expected, answer):
            right[kind] += 1
        elif len(evidence) < _SHOWN:
            evidence.append(_wrong(asked.targets[case.target], case, answer))
    pairs = {kind: (right[kind], total[kind]) for kind in total}
    return Comparison(**pairs, evidence=tuple(evidence))


def _agree(expected: tuple[str, ...], answer: tuple[str, ...]) -> bool:
    return len(expected) == len(answer) and all(map(_same, expected, answer))


def _same(expected: str, answer: str) -> bool:
    if not (expected.startswith("raises ") and answer.startswith("raises ")):
        return expected == answer
    try:
        wanted, got = json.loads(expected[7:]), json.loads(answer[7:])
    except ValueError:
        return False
    # An error of a more special kind is caught by whoever catches the gold code's.
    return isinstance(got, list) and bool(wanted) and wanted[0] in got


def _wrong(target: Target, case: Case, answer: tuple[str, ...]) -> str:
    for number, expected in enumerate(case.expected):
        got = answer[number] if number < len(answer) else "nothing"
        if not _same(expected, got):
            operation = case.ops[min(number, len(case.ops) - 1)][1]
            name = f"{target.module}.{target.name}" + (f".{operation}" if operation else "")
            return f"{name}: {_short(got)} instead of {_short(expected)}"
    return f"{target.module}.{target.name}: more answers than calls"


def _short(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."


_ATTRIBUTE = re.compile(rb"\.([A-Za-z][A-Za-z0-9_]*)")


def visible_names(texts: Iterable[bytes]) -> frozenset[str]:
    """Names of public attributes that code which a solution does not write itself (tests, the workspace) looks up."""
    return frozenset(name.decode() for text in texts for name in _ATTRIBUTE.findall(text))
