"""Candidates in the order in which a policy is surprised by what they delete."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from taskgen import steering
from taskgen.commands.likelihood import surprises
from taskgen.difficulty import Design
from taskgen.errors import PolicyFault
from taskgen.fill import CannotFill, site_of_deletion
from taskgen.policies.policy import Form, Prompt, Sampled, Sampling
from taskgen.stopper import Interrupted
from taskgen.store import RunState
from taskgen.types import Candidate
from tests.project_helpers import find, operate, project_of

SOURCE = '''import math


def area(r):
    """Of a circle."""
    square = r * r
    return math.pi * square


def half(x):
    """A half."""
    return x / 2


def one(): return 1
'''


@dataclass
class Scoring:
    """Each letter of a body costs one nat."""

    form: Form = Form.CONTINUATION
    fault: bool = False
    name: str = "scoring"
    version: str = "1"
    batch: int = 1
    asked: list[tuple[str, str]] = field(default_factory=list)

    def complete(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Sampled]]:
        raise NotImplementedError

    def log_likelihoods(
        self, prompts: Sequence[Prompt], bodies: Sequence[str], sampling: Sampling
    ) -> list[float] | PolicyFault:
        self.asked += [(prompt.text, body) for prompt, body in zip(prompts, bodies, strict=True)]
        return PolicyFault("gone") if self.fault else [-float(len(body)) for body in bodies]

    def close(self) -> None:
        pass


def candidates(keep_docstring: bool = True) -> list[Candidate]:
    project = project_of({"shapes.py": SOURCE})
    found = []
    for name in ("area", "half", "one"):
        surgery = operate(project)
        surgery.remove_body(find(project, "shapes.py", name), keep_docstring=keep_docstring)
        found.append(
            Candidate(
                instance_id=name, recipe="function", deletion=surgery.deletion(), covering=frozenset(),
                predicted=frozenset(), score=0.0, keep_docstring=keep_docstring,
            )
        )  # fmt: skip
    return found


SOURCES = {"shapes.py": SOURCE.encode()}


def ask(policy: Scoring, out: Path, pool: list[Candidate]) -> dict[str, float]:
    with closing(RunState(out, {})) as state:
        return surprises(policy, Sampling(), pool, SOURCES, state, lambda: None)


def test_a_policy_is_asked_about_the_deleted_lines_at_their_place(tmp_path: Path) -> None:
    policy = Scoring()
    found = ask(policy, tmp_path / "out", candidates())
    body = "    square = r * r\n    return math.pi * square"
    assert policy.asked[0][1] == body and policy.asked[0][0].endswith('def area(r):\n    """Of a circle."""')
    assert policy.asked[1] == (SOURCE.split("    return x / 2")[0].removesuffix("\n"), "    return x / 2")
    assert found["area"] == len(body) > found["half"] == len("    return x / 2")
    # What is known is not asked again.
    again = Scoring()
    assert ask(again, tmp_path / "out", candidates()) == found and again.asked == []


def test_where_the_docstring_goes_it_is_not_in_the_prompt(tmp_path: Path) -> None:
    policy = Scoring()
    ask(policy, tmp_path / "out", candidates(keep_docstring=False)[:1])
    ((text, body),) = policy.asked
    assert text.endswith("def area(r):") and body.startswith("    square") and body.endswith("math.pi * square")


def test_what_is_no_body_of_its_own_lines_is_not_asked() -> None:
    several = candidates()[0].deletion
    assert isinstance(site_of_deletion(several, SOURCE.replace("half", "third").encode()), CannotFill)
    assert isinstance(site_of_deletion(several, b"\xff"), CannotFill)


def test_who_does_not_tell_is_not_asked_and_faults_are_no_answers(tmp_path: Path) -> None:
    answers = Scoring(form=Form.ANSWER)
    assert ask(answers, tmp_path / "a", candidates()) == {} and answers.asked == []
    with pytest.raises(PolicyFault):
        ask(Scoring(fault=True), tmp_path / "b", candidates())

    def stop() -> None:
        raise Interrupted("stopped")

    with closing(RunState(tmp_path / "c", {})) as state, pytest.raises(Interrupted):
        surprises(Scoring(), Sampling(), candidates(), SOURCES, state, stop)


def test_the_less_surprising_comes_first_and_attempts_move_the_rest() -> None:
    area, half, one = candidates()
    likely = {"area": 8.0, "half": 6.0, "one": 3.0}
    design = Design(low=0.05, high=0.9)
    first = steering.ranked([area, half, one], steering.learn([]), design, (), likely)
    assert steering.demand_of(area, likely) == 8.0 / steering.NATS
    # What is solved each time leads to what surprises more; what never is, to what surprises less.
    solved = [steering.Measured(demand=2.0, n=16, passes=16)] * 3
    never = [steering.Measured(demand=3.0, n=16, passes=0)] * 3
    hard = steering.ranked([area, half, one], steering.learn(solved), design, (), likely | {"area": 12.0})
    easy = steering.ranked([area, half, one], steering.learn(never), design, (), likely)
    assert (hard[0], easy[0]) == (area, one) and len(first) == 3
