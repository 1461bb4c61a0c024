"""Hints: what is found in an attempt, what is said of it, and where that goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from taskgen.archive import ArchiveEntry
from taskgen.behaviour import STYLES
from taskgen.errors import ConfigError, PolicyFault, PrerequisiteError
from taskgen.fill import Site
from taskgen.grading.intake import Rules
from taskgen.hints.attempt import Attempt, attempt_of
from taskgen.hints.context import as_context, hinted
from taskgen.hints.detectors import DETECTORS
from taskgen.hints.rules import DEFAULT, MAX_CHARS, Hint, HintRules, Rule, hint_of, load_rules
from taskgen.hints.writer import Hinter
from taskgen.policies.policy import Completion, Form, Prompt, Sampled, Sampling
from taskgen.rollout_file import Grade
from taskgen.types import ToolCall, ToolResult, Turn

RULES = load_rules()
FILE = """\
def one(a):
    if a:
        return "one"
    return "none"


def two(a):
    for b in a:
        if b:
            yield "two", "b"


def three():
    while True:
        return ["a", "b", "c", "d"]


class Four:
    def five(self):
        raise NotImplementedError
"""
LINES = tuple(FILE.split("\n"))
SITE = Site(path="pkg/four.py", name="five", lines=LINES, line=len(LINES) - 2, indent=" " * 8, newline="\n")
WRONG, RIGHT = Grade(0.0, "unresolved", "test_x failed"), Grade(1.0, "resolved", "")
ASKED = Turn(role="user", text="write five")


def attempt(code: str = "        return 1", **changes: object) -> Attempt:
    turns = (ASKED, Turn(role="assistant", text="\n" + code))
    base = Attempt(
        instance_id="t", turns=turns, form=Form.CONTINUATION, finish_reason="stop", code=code, site=SITE, grade=WRONG
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def rule_of(found: Hint | None) -> str:
    return found.rule if found is not None else ""


def calling(*calls: ToolCall, text: str = "") -> Attempt:
    turns = (
        ASKED,
        Turn(role="assistant", text="I look", tool_calls=(ToolCall(name="bash", arguments={"command": "ls"}),)),
        Turn(role="tool", tool_results=(ToolResult(text="a.py"),)),
        Turn(role="assistant", text=text, tool_calls=calls),
        Turn(role="tool", tool_results=(ToolResult(text="no"),)),
        Turn(role="assistant", text="I give up"),
    )
    tools = frozenset({"bash", "edit"})
    return replace(attempt(), turns=turns, form=Form.ANSWER, site=None, code=None, tools=tools)


def test_a_sound_attempt_gets_no_hint() -> None:
    for code in (
        "        return 1",
        '        if 1:\n            return "x"',
        "        async with a as b:\n            pass",
    ):
        for grade in (WRONG, RIGHT, None):
            assert hint_of(attempt(code, grade=grade), RULES) is None
    assert hint_of(attempt(turns=(ASKED,), code="", finish_reason="length"), RULES) is None, "the policy said nothing"
    assert hint_of(calling(ToolCall(name="edit", arguments={"raw": '{"a": 1}'})), RULES) is None


@pytest.mark.parametrize(
    ("code", "changes", "rule", "said"),
    [
        ("        return (1", {}, "syntax-error", "return (1"),
        ("        if x\n            return 1", {}, "syntax-error", "valid Python"),
        ("        print 1", {}, "syntax-error", "print 1"),
        ("        # later\n", {}, "no-answer", "body"),
        ("", {}, "no-answer", "body"),
        ("        return 1", {"finish_reason": "length"}, "unclosed", "brief"),
        ("        a += 1\n" * 4, {"finish_reason": "length"}, "repeats", "repeat"),
        ("        a += 1\n        b -= 1\n" * 5, {}, "repeats", "repeat"),
        ("        return 1", {"n_tokens": 90, "budget_tokens": 64}, "effort", "64 tokens"),
        ("        return 1", {"n_tokens": 61, "right_tokens": (10, 20, 99)}, "effort", "60 tokens"),
        ("        if 1:\n          return 2", {}, "style", "by 4 spaces"),
        ("        if 1:\n        \treturn 2", {}, "style", "by 4 spaces"),
        ("        return 'x'", {}, "style", "double quotes"),
        ('        """Do five."""\n        return 1', {}, "style", "no docstrings"),
        ("        print(1)", {}, "style", "does not print"),
    ],
)
def test_what_is_wrong_with_the_code_is_found(code: str, changes: dict[str, object], rule: str, said: str) -> None:
    found = hint_of(attempt(code, **changes), RULES)
    assert found is not None and found.rule == rule and said in found.text and found.turn_index == 1


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("        return 1", {"n_tokens": 64, "budget_tokens": 64}),
        ("        return 1", {"n_tokens": 10**6}),
        ("        return 'say \"x\"'", {}),
        ("        print(1)", {"site": replace(SITE, path="pkg/cli.py")}),
        ("        # why\n        return 1", {}),  # the file is short: nobody knows that it shuns comments
        ("        a = 1\n        b = 2\n" * 4, {}),
        ("        return 1", {"finish_reason": "length", "grade": RIGHT}),
        ("        (" * 30000, {"grade": RIGHT}),  # too large to be parsed
    ],
)
def test_where_people_differ_or_nothing_is_known_there_is_no_hint(code: str, changes: dict[str, object]) -> None:
    assert hint_of(attempt(code, **changes), RULES) is None


def test_text_that_nests_deeply_is_no_trouble() -> None:
    for text in (
        "        " + "(" * 30000,
        "        x = " + "[" * 20000 + "]" * 20000,
        "\x00" * 9,
        "        a\ud800 = 1",
    ):
        found = hint_of(attempt(text), RULES)
        assert found is None or found.rule in ("syntax-error", "style")
        assert found is None or (found.text.isprintable() and len(found.text) <= MAX_CHARS)


def test_calls_of_tools() -> None:
    unknown = hint_of(calling(ToolCall(name="sub\nmit`", arguments={})), RULES)
    assert unknown is not None and unknown.turn_index == 3
    assert unknown.text == "There is no tool `sub mit`. The tools are: bash, edit."
    malformed = hint_of(calling(ToolCall(name="edit", arguments={"raw": "{'a"})), RULES)
    assert malformed is not None and (malformed.rule, malformed.turn_index) == ("malformed-call", 3)
    assert malformed.text == "The arguments of `edit` must be one JSON object."
    as_text = hint_of(calling(text='<tool_call>{"name": "edit"'), RULES)
    assert as_text is not None and (as_text.rule, as_text.turn_index) == ("malformed-call", 3)


def test_what_intake_refuses_is_known_by_its_own_words() -> None:
    rules = Rules(
        roots=frozenset({"pkg"}),
        suffixes=(".py",),
        is_test=lambda path: path.startswith("tests/"),
        workspace={"pkg/a.py": ArchiveEntry(path="pkg/a.py", content=b"")},
    )
    for path in ("tests/test_a.py", "pyproject.toml", "pkg/conftest.py"):
        found = hint_of(attempt(refused={path: rules.problem(path)}), RULES)
        assert found is not None and found.rule == "edits-tests" and f"`{path}`" in found.text
    for path in ("elsewhere.py", "pkg/a.txt"):
        assert rules.problem(path) and hint_of(attempt(refused={path: rules.problem(path)}), RULES) is None


def test_an_open_code_block_is_unclosed_in_an_answer_alone() -> None:
    turns = (ASKED, Turn(role="assistant", text="```python\ndef five(self):\n    return 1\n"))
    assert rule_of(hint_of(attempt(turns=turns, form=Form.ANSWER), RULES)) == "unclosed"
    assert hint_of(attempt(turns=turns), RULES) is None


def test_the_first_rule_that_finds_something_gives_the_hint() -> None:
    code = "        return ('x'"
    assert rule_of(hint_of(attempt(code), RULES)) == "syntax-error"
    turned = HintRules(rules=tuple(reversed(RULES.rules)))
    assert rule_of(hint_of(attempt(code), turned)) == "style"


@pytest.mark.parametrize(
    ("text", "form", "rule"),
    [
        ("\n        return (\n", Form.CONTINUATION, "syntax-error"),
        (" return 1\n", Form.CONTINUATION, "no-answer"),  # on the prompt's own last line: no body
        ("```python\ndef five(self):\n    return 'x'\n```", Form.ANSWER, "style"),
        ("I would return 1.", Form.ANSWER, "syntax-error"),
        ("```python\ndef five(self):\n    return 1\n```", Form.ANSWER, ""),
    ],
)
def test_a_completion_is_an_attempt_with_the_body_that_is_graded(text: str, form: Form, rule: str) -> None:
    completion = Completion(text=text, form=form, finish_reason="stop", n_tokens=7)
    made = attempt_of(PROMPT, completion, SITE, WRONG, budget_tokens=7)
    assert [turn.role for turn in made.turns][-2:] == ["user", "assistant"] and made.turns[-1].text == text
    assert rule_of(hint_of(made, RULES)) == rule
    assert rule_of(hint_of(replace(made, budget_tokens=6, code="        return 1"), RULES)) == "effort"


# --- Files ----------------------------------------------------------------------------------------------------


def test_each_detector_has_a_rule_whose_template_can_be_filled() -> None:
    assert {rule.detector for rule in RULES.rules} == set(DETECTORS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules:\n  - id: a\n    detector: style\n    hint: x\n    when: y\n", ":5: unknown key 'when'"),
        ("rules:\n  - id: a\n    detector: taste\n    hint: x\n", ":3: there is no detector 'taste'"),
        ("rules:\n  - id: a\n    detector: style\n    hint: '{{ tool }}'\n", ":4: 'tool' is not known here"),
        ("rules:\n  - id: a\n    detector: unclosed\n    hint: '{% if %}'\n", ":4: no Jinja2 template"),
        ("rules:\n  - id: A b\n    detector: unclosed\n    hint: x\n", ":2: rules.0.id"),
        ("rules: []\n", ":1: rules"),
        ("rules:\n" + "  - id: a\n    detector: unclosed\n    hint: x\n" * 2, ":5: two rules are called 'a'"),
        ("rules:\n  - id: a\n    detector: unclosed\n    hint: x\nwriter: 3\n", ":5: writer: expected text"),
    ],
)
def test_a_mistake_in_a_file_of_rules_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_rules(path)
    assert f"{path}{message}" in str(raised.value)


def test_a_template_that_fails_on_its_facts_is_an_error_of_its_rule() -> None:
    rules = HintRules(rules=(Rule(id="mine", detector="effort", template="{{ limit // 0 }}"),))
    with pytest.raises(ConfigError, match="hint rule mine"):
        hint_of(attempt(n_tokens=9, budget_tokens=1), rules)


def test_the_rules_travel_with_the_package() -> None:
    assert DEFAULT.parent == Path(load_rules.__code__.co_filename).parent


# --- Contexts -------------------------------------------------------------------------------------------------

PROMPT = Prompt(
    instance_id="t",
    folder=Path("x"),
    text="class Four:\n    def five(self):",
    indent=" " * 8,
    messages=(Turn(role="system", text="be brief"), ASKED),
)
HINT = Hint(rule="effort", turn_index=1, text="Keep it short.")


def test_a_hint_is_a_comment_before_the_body_or_the_end_of_the_question() -> None:
    assert as_context(HINT, "    ", Form.CONTINUATION) == "    # Keep it short."
    continued = hinted(PROMPT, HINT, Form.CONTINUATION)
    assert (continued.text, continued.indent) == (PROMPT.text + "\n        # Keep it short.", PROMPT.indent)
    answered = hinted(PROMPT, HINT, Form.ANSWER)
    assert [turn.role for turn in answered.messages] == ["system", "user"]
    assert answered.messages[1].text == "write five\n\nA hint for your answer: Keep it short."
    with pytest.raises(ValueError, match="reads no hints"):
        hinted(PROMPT, HINT, Form.PATCH)


# --- A writer -------------------------------------------------------------------------------------------------


class Writer:
    """Answers with the number of prompts so far, or with what it is told to."""

    name = version = "writer"
    form, batch = Form.ANSWER, 8

    def __init__(self, answer: Sampled | Exception | None = None) -> None:
        self.answer, self.prompts = answer, list[Prompt]()

    def complete(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Sampled]]:
        assert [len(group) for group in seeds] == [1] * len(prompts)
        self.prompts += prompts
        if isinstance(self.answer, PrerequisiteError):
            raise self.answer
        said = [
            Completion(text=f"Do it\nwell {i}.", form=Form.ANSWER, finish_reason="stop") for i in range(len(prompts))
        ]
        return [[self.answer if isinstance(self.answer, Completion | PolicyFault) else text] for text in said]

    def close(self) -> None:
        return


def test_a_writer_is_asked_where_rules_say_nothing_of_a_failure() -> None:
    writer = Writer()
    hinter = Hinter(RULES, writer)
    found = hinter.hints([attempt(), attempt(""), attempt(grade=RIGHT), attempt(grade=None), attempt()])
    assert [rule_of(hint) for hint in found] == ["writer", "no-answer", "", "", "writer"]
    assert [hint.text for hint in found if hint and hint.rule == "writer"] == ["Do it well 0.", "Do it well 1."]
    assert len(writer.prompts) == 2 and hinter.faults == 0
    said = writer.prompts[0].messages[-1].text
    assert "test_x failed" in said and "return 1" in said and "write five" in said
    assert writer.prompts[0].folder == Path(), "it is not shown where the solution lies"
    assert [rule_of(hint) for hint in Hinter(RULES).hints([attempt(), attempt("")])] == ["", "no-answer"]


@pytest.mark.parametrize(
    "answer",
    [
        PolicyFault("gone"),
        PrerequisiteError("never there"),
        Completion(text=" \n", form=Form.ANSWER, finish_reason="stop"),
    ],
)
def test_a_writers_fault_gives_no_hint_and_is_counted(answer: Sampled | Exception) -> None:
    hinter = Hinter(RULES, Writer(answer))
    assert hinter.hints([attempt(), attempt("")])[0] is None
    assert hinter.faults == 1


def test_a_writer_must_answer_messages() -> None:
    writer = Writer()
    writer.form = Form.CONTINUATION
    with pytest.raises(ConfigError, match="does not answer messages"):
        Hinter(RULES, writer)


# --- Documentation --------------------------------------------------------------------------------------------


def test_each_rule_and_the_names_of_each_detector_are_documented() -> None:
    page = (Path(__file__).parent.parent / "docs" / "feedback.md").read_text("utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| `")
    ]
    rules = [(row[0].strip("`"), row[1].strip("`"), row[3] == "yes") for row in rows if len(row) == 4]
    assert rules == [(rule.id, rule.detector, rule.failed_only) for rule in RULES.rules]
    names = {row[0].strip("`"): set(row[1].replace("`", "").replace(",", "").split()) for row in rows if len(row) == 2}
    assert {name: names[name] for name in DETECTORS} == {name: set(d.facts) for name, d in DETECTORS.items()}
    assert set(STYLES) <= set(names)
