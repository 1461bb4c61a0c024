"""Rollouts in a few words."""

from __future__ import annotations

from typing import Any

from taskgen.types import Rollout, ToolCall, ToolResult, Turn


def rollout(*calls: ToolCall | str, results: tuple[ToolResult | str, ...] = (), **fields: Any) -> Rollout:  # noqa: ANN401
    """A rollout on boltons: calls (text is a bash command), and their results in order."""
    turns: list[Turn] = []
    for i, call in enumerate(calls):
        turns.append(Turn(role="assistant", tool_calls=(bash(call) if isinstance(call, str) else call,)))
        if i < len(results):
            result = results[i]
            result = ToolResult(text=result) if isinstance(result, str) else result
            turns.append(Turn(role="tool", tool_results=(result,)))
    known = {"rollout_id": "r", "instance_id": "pypi-boltons__class-0123456789", "policy": "p", **fields}
    return Rollout(turns=tuple(turns), **known)


def bash(command: str) -> ToolCall:
    return ToolCall(name="bash", arguments={"command": command})


def python(code: str) -> ToolCall:
    return ToolCall(name="python", arguments={"code": code})


def edit(path: str, old: str, new: str) -> ToolCall:
    return ToolCall(name="edit", arguments={"path": path, "old_str": old, "new_str": new})


def create(path: str, text: str) -> ToolCall:
    return ToolCall(name="editor", arguments={"command": "create", "path": path, "file_text": text})


def view(path: str) -> ToolCall:
    return ToolCall(name="read_file", arguments={"path": path})
