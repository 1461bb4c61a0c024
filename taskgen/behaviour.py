"""Rewards of how an answer was given, beside whether it is right: effort within a budget, and plain communication.

    shaped = reward x max(floor, 1 - effort_weight x overrun - sum over styles of weight x departure)

for a right answer (``reward`` above 0), with the overrun of the budget and the departures from 0 to 1. Nothing is worth
more than the right answer itself, and a right answer is always worth more than a wrong one. A wrong answer, and a
rollout whose reward is not known, keep theirs: to be brief or polite is worth nothing by itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from taskgen.policies.policy import Form, Prompt
from taskgen.types import Turn

_FENCE = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_APOLOGY = re.compile(r"\b(?:sorry|apologi[sz]e|apolog(?:y|ies)|my (?:mistake|bad))\b", re.IGNORECASE)
_FLATTERY = re.compile(
    r"\b(?:great|good|excellent) (?:question|point|catch)\b|\byou(?:'|\u2019)re (?:absolutely )?right\b"
    r"|^[ \t]*(?:certainly|of course|absolutely|sure)\b[!,.]",
    re.IGNORECASE | re.MULTILINE,
)
#: Characters of chatter from which it counts in full.
_MUCH_CHATTER = 400
#: The share of comment lines that costs nothing, and the share from which it counts in full.
_COMMENTS_FREE, _COMMENTS_MUCH = 0.25, 0.75
#: How far an answer departs from a style, 0 (not at all) to 1.
Style = Callable[[str, Form], float]


def chatter(text: str, form: Form) -> float:
    """Words around the code of an answer. A continuation is all code."""
    if form is not Form.ANSWER or not _FENCE.search(text):
        return 0.0
    around = len(_FENCE.sub("", text).strip())
    return min(1.0, around / _MUCH_CHATTER)


def apology(text: str, form: Form) -> float:
    """It says sorry, in its words or in comments."""
    return float(_APOLOGY.search(_said(text, form)) is not None)


def flattery(text: str, form: Form) -> float:
    """It praises who asks, or opens with eagerness."""
    return float(_FLATTERY.search(_said(text, form)) is not None)


def comments(text: str, form: Form) -> float:
    """Lines of the code that are comments alone, beyond a quarter of them."""
    lines = [line.strip() for line in _code(text, form).splitlines() if line.strip()]
    share = sum(line.startswith("#") for line in lines) / max(1, len(lines))
    return min(1.0, max(0.0, share - _COMMENTS_FREE) / (_COMMENTS_MUCH - _COMMENTS_FREE))


def _code(text: str, form: Form) -> str:
    """The code of a text: all of a continuation, the blocks of an answer."""
    return text if form is not Form.ANSWER else "\n".join(_FENCE.findall(text))


def _said(text: str, form: Form) -> str:
    """What a text says to a reader: words around the code, and its comments. Strings of a program apologise to
    others."""
    comments = "\n".join(line for line in _code(text, form).splitlines() if line.strip().startswith("#"))
    return comments if form is not Form.ANSWER else f"{_FENCE.sub('', text)}\n{comments}"


# --- Effort -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """A level of effort: its name, and how many tokens are asked for."""

    name: str
    budget_tokens: int


def overrun(n_tokens: int, budget_tokens: int) -> float:
    """0 within the budget, 1 from twice the budget on, linear between."""
    return min(1.0, max(0.0, n_tokens / budget_tokens - 1.0))


def stated(effort: Effort, indent: str, form: Form) -> str:
    """How a budget is asked for: a comment line with the body's ``indent``, or the content of a system message."""
    if form is Form.CONTINUATION:
        return f"{indent}# Effort: {effort.name}, at most {effort.budget_tokens} tokens."
    return f"Effort: {effort.name}. Use at most {effort.budget_tokens} tokens."


def with_effort(prompt: Prompt, effort: Effort, form: Form) -> Prompt:
    """The prompt with the budget in it: right before the body, or in the system message. PATCH reads no prompt, and
    gets it back as it is."""
    said = stated(effort, prompt.indent, form)
    match form:
        case Form.CONTINUATION:
            return replace(prompt, text=f"{prompt.text}\n{said}")
        case Form.ANSWER:
            first, *rest = prompt.messages
            if first.role == "system":
                return replace(prompt, messages=(replace(first, text=f"{first.text.rstrip()}\n\n{said}"), *rest))
            return replace(prompt, messages=(Turn(role="system", text=said), *prompt.messages))
        case Form.PATCH:
            return prompt


# --- Configuration and the shaped reward ------------------------------------------------------------------

Weight = Annotated[float, Field(ge=0, le=1)]
Level = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StyleWeights(_Model):
    """What full departure from each rule of communication costs."""

    chatter: Weight = 0.0
    apology: Weight = 0.0
    flattery: Weight = 0.0
    comments: Weight = 0.0


STYLES: dict[str, Style] = {"chatter": chatter, "apology": apology, "flattery": flattery, "comments": comments}


class BehaviourConfig(_Model):
    """``behaviour:`` of a configuration.

    Attributes:
        efforts: levels of effort -> their budgets in tokens; each prompt states one of them.
        effort_weight: the share of its reward that an answer of twice its budget, or longer, loses.
        styles: the share that is lost for each rule of communication.
        floor: the share that a right answer always keeps.
    """

    efforts: dict[Level, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    effort_weight: Weight = 0.0
    styles: StyleWeights = StyleWeights()
    floor: Annotated[float, Field(gt=0, le=1)] = 0.2


def effort_for(config: BehaviourConfig, key: str) -> Effort | None:
    """The level of effort of the prompts called ``key`` (a seed and a task: the samples of a group share a prompt),
    each level equally often; None without levels."""
    if not config.efforts:
        return None
    names = sorted(config.efforts)
    name = names[int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % len(names)]
    return Effort(name=name, budget_tokens=config.efforts[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """``reward``: what is learnt from. ``lost``: the share that effort and each style cost, those that cost nothing
    left out; together they may be more than what ``floor`` lets go."""

    reward: float | None
    lost: dict[str, float]


def shape(
    reward: float | None,
    text: str,
    form: Form,
    config: BehaviourConfig,
    *,
    n_tokens: int = 0,
    effort: Effort | None = None,
) -> Shaped:
    """The reward of an answer, with its behaviour. Pure.

    ``text``: what the policy wrote; ``n_tokens``: how many tokens that is (0, not known: effort costs nothing);
    ``effort``: the level that its prompt stated.
    """
    if reward is None or reward <= 0:
        return Shaped(reward=reward, lost={})
    costs = {name: getattr(config.styles, name) * departure(text, form) for name, departure in STYLES.items()}
    if effort is not None:
        costs["effort"] = config.effort_weight * overrun(n_tokens, effort.budget_tokens)
    lost = {name: cost for name, cost in costs.items() if cost}
    return Shaped(reward=reward * max(config.floor, 1.0 - sum(lost.values())), lost=lost)
