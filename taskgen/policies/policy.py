"""The seam between what asks and what answers: prompts in, completions out, faults told apart from failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from taskgen.errors import PolicyFault
from taskgen.types import Turn


class Form(StrEnum):
    """What a completion's text is.

    CONTINUATION: what follows ``Prompt.text``. ANSWER: a message that answers ``Prompt.messages``. PATCH: a whole
    patch against the workspace, which only controls give.
    """

    CONTINUATION = "continuation"
    ANSWER = "answer"
    PATCH = "patch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a policy is asked, in both styles; it takes the one that it is made for.

    Attributes:
        folder: the task's folder, for controls (gold, scripted) alone: it holds the solution.
        text: a file up to the line before the one that is to be written, without the newline at its end.
        indent: the white space that the next line begins with.
        messages: the same as a conversation.
    """

    instance_id: str
    folder: Path
    text: str
    indent: str
    messages: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How completions are sampled. The distribution is never cut (no top-k, no top-p): log-probabilities of what is
    left and renormalised would be those of another policy.

    Attributes:
        context_chars: of the file before the definition that prompts hold, at most; whole lines.
    """

    max_tokens: int = 256
    temperature: float = 0.8
    context_chars: int = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sample.

    Attributes:
        prompt_ids, token_ids, logps: the exact ids and natural log-probabilities of the sampled tokens, each under
            the distribution that it was sampled from; None where the policy does not tell.
        finish_reason: ``stop``, ``length``, or the endpoint's own word.
        n_prompt_tokens, n_tokens: read and written; 0 where they are not known.
        cost_usd: None where no prices are known.
        seconds: from question to answer; of a batch, this sample's equal share.
    """

    text: str
    form: Form
    finish_reason: str
    prompt_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    logps: tuple[float, ...] | None = None
    n_prompt_tokens: int = 0
    n_tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0


#: One sample, or why there is none. A fault is returned, not raised, so that it cannot mask its neighbours.
Sampled = Completion | PolicyFault


class Policy(Protocol):
    """What attempts tasks.

    Attributes:
        name, version: recorded with each rollout; another version is another policy.
        form: of what it gives.
        batch: how many samples it likes to be asked for at once.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def form(self) -> Form: ...
    @property
    def batch(self) -> int: ...

    def complete(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Sampled]]:
        """For each prompt, one sample for each of its seeds; called from one thread at a time.

        Raises:
            PrerequisiteError: it is not there at all (no torch, no weights, no endpoint).
            ConfigError: it refuses its configuration (model, key).
        """
        ...

    def close(self) -> None:
        """Free what it holds (processes, connections)."""
        ...


@runtime_checkable
class Scores(Protocol):
    """A policy that also tells how likely it is to write a text."""

    def log_likelihoods(
        self, prompts: Sequence[Prompt], bodies: Sequence[str], sampling: Sampling
    ) -> list[float] | PolicyFault:
        """For each prompt, of the lines of a body behind its text: nats, under the sampling's temperature.

        Raises PrerequisiteError if the policy is not there at all.
        """
        ...
