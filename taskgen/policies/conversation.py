"""The seam for policies that act by turns: conversations with tools in, the next assistant turns out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from taskgen.errors import PolicyFault
from taskgen.policies.policy import Sampling
from taskgen.types import Turn

#: Most tokens of one reply, where a policy's file does not say: a call that writes a file must fit.
REPLY_TOKENS = 2048


class ContextFull(PolicyFault):
    """A conversation no longer fits into the policy's context: the policy is there, this conversation is over."""


def sendable(text: str) -> str:
    """Text without lone surrogates, which models and file names do hold, and UTF-8 has not."""
    return text.encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """What one attempt by turns may take.

    Attributes:
        turns: replies of the policy.
        tokens: tokens that the policy writes, over all turns.
        context_tokens: of one request with its reply. An attempt ends before a request that would exceed it.
        seconds: of replies and of commands, waiting for other attempts not counted.
        command_s: longest that one command may run.
        output_chars: of a tool's answer; more is cut out of its middle.
    """

    turns: int = 50
    tokens: int = 32_768
    context_tokens: int = 32_768
    seconds: float = 1800.0
    command_s: float = 60.0
    output_chars: int = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that may be called. ``parameters``: JSON schema of its arguments, an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What was said so far, for the policy to go on.

    Attributes:
        folder: the task's folder, for controls (gold, scripted) alone: it holds the solution.
        seed: of the whole attempt.
    """

    instance_id: str
    folder: Path
    turns: tuple[Turn, ...]
    seed: int

    @property
    def n_replies(self) -> int:
        """How often the policy has answered."""
        return sum(turn.role == "assistant" for turn in self.turns)

    @property
    def turn_seed(self) -> int:
        """The seed of the next reply: each turn has its own, so that a policy does not draw the same again."""
        words = f"{self.seed}\0{self.n_replies}".encode()
        return int.from_bytes(hashlib.sha256(words).digest()[:7], "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The policy's next turn.

    Attributes:
        turn: of role assistant. Its text is what the policy wrote, calls that it wrote as text included.
        problem: what is wrong with the form of its calls, as a message to the policy; '' if nothing is.
        prompt_ids, token_ids, logps: as in ``Completion``.
        seconds: from question to answer; of a batch, an equal share.
    """

    turn: Turn
    finish_reason: str = "stop"
    problem: str = ""
    prompt_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    logps: tuple[float, ...] | None = None
    n_prompt_tokens: int = 0
    n_tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0


class Converses(Protocol):
    """What attempts tasks by turns of tool calls.

    Attributes:
        name, version, batch: as of a ``Policy``.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def batch(self) -> int: ...

    def reply(
        self, conversations: Sequence[Conversation], tools: Sequence[Tool], sampling: Sampling
    ) -> list[Reply | PolicyFault]:
        """For each conversation its next turn; called from one thread at a time.

        Raises:
            PrerequisiteError: it is not there at all (no torch, no weights, no endpoint).
            ConfigError: it refuses its configuration (model, key).
        """
        ...

    def close(self) -> None:
        """Free what it holds (processes, connections)."""
        ...
