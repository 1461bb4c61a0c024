"""``taskgen show ROLLOUTS.jsonl``: recorded trajectories for people, as a table, and one of them turn by turn."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from taskgen.errors import FormatError
from taskgen.printable import printable, printable_lines
from taskgen.rollout_file import COST, FAULT, PROMPT_TOKENS, REASON, SECONDS, TOKENS, VERDICT
from taskgen.trajectories import read_rollouts, to_record
from taskgen.types import Rollout, ToolCall, ToolResult, Turn

#: Lines at the head and at the tail of a folded text, and characters of a line.
HEAD_LINES, TAIL_LINES, LINE_CHARS = 12, 6, 400
#: Ids that a message about an id lists.
_LISTED = 5
_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}


def split(argument: str) -> tuple[Path, str] | None:
    """``FILE.jsonl`` or ``FILE.jsonl#ID`` as a file and an id ('': all); None if it names no file of rollouts."""
    if Path(argument).is_file():
        return Path(argument), ""
    path, mark, id = argument.rpartition("#")
    if mark and Path(path).is_file():
        return Path(path), id
    # One that is not there is said to be so by whoever reads it.
    return (Path(argument), "") if argument.endswith(".jsonl") else None


def find(path: Path, id: str) -> Rollout:
    """The rollout of a file with this id, or the only one with it in its id.

    Raises FormatError: the file cannot be read, or there is none, or several.
    """
    near: list[Rollout] = []
    for rollout in read_rollouts(path):
        if rollout.rollout_id == id:
            return rollout
        if id in rollout.rollout_id:
            near.append(rollout)
    if len(near) == 1:
        return near[0]
    if near:
        listed = ", ".join(rollout.rollout_id for rollout in near[:_LISTED])
        raise FormatError(f"{path}: {len(near)} rollouts have {id!r} in their ids: {listed}", hint="give a whole id")
    raise FormatError(f"{path}: no rollout has the id {id!r}", hint=f"taskgen show {path} lists them")


def summary(rollout: Rollout) -> dict[str, Any]:
    """A rollout on one line, for programs."""
    extra = rollout.extra
    return {
        "rollout_id": rollout.rollout_id, "instance_id": rollout.instance_id, "policy": rollout.policy,
        "reward": rollout.reward, "verdict": _verdict(rollout), "turns": _n_replies(rollout),
        "n_prompt_tokens": extra.get(PROMPT_TOKENS), "n_tokens": extra.get(TOKENS), "seconds": extra.get(SECONDS),
        "cost_usd": extra.get(COST), "attempt": extra.get("attempt"), "ending": extra.get("ending"),
    }  # fmt: skip


def record(rollout: Rollout) -> dict[str, Any]:
    """A rollout as it is recorded."""
    return to_record(rollout)


def _verdict(rollout: Rollout) -> str:
    if rollout.extra.get(VERDICT):
        return str(rollout.extra[VERDICT])
    return "fault" if rollout.extra.get(FAULT) else ""


def _n_replies(rollout: Rollout) -> int:
    return sum(turn.role == "assistant" for turn in rollout.turns)


def overview(rollouts: Iterable[Rollout]) -> RenderableType:
    """A line a rollout."""
    right = (Column(name, justify="right") for name in ("reward", "turns", "tokens"))
    reward, turns, tokens = right
    table = Table(Column("rollout", no_wrap=True), "task", "policy", reward, "verdict", turns, tokens)
    for rollout in rollouts:
        shown = summary(rollout)
        reward_text = "" if rollout.reward is None else f"{rollout.reward:g}"
        n_tokens = "" if shown["n_tokens"] is None else str(shown["n_tokens"])
        cells = (rollout.rollout_id, rollout.instance_id, rollout.policy, reward_text, str(shown["verdict"]))
        table.add_row(*(Text(printable(cell)) for cell in cells), str(shown["turns"]), Text(printable(n_tokens)))
    return table


def page(rollout: Rollout, *, full: bool = False) -> RenderableType:
    """One rollout, turn by turn. ``full``: nothing is folded."""
    return Group(*_parts(rollout, full))


def _parts(rollout: Rollout, full: bool) -> Iterator[RenderableType]:
    yield Panel(_head(rollout))
    for number, turn in enumerate(rollout.turns):
        extra = f" ({_tokens(turn.extra)})" if turn.role == "assistant" and _tokens(turn.extra) else ""
        yield Text(f"--- {number} {turn.role}{extra}", style=f"bold {_STYLES[turn.role]}")
        yield from _shown(turn, full)
    if patch := rollout.extra.get("patch"):
        yield Panel(_folded(str(patch), full), title="patch")


def _head(rollout: Rollout) -> Text:
    extra, lines = rollout.extra, [f"{rollout.rollout_id}", f"{rollout.instance_id} by {rollout.policy}"]
    lines[0] = printable(lines[0])
    reward = "none" if rollout.reward is None else f"{rollout.reward:g}"
    lines.append(f"reward {reward}; {_verdict(rollout) or 'not graded'}: {extra.get(REASON) or extra.get(FAULT) or ''}")
    known = (("attempt", "attempt"), ("ending", "ended by"), (SECONDS, "seconds"), (COST, "USD"))
    lines.append("; ".join(f"{label} {extra[key]}" for key, label in known if extra.get(key) is not None))
    lines.append(f"{_n_replies(rollout)} replies; {_tokens(extra)}")
    return Text("\n".join(printable(line) for line in lines if line.strip("; ")))


def _tokens(extra: Mapping[str, Any]) -> str:
    found = [(extra.get(PROMPT_TOKENS), "read"), (extra.get(TOKENS), "written")]
    words = [f"{n} tokens {what}" for n, what in found if isinstance(n, int)]
    if isinstance(extra.get("finish_reason"), str):
        words.append(f"finish {printable(extra['finish_reason'])}")
    return ", ".join(words)


def _shown(turn: Turn, full: bool) -> Iterator[RenderableType]:
    if turn.text:
        yield _folded(turn.text, full)
    for call in turn.tool_calls:
        yield Text(f"> {printable(call.name)} {printable(call.id)}", style="bold")
        yield _folded(_arguments(call), full)
    for result in turn.tool_results:
        yield Text(_result_head(result), style="bold red" if result.is_error else "bold")
        yield _folded(result.text, full)


def _result_head(result: ToolResult) -> str:
    code = "" if result.exit_code is None else f" exit code {result.exit_code}"
    return f"< {printable(result.call_id)}{' ERROR' if result.is_error else ''}{code}"


def _arguments(call: ToolCall) -> str:
    """One argument of text as it is; others as ``key: value``, texts of several lines below their key."""
    if len(call.arguments) == 1 and isinstance(only := next(iter(call.arguments.values())), str):
        return only
    parts = []
    for key, value in call.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value)
        parts.append(f"{key}:\n{text}" if "\n" in text else f"{key}: {text}")
    return "\n".join(parts)


def _folded(text: str, full: bool) -> Text:
    """Text for a terminal: its head and its tail, and how many lines are between them."""
    lines = printable_lines(text)
    if full:
        return Text("\n".join(lines))
    if (n := len(lines) - HEAD_LINES - TAIL_LINES) > 1:
        lines = [*lines[:HEAD_LINES], f"[... {n} lines; --full shows them ...]", *lines[-TAIL_LINES:]]
    cut = [
        line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}[... {len(line) - LINE_CHARS} characters ...]"
        for line in lines
    ]
    return Text("\n".join(cut))
