"""What may have gone otherwise in an attempt: pure functions, each of which names the turn and the facts of a hint.

Text that policies write is hostile: it is parsed by tree-sitter alone, up to a size, and what of it goes into a hint is
one short line of printable characters.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from taskgen import syntax
from taskgen.hints.attempt import Attempt
from taskgen.hints.style import departures
from taskgen.languages.python_syntax import PYTHON
from taskgen.policies.policy import Form

#: Larger texts are not parsed, and then nothing is said of them.
MAX_PARSED_BYTES = 1 << 16
#: Lines in a row, and lines of one text, that are alike.
REPEATED_RUN, REPEATED_LINES = 4, 5
#: An answer without a budget is too long from this multiple of the right answers' median length.
TOO_LONG = 3.0
_SHOWN = 80
#: What ``taskgen.grading.intake`` says of files that decide how tests are run.
_STEERING = ("a test file", "a configuration", "a file that Python or the runner loads by itself")
_CALL_MARKS = re.compile(r"<tool_call>|<function=|\[TOOL_CALLS\]|<\|python_tag\|>")
_FENCE = re.compile(r"^[ \t]*```", re.MULTILINE)
#: Python 2, which the grammar takes.
_OLD = ("print_statement", "exec_statement")


@dataclass(frozen=True, slots=True)
class Match:
    """A turn (its index), and what a hint may say of it."""

    turn: int
    facts: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Detector:
    """A function, and the names of the facts that it gives to a hint's template."""

    find: Callable[[Attempt], Match | None]
    facts: frozenset[str] = frozenset()


def shown(text: str) -> str:
    """Hostile text as part of a hint: one line, cut, without backticks and control characters."""
    line = "".join(c for c in " ".join(text.split()) if c.isprintable() and c != "`")
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def tool_unknown(attempt: Attempt) -> Match | None:
    """A call of a tool that it was not given."""
    for index, turn in attempt.written():
        for call in turn.tool_calls:
            if attempt.tools and call.name not in attempt.tools:
                return Match(index, {"tool": shown(call.name), "tools": ", ".join(sorted(attempt.tools))})
    return None


def malformed_call(attempt: Attempt) -> Match | None:
    """A call whose arguments are no JSON object, or one that stayed text because it has no form that can be read."""
    for index, turn in attempt.written():
        for call in turn.tool_calls:
            if set(call.arguments) == {"raw"} and not _is_object(call.arguments["raw"]):
                return Match(index, {"tool": shown(call.name)})
        if attempt.tools and not turn.tool_calls and _CALL_MARKS.search(turn.text):
            return Match(index, {"tool": ""})
    return None


def _is_object(value: object) -> bool:
    try:
        return isinstance(json.loads(value), dict) if isinstance(value, str) else isinstance(value, dict)
    except (ValueError, RecursionError):
        return False


def edits_test(attempt: Attempt) -> Match | None:
    """It changed a test, a configuration or a start-up file: these are left out."""
    for path, reason in sorted(attempt.refused.items()):
        if reason.removeprefix("deleted; ").startswith(_STEERING):
            return Match(attempt.last(), {"path": shown(path)})
    return None


def unclosed(attempt: Attempt) -> Match | None:
    """It ran into the limit of tokens, or left its code block open."""
    index = attempt.last()
    text = attempt.turns[index].text
    if attempt.finish_reason == "length" or (attempt.form is Form.ANSWER and len(_FENCE.findall(text)) % 2):
        return Match(index)
    return None


def no_answer(attempt: Attempt) -> Match | None:
    """Nothing was written at the site, or comments alone."""
    if attempt.code is None or any(line.strip() and line.strip()[0] != "#" for line in attempt.code.splitlines()):
        return None
    return Match(attempt.last())


def repeats(attempt: Attempt) -> Match | None:
    """The same line several times in a row, or as half of all lines."""
    for index, turn in attempt.written():
        lines = [stripped for line in turn.text.splitlines() if any(map(str.isalnum, stripped := line.strip()))]
        runs = [line for line, run in groupby(lines) if len(list(run)) >= REPEATED_RUN]
        common = [line for line, n in Counter(lines).most_common(1) if n >= max(REPEATED_LINES, len(lines) / 2)]
        if found := runs or common:
            return Match(index, {"line": shown(found[0])})
    return None


def syntax_error(attempt: Attempt) -> Match | None:
    """The code at the site does not parse as Python."""
    if attempt.site is None or not (attempt.code or "").strip():
        return None
    # Below a header of its own it is Python exactly where it is as a body.
    indent = attempt.site.indent
    above = ["if 1:", f"{indent[:-1]}async def body():"] if len(indent) > 1 else ["async def body():"]
    lines = [*above, *str(attempt.code).split("\n")]
    source = ("\n".join(lines) + "\n").encode("utf-8", "replace")
    if len(source) > MAX_PARSED_BYTES:
        return None
    parsed = syntax.parse(PYTHON, source)
    wrong = [n for n in syntax.walk(parsed.root) if n.is_error or n.is_missing or n.type in _OLD]
    if not wrong:
        return None
    # The root is an error, too, where the parser gave up.
    rows = [node.start_point[0] for node in wrong if len(above) <= node.start_point[0] < len(lines)]
    return Match(attempt.last(), {"line": shown(lines[rows[0]]) if rows else ""})


def effort(attempt: Attempt) -> Match | None:
    """Longer than the budget that the prompt states; without one, than right answers to the same task."""
    limit = attempt.budget_tokens
    if limit is None and attempt.right_tokens:
        limit = int(TOO_LONG * statistics.median(attempt.right_tokens))
    if limit is None or attempt.n_tokens <= limit:
        return None
    return Match(attempt.last(), {"tokens": attempt.n_tokens, "limit": limit})


def style(attempt: Attempt) -> Match | None:
    """It departs from the style of the file around it (see ``taskgen.hints.style``)."""
    if attempt.site is None or not attempt.code or len(attempt.code) > MAX_PARSED_BYTES:
        return None
    found = next(departures(attempt.site, attempt.code), None)
    return None if found is None else Match(attempt.last(), {"problem": found})


DETECTORS: dict[str, Detector] = {
    "tool-unknown": Detector(tool_unknown, frozenset({"tool", "tools"})),
    "malformed-call": Detector(malformed_call, frozenset({"tool"})),
    "edits-test": Detector(edits_test, frozenset({"path"})),
    "unclosed": Detector(unclosed),
    "no-answer": Detector(no_answer),
    "repeats": Detector(repeats, frozenset({"line"})),
    "syntax-error": Detector(syntax_error, frozenset({"line"})),
    "effort": Detector(effort, frozenset({"tokens", "limit"})),
    "style": Detector(style, frozenset({"problem"})),
}
