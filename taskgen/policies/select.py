"""The policy that ``--policy`` names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from taskgen.configfile import load_mapping, read_bytes, validate
from taskgen.errors import ConfigError
from taskgen.policies.config import PolicyConfig
from taskgen.policies.controls import (
    CallsOf,
    GoldPolicy,
    NullPolicy,
    ScriptedConversation,
    ScriptedPolicy,
    Strength,
    gold_conversation,
    null_conversation,
)
from taskgen.policies.conversation import AgentLimits, Converses
from taskgen.policies.endpoint import EndpointConfig, EndpointPolicy
from taskgen.policies.local import DEFAULT_MODEL, LocalConfig, LocalPolicy
from taskgen.policies.policy import Form, Policy, Prompt, Sampling
from taskgen.types import ToolCall

USAGE = "null, gold, local[:PATH], openai:MODEL@URL or a YAML file"
BodyOf = Callable[[Prompt], str]
HardnessOf = Callable[[Prompt], float]


class ScriptedConfig(PolicyConfig):
    """A policy of a strength that is set, for trying things out. ``rates``: instance_id -> chance of a pass.

    ``strength``: in place of ``solves``, with which a task's chance depends on its hardness (``taskgen.hardness``);
    ``spread``: how much of that is each task's own. ``whole``: it gives whole patches, and attempts all tasks.
    """

    kind: Literal["scripted"]
    solves: float = Field(default=0.5, ge=0, le=1)
    rates: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    strength: Annotated[float, Field(allow_inf_nan=False)] | None = None
    spread: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    whole: bool = False


class CallConfig(BaseModel):
    """A tool call of a script."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1)
    arguments: dict[str, Any] = Field(default_factory=dict)


class CallsConfig(PolicyConfig):
    """A policy that makes the same tool calls at each task, one a turn, and then submits. It only converses."""

    kind: Literal["calls"]
    calls: list[CallConfig]


_KINDS: dict[str, type[ScriptedConfig | CallsConfig | LocalConfig | EndpointConfig]] = {
    "scripted": ScriptedConfig,
    "calls": CallsConfig,
    "local": LocalConfig,
    "openai": EndpointConfig,
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A policy for attempts of one turn, and how it is sampled."""

    policy: Policy
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a policy can do, and how it is sampled.

    Attributes:
        policy: for attempts of one turn; None: it only converses.
        converses: for attempts by turns; None: it has no tool calls.
        sampling, turn_sampling: of attempts of one turn, and by turns.
    """

    policy: Policy | None
    converses: Converses | None
    sampling: Sampling
    turn_sampling: Sampling
    limits: AgentLimits

    def close(self) -> None:
        """Free what the policy holds; closing twice does no harm."""
        for one in (self.policy, self.converses):
            if one is not None:
                one.close()


def choose(text: str, cache: Path, body_of: BodyOf, hardness_of: HardnessOf) -> Chosen:
    """The policy that ``text`` names, for attempts of one turn. Raises as ``choose_any``, and ConfigError for one that
    only converses."""
    found = choose_any(text, cache, body_of, hardness_of, lambda conversation: ())
    if found.policy is None:
        found.close()
        raise ConfigError(f"{text}: the policy only makes tool calls; one that writes answers is wanted here")
    return Chosen(found.policy, found.sampling)


def choose_any(text: str, cache: Path, body_of: BodyOf, hardness_of: HardnessOf, gold_calls_of: CallsOf) -> Choice:
    """The policy that ``text`` names (see ``USAGE``), ready to be asked.

    Args:
        body_of, hardness_of: gold bodies, and how hard tasks are, for the scripted policy.
        gold_calls_of: calls that make the gold patch's changes, for controls that converse.

    Raises:
        ConfigError: there is no such policy, or its file is wrong.
        PrerequisiteError: a library or weights are missing.
    """
    kind, _, rest = text.partition(":")
    if text == "null":
        return _chosen(NullPolicy(), null_conversation(), PolicyConfig())
    if text == "gold":
        return _chosen(GoldPolicy(), gold_conversation(gold_calls_of), PolicyConfig())
    if Path(text).suffix in (".yaml", ".yml"):
        return _made(_read(Path(text)), cache, body_of, hardness_of, gold_calls_of)
    if kind == "local":
        return _made(LocalConfig(model=rest or DEFAULT_MODEL), cache, body_of, hardness_of, gold_calls_of)
    model, _, url = rest.partition("@")
    if kind == "openai" and model and url.startswith(("http://", "https://")):
        return _made(EndpointConfig(endpoint=url, model=model), cache, body_of, hardness_of, gold_calls_of)
    raise ConfigError(f"--policy {text}: there is no such policy", hint=f"give {USAGE}")


def _read(path: Path) -> PolicyConfig:
    document = load_mapping(path, read_bytes(path))
    kind = document.get("kind")
    if kind not in _KINDS:
        raise ConfigError(f"{path}: kind: must be one of {', '.join(_KINDS)}, found {kind!r}")
    return validate(path, document, _KINDS[str(kind)])


def _made(
    config: PolicyConfig, cache: Path, body_of: BodyOf, hardness_of: HardnessOf, gold_calls_of: CallsOf
) -> Choice:
    match config:
        case LocalConfig():
            local = LocalPolicy(config, cache)
            return _chosen(local, local if config.style == "chat" else None, config)
        case EndpointConfig():
            endpoint = EndpointPolicy(config)
            return _chosen(endpoint, endpoint, config)
        case ScriptedConfig():
            scripted = _scripted(config, body_of, hardness_of)
            return _chosen(scripted, scripted.conversation(gold_calls_of), config)
        case CallsConfig():
            return _chosen(None, _script(config), config)
        case _:
            raise AssertionError(f"a kind without a class: {config!r}")


def _scripted(config: ScriptedConfig, body_of: BodyOf, hardness_of: HardnessOf) -> ScriptedPolicy:
    strength = None
    if config.strength is not None:
        strength = Strength(skill=config.strength, hardness_of=hardness_of, spread=config.spread)
    return ScriptedPolicy(
        solves=config.solves, rates=config.rates, body_of=body_of, strength=strength,
        form=Form.PATCH if config.whole else Form.CONTINUATION,
    )  # fmt: skip


def _chosen(policy: Policy | None, converses: Converses | None, config: PolicyConfig) -> Choice:
    return Choice(
        policy=policy, converses=converses, sampling=config.sampling.record(),
        turn_sampling=config.sampling.for_turns(), limits=config.agent.record(),
    )  # fmt: skip


def _script(config: CallsConfig) -> ScriptedConversation:
    calls = tuple(ToolCall(name=call.name, arguments=call.arguments) for call in config.calls)
    words = json.dumps([call.model_dump() for call in config.calls], sort_keys=True)
    version = hashlib.sha256(words.encode()).hexdigest()[:10]
    return ScriptedConversation(name="calls", version=version, calls_of=lambda conversation: calls)
