"""Rewards of behaviour: they take from right answers alone, and never so much that a wrong one is worth as much."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from taskgen.behaviour import (
    STYLES,
    BehaviourConfig,
    Effort,
    StyleWeights,
    apology,
    chatter,
    comments,
    effort_for,
    flattery,
    overrun,
    shape,
    stated,
    with_effort,
)
from taskgen.configfile import load_mapping, validate
from taskgen.errors import ConfigError
from taskgen.policies.policy import Form, Prompt
from taskgen.types import Turn

LOW = Effort(name="low", budget_tokens=100)
CODE = "```python\ndef f():\n    return 1\n```\n"
PROMPT = Prompt(
    instance_id="t",
    folder=Path("x"),
    text="def f():",
    indent="    ",
    messages=(Turn(role="system", text="be brief\n"), Turn(role="user", text="write f")),
)


@pytest.mark.parametrize(("n", "share"), [(0, 0), (100, 0), (125, 0.25), (150, 0.5), (200, 1), (10**6, 1)])
def test_effort_costs_nothing_within_the_budget_and_all_from_twice_of_it(n: int, share: float) -> None:
    config = BehaviourConfig(effort_weight=0.6)
    assert overrun(n, 100) == pytest.approx(share)
    assert shape(1.0, "", Form.CONTINUATION, config, n_tokens=n, effort=LOW).reward == pytest.approx(1 - 0.6 * share)
    assert shape(1.0, "", Form.CONTINUATION, config, n_tokens=n).reward == 1.0, "no budget was stated"


@given(
    reward=st.one_of(st.none(), st.floats(-1, 1)),
    text=st.text(alphabet="`#\n sory"),
    form=st.sampled_from(Form),
    n=st.integers(0, 10**6),
    weight=st.floats(0, 1),
)
def test_behaviour_is_never_worth_anything_by_itself(
    reward: float | None, text: str, form: Form, n: int, weight: float
) -> None:
    styles = StyleWeights(**dict.fromkeys(STYLES, weight))
    config = BehaviourConfig(effort_weight=weight, styles=styles)
    found = shape(reward, text, form, config, n_tokens=n, effort=LOW).reward
    if reward is None or reward <= 0:
        assert found == reward
    else:
        assert found is not None and 0.2 * reward <= found <= reward


def test_what_an_answer_says_around_its_code() -> None:
    assert chatter(CODE, Form.ANSWER) == 0
    assert chatter("x" * 100 + "\n" + CODE + "y" * 100, Form.ANSWER) == pytest.approx(0.5, abs=0.01)
    assert chatter("x" * 500 + "\n" + CODE, Form.ANSWER) == 1
    assert chatter("return 1", Form.ANSWER) == chatter("x" * 500, Form.CONTINUATION) == 0


@pytest.mark.parametrize(
    ("text", "form", "sorry", "eager"),
    [
        ("I apologise.\n" + CODE, Form.ANSWER, 1, 0),
        ("Certainly! Here:\n" + CODE, Form.ANSWER, 0, 1),
        ("You're right, sorry.\n" + CODE, Form.ANSWER, 1, 1),
        ('```python\nraise E("sorry")  # x\n```\n', Form.ANSWER, 0, 0),
        ('    raise E("sorry")\n', Form.CONTINUATION, 0, 0),
        ("    # sorry, this is a guess\n    return 1\n", Form.CONTINUATION, 1, 0),
        ("This is uncertain.\n" + CODE, Form.ANSWER, 0, 0),
    ],
)
def test_apology_and_flattery_are_of_words_not_of_programs(text: str, form: Form, sorry: float, eager: float) -> None:
    assert (apology(text, form), flattery(text, form)) == (sorry, eager)


def test_comments_are_free_up_to_a_quarter_of_the_lines() -> None:
    def code(n_comments: int) -> str:
        return "    # why\n" * n_comments + "    x = 1\n" * (8 - n_comments)

    found = [comments(code(n), Form.CONTINUATION) for n in (0, 2, 4, 6, 8)]
    assert found == [0, 0, pytest.approx(0.5), 1, 1]
    assert comments("# not code\n" + CODE, Form.ANSWER) == 0
    assert comments("", Form.CONTINUATION) == 0


def test_what_was_lost_is_told() -> None:
    config = BehaviourConfig(effort_weight=0.5, styles=StyleWeights(apology=0.1, chatter=0.2))
    found = shape(1.0, "Sorry. " + "x" * 500 + "\n" + CODE, Form.ANSWER, config, n_tokens=150, effort=LOW)
    assert found.lost == {"apology": 0.1, "chatter": 0.2, "effort": 0.25}
    assert found.reward == pytest.approx(0.45)


def test_long_hostile_texts_are_read_in_no_time() -> None:
    for text in ("```\n" * 20000, "\n" * 100000, " " * 100000 + "```", "`" * 100000):
        for departure in STYLES.values():
            assert 0 <= departure(text, Form.ANSWER) <= 1


def test_a_budget_is_stated_right_before_the_body_or_in_the_system_message() -> None:
    continued = with_effort(PROMPT, LOW, Form.CONTINUATION)
    assert (continued.text, continued.indent) == ("def f():\n    # Effort: low, at most 100 tokens.", "    ")
    answered = with_effort(PROMPT, LOW, Form.ANSWER)
    assert answered.messages[0].text == "be brief\n\nEffort: low. Use at most 100 tokens."
    assert answered.messages[1:] == PROMPT.messages[1:]
    bare = Prompt(instance_id="t", folder=Path("x"), text="", indent="", messages=PROMPT.messages[1:])
    assert [turn.role for turn in with_effort(bare, LOW, Form.ANSWER).messages] == ["system", "user"]
    assert with_effort(PROMPT, LOW, Form.PATCH) == PROMPT
    assert stated(LOW, "  ", Form.CONTINUATION).startswith("  # ")


def test_levels_of_effort_are_the_same_for_a_key_and_equally_often() -> None:
    config = BehaviourConfig(efforts={"low": 64, "high": 512})
    assert effort_for(config, "0 a") == effort_for(config, "0 a")
    found = Counter(effort_for(config, str(i)) for i in range(400))
    assert {e.budget_tokens: n for e, n in found.items() if e} == {
        64: pytest.approx(200, abs=40),
        512: pytest.approx(200, abs=40),
    }
    assert effort_for(BehaviourConfig(), "0 a") is None


def test_every_style_has_a_weight_and_an_unknown_one_is_named_with_its_line(tmp_path: Path) -> None:
    assert set(STYLES) == set(StyleWeights.model_fields)
    path = tmp_path / "behaviour.yaml"
    path.write_text("effort_weight: 0.5\nstyles:\n  chater: 0.1\n")
    with pytest.raises(ConfigError, match=r"behaviour.yaml:3: unknown key 'chater'\n.*'chatter'"):
        validate(path, load_mapping(path, path.read_bytes()), BehaviourConfig)
    with pytest.raises(ValidationError):
        BehaviourConfig(efforts={"low": 0})
