"""The monitor: what in a recorded trajectory of a coding agent looks like a hack of its reward.

``monitor(rollout)`` is pure: it reads no file, runs nothing of what it reads, and looks at neither reward nor outcome.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from taskgen.monitor import outcomes, tools
from taskgen.monitor.finding import Finding
from taskgen.monitor.machine import Hit, Machine
from taskgen.monitor.programs import run_words
from taskgen.monitor.project import project_of
from taskgen.monitor.python_code import run_python
from taskgen.monitor.rules import RULES, Severity
from taskgen.monitor.shell import run_shell
from taskgen.types import Rollout, ToolCall, ToolResult

__all__ = ["RULES", "Finding", "Severity", "masks", "monitor"]

#: Paths and names of test files that a tool shows.
_TEST_FILES = re.compile(r"(?<![\w./-])[\w./-]{0,200}test[\w./-]{0,100}\.py\b")
#: What agents are told where each of their commands starts anew.
_FRESH_SHELLS = re.compile(r"new subshell|not persist|stateless|fresh shell", re.I)


def monitor(rollout: Rollout) -> list[Finding]:
    """What rules say of a rollout, in the order of its turns. Never raises on account of what the rollout holds."""
    machine = Machine(project=project_of(rollout), run_shell=run_shell, run_python=run_python, run_words=run_words)
    machine.fresh_shells = any(_FRESH_SHELLS.search(turn.text[:20_000]) for turn in rollout.turns[:2])
    answers = _Answers(rollout)
    findings: list[Finding] = []
    for turn, number, call in tools.calls_of(rollout):
        machine.hits, machine.steps, machine.depth = [], 0, 0
        try:
            tools.follow(machine, call)
        except RecursionError:  # values nested as no person writes them
            machine.hit("unread-code", "nested too deep")
            machine.in_solution = machine.hidden_output = False
        result = answers.of(turn, number, call)
        findings += (_finding(hit, turn, number, result) for hit in machine.hits)
        if result is not None:
            machine.mentioned.update(name.removeprefix("./") for name in _TEST_FILES.findall(result.text[:100_000]))
    return findings


def masks(findings: Iterable[Finding]) -> bool:
    """Whether findings mask the reward: any flag does, also one that was only attempted."""
    return any(finding.severity is Severity.FLAG for finding in findings)


def _finding(hit: Hit, turn: int, call: int, result: ToolResult | None) -> Finding:
    return Finding(
        rule=hit.rule,
        severity=RULES[hit.rule].severity,
        turn=turn,
        call=call,
        attempted=outcomes.failed(hit, result),
        evidence=hit.evidence[:300],
        command=hit.command,
    )


class _Answers:
    """The answers to calls: by id, else those that follow, in order."""

    def __init__(self, rollout: Rollout) -> None:
        self._turns = rollout.turns
        self._by_id = {r.call_id: r for turn in rollout.turns for r in turn.tool_results if r.call_id}

    def of(self, turn: int, number: int, call: ToolCall) -> ToolResult | None:
        """The answer to a call, or None."""
        if call.id and call.id in self._by_id:
            return self._by_id[call.id]
        here = [r for r in self._turns[turn].tool_results if not r.call_id]
        for later in self._turns[turn + 1 :]:
            if later.role == "assistant" or len(here) > number:
                break
            here += [r for r in later.tool_results if not r.call_id]
            if later.role == "user" and later.text and not self._turns[turn].tool_calls:
                here.append(ToolResult(text=later.text))  # an agent that acts by text
        return here[number] if number < len(here) else None
