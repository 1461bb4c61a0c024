"""Policies whose results are known beforehand: they show that whatever measures policies measures right."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from taskgen.errors import PolicyFault
from taskgen.policies.conversation import Conversation, Reply, Tool
from taskgen.policies.policy import Completion, Form, Prompt, Sampled, Sampling
from taskgen.types import ToolCall, Turn

#: What the scripted policy writes where it fails: plausible to look at, and no test of an accepted task passes with it
#: (a deletion is accepted only if trivial stubs fail).
WRONG = "return None"


@dataclass(frozen=True, slots=True)
class NullPolicy:
    """Changes nothing: pass@1 is 0."""

    name: str = "null"
    version: str = "1"
    form: Form = Form.PATCH
    batch: int = 64

    def complete(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Sampled]]:
        """An empty patch for each sample."""
        nothing = Completion(text="", form=Form.PATCH, finish_reason="stop", cost_usd=0.0)
        return [[nothing for _ in group] for group in seeds]

    def close(self) -> None:
        """Holds nothing."""


@dataclass(frozen=True, slots=True)
class GoldPolicy:
    """Gives the gold patch: pass@1 is 1."""

    name: str = "gold"
    version: str = "1"
    form: Form = Form.PATCH
    batch: int = 64

    def complete(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Sampled]]:
        """The task's own patch for each sample."""
        return [[_gold(prompt) for _ in group] for prompt, group in zip(prompts, seeds, strict=True)]

    def close(self) -> None:
        """Holds nothing."""


def _gold(prompt: Prompt) -> Completion:
    patch = (prompt.folder / "gold.patch").read_bytes().decode("utf-8", "surrogateescape")
    return Completion(text=patch, form=Form.PATCH, finish_reason="stop", cost_usd=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strength:
    """A skill that meets each task's hardness: the chance of a pass is logistic(skill - hardness).

    Attributes:
        hardness_of: of a prompt's task.
        spread: standard deviation of a part of the hardness that is each task's own, drawn by its instance id.
    """

    skill: float
    hardness_of: Callable[[Prompt], float]
    spread: float = 0.5

    def chance(self, prompt: Prompt) -> float:
        """Of a pass."""
        own = random.Random(prompt.instance_id).gauss(0.0, self.spread)
        return 1 / (1 + math.exp(min(max(self.hardness_of(prompt) + own - self.skill, -500.0), 500.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedPolicy:
    """Solves each task with a probability that is set, by giving its gold body, and else writes ``return None``.

    Attributes:
        solves: the probability, of tasks that ``rates`` does not name; not used where there is a ``strength``.
        rates: instance_id -> the probability.
        body_of: the gold body of a prompt's task, as the lines that follow ``Prompt.text``.
        strength: what the probability depends on in place of ``solves``.
        form: PATCH: it gives the whole gold patch, or an empty one, and so attempts all tasks.
    """

    solves: float
    body_of: Callable[[Prompt], str]
    rates: Mapping[str, float] = field(default_factory=dict)
    strength: Strength | None = None
    name: str = "scripted"
    form: Form = Form.CONTINUATION
    batch: int = 64

    @property
    def version(self) -> str:
        """Its strength: another one is another policy."""
        if self.strength is None:
            parts = [f"{self.solves}"]
        else:
            parts = [f"strength {self.strength.skill:g}", f"spread {self.strength.spread:g}"]
        parts += [f"{name}={rate}" for name, rate in sorted(self.rates.items())]
        return ",".join(parts + ([self.form.value] if self.form is not Form.CONTINUATION else []))

    def complete(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Sampled]]:
        """The seed alone decides whether a sample is right."""
        return [
            [self._one(prompt, chance, seed) for seed in group]
            for prompt, chance, group in zip(prompts, map(self._chance, prompts), seeds, strict=True)
        ]

    def is_right(self, chance: float, seed: int) -> bool:
        """Whether the attempt with this seed solves a task that has this chance of a pass."""
        return random.Random(seed).random() < chance

    def _chance(self, prompt: Prompt) -> float:
        default = self.solves if self.strength is None else self.strength.chance(prompt)
        return self.rates.get(prompt.instance_id, default)

    def conversation(self, gold_calls_of: CallsOf) -> ScriptedConversation:
        """The same strength by turns: the gold patch's changes, or none."""

        def calls_of(asked: Conversation) -> Sequence[ToolCall]:
            prompt = Prompt(instance_id=asked.instance_id, folder=asked.folder, text="", indent="", messages=())
            return gold_calls_of(asked) if self.is_right(self._chance(prompt), asked.seed) else ()

        return ScriptedConversation(name=self.name, version=self.version, calls_of=calls_of)

    def _one(self, prompt: Prompt, chance: float, seed: int) -> Completion:
        right = self.is_right(chance, seed)
        if self.form is Form.PATCH:
            return _gold(prompt) if right else Completion(text="", form=Form.PATCH, finish_reason="stop", cost_usd=0.0)
        body = self.body_of(prompt) if right else f"{prompt.indent}{WRONG}\n"
        return Completion(text=f"\n{body}", form=Form.CONTINUATION, finish_reason="stop", cost_usd=0.0)

    def close(self) -> None:
        """Holds nothing."""


CallsOf = Callable[[Conversation], Sequence[ToolCall]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedConversation:
    """Makes calls that are known beforehand, one a turn, and then submits.

    Attributes:
        calls_of: the calls of a conversation; must not depend on how far it has come.
    """

    name: str
    version: str
    calls_of: CallsOf
    batch: int = 64

    def reply(
        self, conversations: Sequence[Conversation], tools: Sequence[Tool], sampling: Sampling
    ) -> list[Reply | PolicyFault]:
        """The next call of each script."""
        return [self._next(conversation) for conversation in conversations]

    def _next(self, conversation: Conversation) -> Reply:
        n, calls = conversation.n_replies, self.calls_of(conversation)
        call = calls[n] if n < len(calls) else ToolCall(name="submit", arguments={})
        made = ToolCall(name=call.name, arguments=call.arguments, id=f"call-{n}")
        return Reply(turn=Turn(role="assistant", tool_calls=(made,)), cost_usd=0.0)

    def close(self) -> None:
        """Holds nothing."""


def null_conversation() -> ScriptedConversation:
    """Submits at once: pass@1 is 0."""
    return ScriptedConversation(name="null", version="1", calls_of=lambda conversation: ())


def gold_conversation(gold_calls_of: CallsOf) -> ScriptedConversation:
    """Makes the gold patch's changes: pass@1 is 1."""
    return ScriptedConversation(name="gold", version="1", calls_of=gold_calls_of)
