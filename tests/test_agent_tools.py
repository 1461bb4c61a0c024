"""The tools of an agent in a real sandbox: what they do, and that no call raises, reaches the host or floods it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskgen.agent_tools import MAX_COMMAND_BYTES, TOOLS, Ran, Toolbox, sandbox_limits
from taskgen.errors import SandboxUnavailable
from taskgen.policies.conversation import AgentLimits
from taskgen.sandbox import Limits, Sandbox
from taskgen.sandboxes.bubblewrap import BubblewrapProvider
from taskgen.types import ToolCall, ToolResult

LIMITS = AgentLimits(command_s=20.0, output_chars=1000)


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory, bubblewrap: None) -> BubblewrapProvider:
    return BubblewrapProvider(tmp_path_factory.mktemp("tools"))


@pytest.fixture
def sandbox(provider: BubblewrapProvider) -> Iterator[Sandbox]:
    with provider.create(limits=sandbox_limits(LIMITS, Limits(processes=64))) as made:
        made.exec(["sh", "-c", "mkdir pkg && printf 'one\\ntwo\\none\\n' > pkg/a.py"])
        yield made


@pytest.fixture
def box(provider: BubblewrapProvider, sandbox: Sandbox) -> Toolbox:
    return Toolbox(sandbox, provider.python(), LIMITS)


def ran(box: Toolbox, name: str, **arguments: Any) -> Ran:  # noqa: ANN401 - any JSON value
    return box.call(ToolCall(name=name, arguments=arguments, id="c"))


def call(box: Toolbox, name: str, **arguments: Any) -> ToolResult:  # noqa: ANN401
    result = ran(box, name, **arguments).result
    assert result.call_id == "c"
    return result


def error(box: Toolbox, name: str, **arguments: Any) -> str:  # noqa: ANN401
    result = call(box, name, **arguments)
    assert result.is_error, result
    return result.text


# --- bash --------------------------------------------------------------------------------------------------


def test_bash_gives_both_streams_in_order_and_the_code(box: Toolbox) -> None:
    found = call(box, "bash", command="echo 1; echo 2 >&2; echo 3; pwd; exit 7")
    assert (found.text, found.exit_code, found.is_error) == ("1\n2\n3\n/workspace\nexit code 7", 7, False)
    assert call(box, "bash", command="cat pkg/a.py | wc -l").text == "3"
    assert "unexpected" in call(box, "bash", command="if (").text


def test_a_command_that_takes_too_long_is_killed(box: Toolbox) -> None:
    began = time.monotonic()
    found = ran(box, "bash", command="echo begun; sleep 60 & sleep 60", timeout_s=1)
    assert found.result.is_error and found.result.exit_code == 124 and time.monotonic() - began < 15
    assert found.result.text.startswith("begun\ntimed out after 1 s") and found.seconds >= 1
    assert call(box, "bash", command="pgrep sleep || echo none").text.startswith("none")


def test_a_policy_cannot_ask_for_more_time_than_there_is(box: Toolbox) -> None:
    short = Toolbox(box.sandbox, box.python, AgentLimits(command_s=0.5))
    assert "timed out after 0.5 s" in error(short, "bash", command="sleep 30", timeout_s=1e9)


def test_100_mb_of_output_are_cut(box: Toolbox) -> None:
    found = call(box, "bash", command="echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert found.text.startswith("first\nxxx") and found.text.endswith("xxx\nlast") and len(found.text) < 1100
    assert "bytes left out" in found.text and found.exit_code == 0
    binary = call(box, "bash", command="head -c 300 /dev/urandom")
    binary.text.encode()


def test_a_fork_bomb_hurts_itself_alone(box: Toolbox) -> None:
    ran(box, "bash", command="b() { b | b & }; b; sleep 30", timeout_s=2)
    assert call(box, "bash", command="echo alive").text == "alive"


def test_nothing_of_the_host_and_no_network(box: Toolbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    assert "No such file" in call(box, "bash", command=f"cat {secret}").text
    assert "No such file" in call(box, "bash", command=f"ls {Path(__file__).parent}").text
    assert call(box, "bash", command="id -u; env | grep -c -i taskgen").text.startswith("1000\n0")
    code = "import socket; socket.create_connection(('1.1.1.1', 53), 2)"
    assert "unreachable" in call(box, "bash", command=f'{box.python} -c "{code}"').text


def test_commands_that_cannot_be_given(box: Toolbox) -> None:
    assert "zero byte" in error(box, "bash", command="echo a\0b")
    assert "unicode" in error(box, "bash", command="echo \ud800")
    assert "bytes" in error(box, "bash", command="#" * (MAX_COMMAND_BYTES + 1))
    assert call(box, "bash", command="#" * (MAX_COMMAND_BYTES - 1)).exit_code == 0


# --- read ----------------------------------------------------------------------------------------------------


def test_read_shows_numbered_lines(box: Toolbox) -> None:
    assert call(box, "read", path="pkg/a.py").text == "     1\tone\n     2\ttwo\n     3\tone"
    assert call(box, "read", path="/workspace/pkg/a.py", start=2, end=2).text == "     2\ttwo\n[lines 2 to 2 of 3]"
    assert "pkg/a.py has 3 lines" in error(box, "read", path="pkg/a.py", start=4)
    assert "No such file" in error(box, "read", path="pkg/b.py")
    assert error(box, "read", path="pkg") == "pkg: a folder, which has: a.py"


def test_read_is_bounded(box: Toolbox) -> None:
    call(box, "bash", command="seq 100000 > numbers; head -c 9000000 /dev/zero > zeros; : > empty")
    found = call(box, "read", path="numbers", start=10)
    assert len(found.text) < 1200 and found.text.endswith("of 100000]")
    assert "larger than" in error(box, "read", path="zeros")
    assert call(box, "read", path="empty").text == "empty is empty"


@pytest.mark.parametrize("path", ["/etc/passwd", "../etc/passwd", "pkg/../../etc/passwd", "link", "folder/passwd"])
def test_read_and_edit_stay_in_the_workspace(box: Toolbox, path: str) -> None:
    call(box, "bash", command="ln -s /etc/passwd link; ln -s /etc folder; ln -s /home/agent home")
    assert "outside of the workspace" in error(box, "read", path=path)
    assert "outside of the workspace" in error(box, "edit", path=path, old="", new="x")
    assert "outside of the workspace" in error(box, "edit", path="home/x", old="", new="x")
    assert call(box, "bash", command="ls -A /home/agent").text == ""


def test_what_is_no_file_is_neither_read_nor_waited_for(box: Toolbox) -> None:
    call(box, "bash", command="mkfifo pipe; ln -s loop loop; printf x > closed; chmod 0 closed")
    assert "not a regular file" in error(box, "read", path="pipe")
    assert "not a regular file" in error(box, "edit", path="pipe", old="a", new="b")
    assert error(box, "read", path="loop")
    assert "Permission denied" in error(box, "read", path="closed")


# --- edit ----------------------------------------------------------------------------------------------------


def test_edit_needs_a_unique_match(box: Toolbox) -> None:
    assert "is there 2 times" in error(box, "edit", path="pkg/a.py", old="one", new="1")
    assert "is not in the file" in error(box, "edit", path="pkg/a.py", old="three", new="3")
    assert call(box, "edit", path="pkg/a.py", old="two\none", new="2\n1").text == "pkg/a.py: replaced at line 2"
    assert call(box, "bash", command="cat pkg/a.py").text == "one\n2\n1"


def test_edit_makes_files(box: Toolbox) -> None:
    assert "created" in call(box, "edit", path="new/deep/b.py", old="", new="x = 'é'\n").text
    assert call(box, "bash", command="cat new/deep/b.py").text == "x = 'é'"
    assert "there already" in error(box, "edit", path="new/deep/b.py", old="", new="y")
    assert "no such file" in error(box, "edit", path="c.py", old="a", new="b")
    assert error(box, "edit", path="pkg/a.py/c", old="", new="b")


def test_edit_keeps_line_ends_and_other_bytes(box: Toolbox) -> None:
    call(box, "bash", command="printf 'a\\r\\nb\\r\\n\\377\\r\\n' > dos.py")
    call(box, "edit", path="dos.py", old="a\nb\n", new="c\nd\n")
    assert call(box, "bash", command="od -An -c dos.py | tr -d ' \\n'").text == r"c\r\nd\r\n377\r\n"


# --- Calls that are wrong ------------------------------------------------------------------------------------


def test_an_unknown_tool_is_a_message(box: Toolbox) -> None:
    assert error(box, "python", code="1") == "tool not found: python; there are bash, read, edit, submit"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("bash", {}, "command: Field required"),
        ("bash", {"command": 1}, "command: Input should be a valid string"),
        ("bash", {"command": "ls", "timeout_s": -1}, "timeout_s: Input should be greater than 0"),
        ("bash", {"command": "ls", "timeout_s": float("nan")}, "timeout_s"),
        ("bash", {"command": "ls", "shell": "zsh"}, "shell: Extra inputs are not permitted"),
        ("read", {"path": "a", "start": 0}, "start: Input should be greater than or equal to 1"),
        ("read", {"path": "p" * 5000}, "at most 4096"),
        ("read", {"path": "a\0b"}, "zero byte"),
        ("edit", {"path": "a", "old": "x"}, "new: Field required"),
        (
            "edit",
            {"path": "a", "old": "", "new": "\ud800"},
            "surrogates not allowed",
        ),
        ("submit", {"why": "done"}, "why: Extra inputs"),
        ("bash", {"raw": '{"command": "ls'}, 'the arguments are no JSON object: {"command": "ls'),
    ],
)
def test_malformed_arguments_are_a_message(box: Toolbox, name: str, arguments: dict[str, Any], said: str) -> None:
    assert said in error(box, name, **arguments)


def test_messages_are_bounded(box: Toolbox) -> None:
    assert len(error(box, "x" * 1_000_000)) <= 2000
    assert len(error(box, "submit", **{"k" * 1_000_000: 1})) <= 2000


def test_submit_ends_the_attempt(box: Toolbox) -> None:
    assert ran(box, "submit").submitted and not ran(box, "bash", command="true").submitted


def test_a_dead_sandbox_is_no_message(box: Toolbox) -> None:
    box.sandbox.close()
    for name, arguments in (("bash", {"command": "ls"}), ("read", {"path": "a"})):
        with pytest.raises(SandboxUnavailable):
            ran(box, name, **arguments)


def test_a_workspace_that_was_closed_is_no_dead_sandbox(box: Toolbox) -> None:
    call(box, "bash", command="chmod 0 /workspace")
    assert "can't cd to /workspace" in call(box, "bash", command="pwd").text
    assert "Permission denied" in error(box, "read", path="pkg/a.py")
    call(box, "bash", command="chmod 700 /workspace")
    assert call(box, "bash", command="ls").text == "pkg"


def test_each_tool_is_described() -> None:
    described = {tool.name: tool for tool in TOOLS}
    assert list(described) == ["bash", "read", "edit", "submit"]
    assert described["edit"].parameters["required"] == ["path", "old", "new"]
    assert described["bash"].parameters["additionalProperties"] is False
    assert all(tool.description and tool.parameters["type"] == "object" for tool in TOOLS)
