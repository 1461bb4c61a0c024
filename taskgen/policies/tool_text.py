"""Tool calls as text, for models whose interface has no calls: how they are asked for, read, and answered.

A call is one JSON object with ``name`` and ``arguments``, between ``<tool_call>`` and ``</tool_call>`` or as a fenced
block marked ``json`` or ``tool_call``. It is read strictly: what has another form is said to the policy, not guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from taskgen.policies.conversation import Tool, sendable
from taskgen.types import ToolCall, Turn

_CALL = re.compile(
    r"<tool_call>(?P<tag>.*?)</tool_call>|^[ \t]*```(?:json|tool_call)[ \t]*\n(?P<fence>.*?)^[ \t]*```[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
_OPEN = re.compile(r"<tool_call>")
_FORM = '<tool_call>\n{"name": "TOOL", "arguments": {...}}\n</tool_call>'


def instructions(tools: Sequence[Tool]) -> str:
    """What a system prompt says of the tools."""
    lines = [
        json.dumps({"name": t.name, "description": t.description, "parameters": dict(t.parameters)}) for t in tools
    ]
    return "\n".join(["You have these tools, a line of JSON each:", *lines, "", "To call one, write", _FORM])


def messages(turns: Sequence[Turn], tools: Sequence[Tool]) -> list[dict[str, str]]:
    """A conversation in roles and texts alone, as every chat template takes it."""
    found: list[dict[str, str]] = []
    for turn in turns:
        text = turn.text
        if turn.role == "system":
            text = f"{text}\n\n{instructions(tools)}"
        elif turn.role == "tool":
            text = "\n".join(f"<tool_response>\n{result.text}\n</tool_response>" for result in turn.tool_results)
        found.append({"role": "user" if turn.role == "tool" else turn.role, "content": sendable(text)})
    return found


def parse(text: str, n_before: int) -> tuple[tuple[ToolCall, ...], str]:
    """The calls in a reply, and what is wrong with their form ('' if nothing is; else there are no calls).

    Args:
        n_before: replies before this one; makes the calls' ids unique in a conversation.
    """
    calls: list[ToolCall] = []
    for i, match in enumerate(_CALL.finditer(text)):
        call, problem = _call(match["tag"] if match["tag"] is not None else match["fence"], f"call-{n_before}-{i}")
        if call is None:
            return (), f"malformed tool call: {problem}. The form is:\n{_FORM}"
        calls.append(call)
    if not calls and _OPEN.search(text):
        return (), f"malformed tool call: <tool_call> is not closed. The form is:\n{_FORM}"
    return tuple(calls), ""


def _call(text: str, id: str) -> tuple[ToolCall | None, str]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return None, f"no JSON: {error}"
    if not isinstance(value, dict):
        return None, f"a JSON object is wanted, not a {type(value).__name__}"
    if value.keys() != {"name", "arguments"}:
        return None, f"the keys must be name and arguments, not {', '.join(map(str, value)) or 'none'}"
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None, "name must be text, and arguments an object"
    return ToolCall(name=name, arguments=arguments, id=id), ""
