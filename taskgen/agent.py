"""Attempts by turns: a policy calls tools in a sandbox that holds the task's workspace, until it submits or a limit
is reached. What it leaves there is taken by the grader's intake, and becomes a patch like any other.

The sandbox holds the workspace and what was built from it: no hidden test, no gold code, no network.
"""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from taskgen import archive, patches
from taskgen.agent_tools import Toolbox, sandbox_limits
from taskgen.archive import ArchiveEntry
from taskgen.errors import FormatError, SandboxUnavailable, TaskgenError
from taskgen.grading.intake import Changed, from_tree
from taskgen.grading.task import Task
from taskgen.policies.conversation import AgentLimits, ContextFull, Conversation, Reply
from taskgen.policies.policy import Sampling
from taskgen.rollout_file import COST, PROMPT_TOKENS, SECONDS, TOKENS
from taskgen.sandbox import ENV_DIR, WORKSPACE_DIR, Sandbox, SandboxProvider
from taskgen.types import ToolCall, ToolResult, Turn

#: Calls of one turn that are run.
MAX_CALLS = 16
#: A tree that is larger than the workspace by more than this is not taken, and is no solution.
MAX_TREE_BYTES = 256 << 20
ARTIFACTS_DIR = f"{ENV_DIR}/artifacts"
SETUP_S = 600.0
#: Tokens that a text of an unknown tokenizer takes: one for so many characters, about.
_CHARS_A_TOKEN = 3
SYSTEM = f"""\
You are a software engineer. Code was removed from the project in {WORKSPACE_DIR}; write it again as the user \
describes. You act by calling tools: look at the project, edit its source files, run its tests. Call submit when you \
are done: the workspace is then graded by tests that you do not have. Ask nothing; nobody answers."""
NO_CALL = "There was no tool call. Call a tool, or submit to end the attempt."


class Ending(StrEnum):
    """Why an attempt ended; after each of them the workspace is graded."""

    SUBMITTED = "submitted"
    TURNS = "turn limit"
    TOKENS = "token limit"
    CONTEXT = "context limit"
    SECONDS = "time limit"


class TreeRefused(FormatError):
    """What the agent left cannot be taken at all (too large, too many files): no solution."""


def opening(task: Task) -> tuple[Turn, ...]:
    """The turns that an attempt begins with."""
    asked = f"{task.row['problem_statement'].strip()}\n\nTests are run by `{task.environment.test_command}`."
    return Turn(role="system", text=SYSTEM), Turn(role="user", text=asked)


@dataclass(slots=True, kw_only=True)
class Episode:
    """One attempt under way. ``ask`` -> the policy -> ``take``, until ``ending`` is set; then ``patch``.

    Attributes:
        folder: the task's folder.
        ending: why it is over; None while it goes on.
        fault: what kept it from going on, and is not the policy's doing.
        n_tokens, n_prompt_tokens, cost_usd, seconds: so far; ``seconds`` of replies and tools.
    """

    task: Task
    folder: Path
    seed: int
    limits: AgentLimits
    sampling: Sampling
    turns: list[Turn] = field(default_factory=list)
    ending: Ending | None = None
    fault: TaskgenError | None = None
    n_tokens: int = 0
    n_prompt_tokens: int = 0
    cost_usd: float | None = 0.0
    seconds: float = 0.0
    _sandbox: Sandbox | None = field(init=False, default=None)
    _toolbox: Toolbox | None = field(init=False, default=None)
    #: Of the last request and its reply.
    _context: int = field(init=False, default=0)
    #: The exact ids of the conversation so far, as far as the policy tells them.
    _ids: tuple[int, ...] = field(init=False, default=())

    def start(self, provider: SandboxProvider, cache: Path) -> None:
        """Put the workspace into a sandbox. Raises SandboxUnavailable, or what ``Task.snapshot`` raises."""
        snapshot = self.task.snapshot(provider, cache)
        sandbox = provider.create(snapshot=snapshot, limits=sandbox_limits(self.limits, self.task.limits))
        self._sandbox = sandbox
        # What the build made goes below the tree, as where tests are run.
        script = f"[ ! -d {ARTIFACTS_DIR} ] || cp -a -- {ARTIFACTS_DIR}/. {WORKSPACE_DIR}"
        done = sandbox.exec(["sh", "-c", script], timeout_s=SETUP_S)
        if done.returncode:
            raise SandboxUnavailable(f"cannot fill the workspace: {done.stderr.decode(errors='replace').strip()}")
        sandbox.put(WORKSPACE_DIR, self.task.tree({}, tests=False))
        self._toolbox = Toolbox(sandbox, provider.python(), self.limits)
        self.turns = list(opening(self.task))

    def ask(self) -> Conversation:
        """What the policy is to go on with."""
        return Conversation(
            instance_id=str(self.task.row["instance_id"]), folder=self.folder, turns=tuple(self.turns), seed=self.seed
        )

    @property
    def n_replies(self) -> int:
        """Replies of the policy so far."""
        return sum(turn.role == "assistant" for turn in self.turns)

    def full(self, fault: ContextFull) -> None:
        """The policy can read no more. Raises the fault if it could not even read the task."""
        if not self.n_replies:
            raise fault
        self.ending = Ending.CONTEXT

    def take(self, reply: Reply) -> None:
        """Record a reply and run its calls. Raises SandboxUnavailable."""
        self._record(reply)
        if reply.turn.tool_calls and not reply.problem:
            results = self._run(reply.turn.tool_calls)
            self.turns.append(Turn(role="tool", tool_results=tuple(results)))
        else:
            self.turns.append(Turn(role="user", text=reply.problem or NO_CALL))
        self.ending = self.ending or self._limit()

    def _record(self, reply: Reply) -> None:
        extra: dict[str, Any] = {
            "finish_reason": reply.finish_reason, PROMPT_TOKENS: reply.n_prompt_tokens, TOKENS: reply.n_tokens,
        }  # fmt: skip
        if reply.prompt_ids is not None and reply.token_ids is not None and reply.logps is not None:
            self._record_prompt(reply.prompt_ids)
            extra |= {"token_ids": list(reply.token_ids), "logps": list(reply.logps)}
            self._ids = (*reply.prompt_ids, *reply.token_ids)
        self.turns.append(Turn(role="assistant", text=reply.turn.text, tool_calls=reply.turn.tool_calls, extra=extra))
        self.n_tokens += reply.n_tokens
        self.n_prompt_tokens += reply.n_prompt_tokens
        self.seconds += reply.seconds
        known = self.cost_usd is not None and reply.cost_usd is not None
        self.cost_usd = self.cost_usd + reply.cost_usd if known else None  # type: ignore[operator]
        self._context = reply.n_prompt_tokens + reply.n_tokens

    def _record_prompt(self, prompt: tuple[int, ...]) -> None:
        """Keep the ids of a prompt at the turn before the reply: those behind what is kept already or, where the
        policy's tokenizer split the conversation anew, all of them (``restarts``)."""
        before, n = self.turns[-1], len(self._ids)
        if prompt[:n] == self._ids:
            extra: dict[str, Any] = {"token_ids": list(prompt[n:])}
        else:
            extra = {"token_ids": list(prompt), "restarts": True}
        self.turns[-1] = Turn(
            role=before.role, text=before.text, tool_results=before.tool_results, extra={**before.extra, **extra}
        )

    def _run(self, calls: tuple[ToolCall, ...]) -> list[ToolResult]:
        assert self._toolbox is not None
        results = []
        for number, call in enumerate(calls):
            if self.ending is not None:
                results.append(_not_run(call, f"not run: {self.ending}"))
            elif number >= MAX_CALLS:
                results.append(_not_run(call, f"not run: more than {MAX_CALLS} calls in one turn"))
            else:
                ran = self._toolbox.call(call)
                self.seconds += ran.seconds
                results.append(ran.result)
                self.ending = Ending.SUBMITTED if ran.submitted else self._out_of_time()
        return results

    def _out_of_time(self) -> Ending | None:
        return Ending.SECONDS if self.seconds >= self.limits.seconds else None

    def _limit(self) -> Ending | None:
        if self.n_replies >= self.limits.turns:
            return Ending.TURNS
        if self.n_tokens >= self.limits.tokens:
            return Ending.TOKENS
        last = self.turns[-1]
        answered = len(last.text) + sum(len(result.text) for result in last.tool_results)
        if self._context + answered // _CHARS_A_TOKEN + self.sampling.max_tokens > self.limits.context_tokens:
            return Ending.CONTEXT
        return self._out_of_time()

    def patch(self) -> bytes:
        """What the agent left, as a patch against the workspace of all that the intake takes.

        Raises:
            TreeRefused: it left more than is taken.
            SandboxUnavailable: the sandbox is gone.
        """
        assert self._sandbox is not None
        # A folder that the agent closed is its own work, and must not look like a sandbox that broke.
        self._sandbox.exec(["chmod", "-R", "u+rwX", WORKSPACE_DIR], cwd="/", timeout_s=SETUP_S)
        most = MAX_TREE_BYTES + sum(len(entry.content) for entry in self.task.workspace.values())
        try:
            data = self._sandbox.get(WORKSPACE_DIR, max_bytes=most)
        except ValueError as error:
            raise TreeRefused(str(error)) from error
        with tempfile.TemporaryDirectory(prefix="taskgen-agent-") as folder:
            tree = Path(folder) / "tree.tar"
            tree.write_bytes(data)
            try:
                changes = dict(from_tree(tree, self.task.rules).changes)
            except FormatError as error:
                raise TreeRefused(str(error.args[0]).replace(str(tree), "the workspace")) from error
        for path, entry in self._built(changes).items():
            # The same bytes as the build's: not the agent's.
            if (mine := changes[path]) is not None and mine.content == entry.content:
                del changes[path]
        return patch_of(self.task, changes)

    def _built(self, changes: Changed) -> dict[str, ArchiveEntry]:
        """Files of the build, which are no part of the workspace, that lie where changes are."""
        new = {path for path in changes if path not in self.task.workspace}
        assert self._sandbox is not None
        if not new or self._sandbox.exec(["test", "-d", ARTIFACTS_DIR], cwd="/").returncode:
            return {}
        entries = archive.read_entries(self._sandbox.get(ARTIFACTS_DIR))
        return {entry.path: entry for entry in entries if entry.path in new}

    def costs(self) -> dict[str, Any]:
        """What it took, as a rollout records it."""
        return {
            TOKENS: self.n_tokens, PROMPT_TOKENS: self.n_prompt_tokens, SECONDS: round(self.seconds, 4),
            COST: self.cost_usd,
        }  # fmt: skip

    def close(self) -> None:
        """Free the sandbox. Never raises; may be called twice."""
        if self._sandbox is not None:
            self._sandbox.close()


def _not_run(call: ToolCall, text: str) -> ToolResult:
    return ToolResult(text=text, call_id=call.id, is_error=True)


def patch_of(task: Task, changes: Changed) -> bytes:
    """Changes of the workspace as a patch (``git apply -p1``); empty if there are none."""
    old = [task.workspace[path] for path in changes if path in task.workspace]
    with tempfile.TemporaryDirectory(prefix="taskgen-agent-") as folder:
        for side, entries in (("old", old), ("new", [_with_mode(task, e) for e in changes.values() if e is not None])):
            (Path(folder) / side).mkdir()
            archive.write_entries(entries, Path(folder) / side)
        return patches.patch_bytes(patches.diff_directories(Path(folder) / "old", Path(folder) / "new"))


def _with_mode(task: Task, entry: ArchiveEntry) -> ArchiveEntry:
    """A tree's modes are not told: a file keeps the one that it had."""
    before = task.workspace.get(entry.path)
    return ArchiveEntry(path=entry.path, content=entry.content, executable=before is not None and before.executable)


def gold_calls(task: Task) -> tuple[ToolCall, ...]:
    """The calls that make the gold patch's changes, for controls."""
    calls = []
    for path, entry in task.gold.items():
        was = task.workspace[path].content if path in task.workspace else b""
        if entry is None:
            calls.append(ToolCall(name="bash", arguments={"command": shlex.join(["rm", "--", path])}))
        elif path not in task.workspace or was != entry.content:
            old, new = (data.decode("utf-8", "surrogateescape") for data in (was, entry.content))
            calls.append(ToolCall(name="edit", arguments={"path": path, "old": old, "new": new}))
    return tuple(calls)
