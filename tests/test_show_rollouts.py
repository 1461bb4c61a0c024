"""``taskgen show ROLLOUTS.jsonl``: tables and pages of recorded trajectories, hostile ones among them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from taskgen.cli import app
from taskgen.commands.show_rollouts import HEAD_LINES, TAIL_LINES, find, overview, page, split, summary
from taskgen.errors import FormatError
from taskgen.trajectories import write_rollouts
from taskgen.types import Rollout, ToolCall, ToolResult, Turn

LONG = "\n".join(f"line {n}" for n in range(100))
ESCAPES = "\x1b]0;title\x07\x1b[2J[red]mark[/red] \ud800"


def rollout_of(id: str, reward: float | None = 1.0, **extra: Any) -> Rollout:  # noqa: ANN401 - any JSON value
    call = ToolCall(name="edit", arguments={"path": "a.py", "old": "", "new": "x\ny"}, id="c1")
    turns = (
        Turn(role="user", text="Implement `f` [bold]"),
        Turn(role="assistant", text="I look.", tool_calls=(call,), extra={"n_tokens": 5, "finish_reason": "stop"}),
        Turn(role="tool", tool_results=(ToolResult(text=LONG, call_id="c1", exit_code=2, is_error=True),)),
        Turn(role="assistant", tool_calls=(ToolCall(name="bash", arguments={"command": ESCAPES}),)),
    )
    return Rollout(
        rollout_id=id, instance_id="task", policy="p@1", turns=turns, reward=reward,
        extra={"verdict": "resolved", "n_tokens": 12, "n_prompt_tokens": 34, "ending": "submitted", **extra},
    )  # fmt: skip


def printed(shown: RenderableType) -> str:
    text = io.StringIO()
    Console(file=text, width=150, force_terminal=False).print(shown)
    return text.getvalue()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "r.jsonl"
    fault = rollout_of("task-a-2-fault0", None, verdict=None, fault="PolicyFault: the line is dead")
    write_rollouts(path, [rollout_of("task-a-0"), rollout_of("task-a-1", 0.0, verdict="unresolved"), fault])
    return path


def run(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["show", *map(str, arguments)])
    return done.exit_code, done.stdout if done.exception is None else str(done.exception)


def test_a_table_of_rollouts(file: Path) -> None:
    lines = printed(overview([rollout_of("task-a-0"), rollout_of("x", 0.5, n_tokens=None)])).splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert cells == [
        ["task-a-0", "task", "p@1", "1", "resolved", "2", "12"], ["x", "task", "p@1", "0.5", "resolved", "2", ""],
    ]  # fmt: skip
    code, text = run(file)
    assert code == 0 and "unresolved" in text and "fault" in text


def test_a_rollout_turn_by_turn_and_folded() -> None:
    text = printed(page(rollout_of("task-a-0", patch="diff --git a/a b/a\n+x\n")))
    assert "reward 1; resolved" in text and "34 tokens read, 12 tokens written" in text
    for words in ("--- 0 user", "Implement `f` [bold]", "I look.", "> edit c1", "path: a.py", "--- 2 tool", "+x"):
        assert words in text
    assert "< c1 ERROR exit code 2" in text and "5 tokens written, finish stop" in text
    left = 100 - HEAD_LINES - TAIL_LINES
    assert f"[... {left} lines; --full shows them ...]" in text and "line 50" not in text and "line 99" in text
    assert "line 50" in printed(page(rollout_of("task-a-0"), full=True))
    wide = rollout_of("w")
    wide = Rollout(rollout_id="w", instance_id="t", policy="p", turns=(Turn(role="user", text="y" * 5000),))
    assert "[... 4600 characters ...]" in printed(page(wide)).replace("\n", "")


@pytest.mark.parametrize("full", [True, False])
def test_what_a_policy_wrote_cannot_steer_a_terminal(full: bool) -> None:
    hostile = rollout_of(ESCAPES, verdict=ESCAPES, reason=ESCAPES, patch=ESCAPES, n_tokens=ESCAPES, finish=ESCAPES)
    for text in (printed(page(hostile, full=full)), printed(overview([hostile]))):
        assert "\x1b" not in text and "\x07" not in text
        assert "[red]mark[/red]" in text and "\\ud800" in text


def test_one_is_found_by_its_id_or_a_part_of_it(file: Path) -> None:
    assert find(file, "task-a-1").rollout_id == "task-a-1"
    assert find(file, "fault").rollout_id == "task-a-2-fault0"
    with pytest.raises(FormatError, match="3 rollouts have 'task' in their ids: task-a-0, "):
        find(file, "task")
    with pytest.raises(FormatError, match="no rollout has the id 'b'"):
        find(file, "b")
    for argument in ((f"{file}#task-a-1",), (file, "--id", "a-1")):
        code, text = run(*argument)
        assert code == 0 and "--- 1 assistant" in text and "task-a-1" in text


def test_json_for_programs(file: Path) -> None:
    code, text = run(file, "--json")
    rows = json.loads(text)
    assert code == 0 and [row["reward"] for row in rows] == [1.0, 0.0, None]
    assert rows[0] == summary(rollout_of("task-a-0")) and rows[2]["verdict"] == "fault"
    code, text = run(f"{file}#a-0", "--json")
    found = json.loads(text)
    assert found["turns"][1]["tool_calls"][0]["arguments"]["new"] == "x\ny"
    assert found["turns"][3]["tool_calls"][0]["arguments"]["command"] == ESCAPES


def test_which_arguments_are_files_of_rollouts(file: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a#b.jsonl"
    odd.write_bytes(file.read_bytes())
    assert split(str(odd)) == (odd, "") and split(f"{odd}#x") == (odd, "x")
    assert split(str(tmp_path)) is None and split("none.jsonl") == (Path("none.jsonl"), "")
    assert "cannot be read" in run(tmp_path / "none.jsonl")[1]
    assert "holds no task" in run(tmp_path)[1]
    assert run(tmp_path, "--id", "x")[0] == 2
    file.write_text('{"turns": 1}\n')
    assert f"{file}:1" in run(file)[1]
