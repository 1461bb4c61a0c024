"""The file format of rollouts: both forms, round trips, and what is wrong with a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgen.errors import FormatError
from taskgen.trajectories import dump, read_rollouts, to_record, to_rollout, write_rollouts
from taskgen.types import Rollout, ToolCall, ToolResult, Turn

TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
EXTRA = st.dictionaries(st.sampled_from(["tokens", "logprobs", "seed"]), JSON)
CALLS = st.builds(
    ToolCall, name=TEXT.filter(bool), arguments=st.dictionaries(TEXT, JSON, max_size=3), id=TEXT
)  # fmt: skip
RESULTS = st.builds(
    ToolResult, text=TEXT, call_id=TEXT, exit_code=st.none() | st.integers(-9, 255), is_error=st.booleans()
)
TURNS = st.builds(
    Turn,
    role=st.sampled_from(["system", "user", "assistant"]),
    text=TEXT,
    tool_calls=st.lists(CALLS, max_size=2).map(tuple),
    tool_results=st.lists(RESULTS, max_size=2).map(tuple),
    extra=EXTRA,
)
ROLLOUTS = st.builds(
    Rollout,
    rollout_id=TEXT.filter(bool),
    instance_id=TEXT,
    policy=TEXT,
    turns=st.lists(TURNS, max_size=3).map(tuple),
    reward=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    repo=TEXT,
    packages=st.lists(TEXT, max_size=2).map(tuple),
    extra=EXTRA,
)


@given(ROLLOUTS)
def test_what_is_written_is_read(rollout: Rollout) -> None:
    assert to_rollout(json.loads(dump(to_record(rollout)).encode()), "x") == rollout


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    turns = (
        Turn(role="user", text="\ud800"),
        Turn(role="assistant", tool_calls=(ToolCall(name="bash", arguments={"command": "ls"}),)),
        Turn(role="tool", tool_results=(ToolResult(text="a\u2028b"),)),
    )
    written = [Rollout(rollout_id=str(i), instance_id="", policy="", turns=turns) for i in range(3)]
    assert write_rollouts(path, written) == 3
    path.write_text(path.read_text("utf-8") + "\n\n", "utf-8")
    assert list(read_rollouts(path)) == written


CHAT: dict[str, Any] = {
    "id": "ignored",
    "rollout_id": "c1",
    "instance_id": "i",
    "reward": 1,
    "messages": [
        {"role": "system", "content": "You are an agent"},
        {"role": "user", "content": [{"type": "text", "text": "fix"}, {"type": "image_url", "image_url": {}}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}},
                {"id": "t2", "type": "function", "function": {"name": "bash", "arguments": '{"command": "l'}},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "a.py"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t3", "name": "bash", "input": {"command": "pwd"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t3", "content": "/x", "is_error": True}]},
    ],
}


def test_chats() -> None:
    rollout = to_rollout(CHAT, "f:1")
    assert rollout.rollout_id == "c1" and rollout.reward == 1.0 and rollout.extra == {"id": "ignored"}
    assert rollout.turns[1].text == "fix\n"
    assert [dict(call.arguments) for call in rollout.turns[2].tool_calls] == [
        {"command": "ls"},
        {"raw": '{"command": "l'},
    ]
    assert rollout.turns[3].tool_results == (ToolResult(text="a.py", call_id="t1"),)
    assert rollout.turns[4].tool_calls == (ToolCall(name="bash", arguments={"command": "pwd"}, id="t3"),)
    assert rollout.turns[5].tool_results == (ToolResult(text="/x", call_id="t3", is_error=True),)
    assert to_rollout({"messages": []}, "f:7").rollout_id == "f:7"


def turn(**record: object) -> str:
    return json.dumps({"rollout_id": "r", "turns": [{"role": "assistant", **record}]})


BAD = {
    "{": "no JSON",
    "[]": "must be an object, not list",
    "{}": "neither 'turns' nor 'messages'",
    '{"turns": []}': "'rollout_id' is missing",
    '{"rollout_id": 3, "turns": []}': "'rollout_id' must be text, not int 3",
    '{"rollout_id": "r", "turns": {}}': "'turns' must be a list",
    '{"rollout_id": "r", "turns": [], "reward": "1"}': "'reward' must be a number or null, not str",
    '{"rollout_id": "r", "turns": [], "reward": NaN}': "'reward'",
    '{"rollout_id": "r", "turns": [], "packages": [1]}': "'packages'",
    '{"rollout_id": "r", "turns": [7]}': "turns[0]: must be an object",
    turn(role="robot"): "turns[0]: 'role' must be one of",
    turn(tool_calls=[{}]): "turns[0].tool_calls[0]: 'name' must be a tool's name",
    turn(tool_calls=[{"name": "b", "arguments": 3}]): "'arguments' must be an object or JSON as a string",
    turn(tool_results=[{"exit_code": "1"}]): "turns[0].tool_results[0]: 'exit_code' must be an integer",
    turn(text=["a", 3]): "turns[0].content[1]: must be an object",
    "[" * 100_000: "nested too deep",
}


@pytest.mark.parametrize(("line", "message"), BAD.items(), ids=[key[:30] for key in BAD])
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"rollout_id": "ok", "turns": []}\n\n' + line + "\n")
    with pytest.raises(FormatError) as caught:
        list(read_rollouts(path))
    assert message in str(caught.value) and f"{path}:3" in str(caught.value)


def test_bad_bytes_and_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"rollout_id": "\xff"}\n')
    with pytest.raises(FormatError, match=r"a.jsonl:1: no UTF-8: byte 16 is 0xff"):
        list(read_rollouts(path))
    path.write_text('{"rollout_id": "r", "turns": []}\n' * 2)
    with pytest.raises(FormatError, match=r"a.jsonl:2: rollout_id 'r' is that of line 1"):
        list(read_rollouts(path))
    with pytest.raises(FormatError, match="cannot be read"):
        list(read_rollouts(tmp_path / "none.jsonl"))
