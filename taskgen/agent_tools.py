"""The tools of an agent: bash, read, edit, submit. They run in its sandbox; what goes wrong is a message to it.

Nothing that a policy writes can raise here, but SandboxUnavailable: a sandbox that broke is no failed attempt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from taskgen import agent_files
from taskgen.errors import SandboxUnavailable
from taskgen.policies.conversation import AgentLimits, Tool
from taskgen.sandbox import ENV_DIR, WORKSPACE_DIR, ExecResult, Limits, Sandbox
from taskgen.types import ToolCall, ToolResult

SUBMIT = "submit"
#: A single argument of a program is bounded by the kernel at 128 KiB.
MAX_COMMAND_BYTES = 100_000
#: For a file tool: a program of ours, which only a broken sandbox keeps from ending.
FILE_TOOL_S = 60.0
#: What the sandbox keeps of a stream, for each character that is shown: JSON writes some as six, UTF-8 as four.
_KEPT_BYTES = 16
#: Of a message about a call, which may quote what the policy wrote.
_MESSAGE_CHARS = 2000
_PROGRAM = Path(agent_files.__file__).read_text("utf-8")
#: One stream, in the order in which it was written. The folder is entered inside: one that the agent has closed to
#: itself must not look like a sandbox that broke.
_SHELL = f'exec 2>&1; cd {WORKSPACE_DIR} || cd /; exec bash -c "$1"'
_ENV: Mapping[str, str] = {
    "PYTHONDONTWRITEBYTECODE": "1", "VIRTUAL_ENV": f"{ENV_DIR}/venv", "PAGER": "cat", "TERM": "dumb",
}  # fmt: skip


def _without_zero_byte(text: str) -> str:
    if "\0" in text:
        raise ValueError("there is a zero byte in it")
    return text


#: What a program can be given. A text whose length is bounded is also valid Unicode: pydantic measures it in UTF-8.
Word = Annotated[str, Field(min_length=1), AfterValidator(_without_zero_byte)]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Bash(_Arguments):
    """Run a command with bash in the workspace. Each call is a shell of its own: cd and variables do not last, and
    what is left running is killed. There is no network."""

    command: Word
    timeout_s: Annotated[float, Field(gt=0, description="after so many seconds it is killed")] | None = None


class Read(_Arguments):
    """Show a text file of the workspace with line numbers, all of it or lines start to end (from 1, both included)."""

    path: Annotated[Word, Field(max_length=4096)]
    start: int = Field(default=1, ge=1)
    end: Annotated[int, Field(ge=1)] | None = None


class Edit(_Arguments):
    """Change a file of the workspace: put new in the place of old, which must occur exactly once. With old empty, the
    file is created with the content new."""

    path: Annotated[Word, Field(max_length=4096)]
    old: str
    new: str


class Submit(_Arguments):
    """End the attempt: the workspace is graded as it is."""


_ARGUMENTS: dict[str, type[_Arguments]] = {"bash": Bash, "read": Read, "edit": Edit, SUBMIT: Submit}


def _schema(arguments: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a tool's arguments, less what only repeats the keys' names."""
    schema = arguments.model_json_schema()
    for value in schema["properties"].values():
        value.pop("title", None)
    return {key: schema[key] for key in ("type", "properties", "required", "additionalProperties") if key in schema}


TOOLS: tuple[Tool, ...] = tuple(
    Tool(name=name, description=" ".join((model.__doc__ or "").split()), parameters=_schema(model))
    for name, model in _ARGUMENTS.items()
)


def sandbox_limits(limits: AgentLimits, task: Limits) -> Limits:
    """The limits of an agent's sandbox: those of the task, with room for what tools show."""
    return Limits(
        memory_bytes=task.memory_bytes, processes=task.processes, file_bytes=task.file_bytes, cpus=task.cpus,
        output_bytes=max(task.output_bytes, _KEPT_BYTES * limits.output_chars),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a call. ``seconds``: that it ran. ``submitted``: the attempt is over."""

    result: ToolResult
    seconds: float = 0.0
    submitted: bool = False


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools over one sandbox. ``python``: the interpreter inside of it that reads and edits files."""

    sandbox: Sandbox
    python: str
    limits: AgentLimits

    def call(self, call: ToolCall) -> Ran:
        """Run a call. Raises SandboxUnavailable, and nothing else."""
        model = _ARGUMENTS.get(call.name)
        if model is None:
            return _refused(call, f"tool not found: {call.name}; there are {', '.join(_ARGUMENTS)}")
        if set(call.arguments) == {"raw"}:
            return _refused(call, f"{call.name}: the arguments are no JSON object: {call.arguments['raw']}")
        try:
            arguments = model.model_validate(dict(call.arguments))
        except ValidationError as error:
            return _refused(call, f"{call.name}: malformed arguments: {_mistakes(error)}")
        match arguments:
            case Bash():
                return self._bash(call, arguments)
            case Read() | Edit():
                return self._file(call, arguments)
            case _:
                return Ran(ToolResult(text="submitted", call_id=call.id), submitted=True)

    def _bash(self, call: ToolCall, arguments: Bash) -> Ran:
        if len(arguments.command.encode()) > MAX_COMMAND_BYTES:
            return _refused(call, f"bash: a command of more than {MAX_COMMAND_BYTES} bytes; write a file with edit")
        limit_s = min(arguments.timeout_s or self.limits.command_s, self.limits.command_s)
        done = self.sandbox.exec(["sh", "-c", _SHELL, "sh", arguments.command], env=_ENV, cwd="/", timeout_s=limit_s)
        text = self._bounded(done)
        if done.timed_out:
            note = f"timed out after {limit_s:g} s; it was killed with all that it had started"
            return Ran(
                ToolResult(text=f"{text}\n{note}".lstrip("\n"), call_id=call.id, exit_code=124, is_error=True),
                done.duration_s,
            )
        if done.returncode:
            text = f"{text}\nexit code {done.returncode}".lstrip("\n")
        return Ran(ToolResult(text=text, call_id=call.id, exit_code=done.returncode), done.duration_s)

    def _bounded(self, done: ExecResult) -> str:
        """The head and the tail of what a command wrote."""
        text = (done.stdout + done.stderr).decode("utf-8", "replace")
        most = self.limits.output_chars
        if len(text) > most:
            half = most // 2
            left_out = done.stdout_bytes + done.stderr_bytes - len((text[:half] + text[-half:]).encode())
            text = f"{text[:half]}\n[... {left_out} bytes left out ...]\n{text[-half:]}"
        return text.removesuffix("\n")

    def _file(self, call: ToolCall, arguments: Read | Edit) -> Ran:
        request: dict[str, Any] = {"root": WORKSPACE_DIR, "do": call.name, **arguments.model_dump()}
        if isinstance(arguments, Read):
            request["max_chars"] = self.limits.output_chars
        done = self.sandbox.exec(
            [self.python, "-I", "-c", _PROGRAM], stdin=json.dumps(request).encode(), cwd="/", timeout_s=FILE_TOOL_S
        )
        if done.timed_out or done.returncode:
            # Memory and time are those of the sandbox: what a file does to them, the agent did.
            why = "timed out" if done.timed_out else f"ended with code {done.returncode}"
            return _refused(call, f"{call.name}: {why}", done.duration_s)
        try:
            answer = json.loads(done.stdout)
            result = ToolResult(text=str(answer["text"]), call_id=call.id, is_error=bool(answer["is_error"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SandboxUnavailable(f"{call.name}: an answer of another form: {done.stdout[:200]!r}") from error
        return Ran(result, done.duration_s)


def _refused(call: ToolCall, text: str, seconds: float = 0.0) -> Ran:
    return Ran(ToolResult(text=text[:_MESSAGE_CHARS], call_id=call.id, is_error=True), seconds)


def _mistakes(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, found['loc'])) or 'arguments'}: {found['msg']}"
        for found in error.errors(include_url=False, include_context=False)
    )
