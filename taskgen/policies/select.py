"""The policy that ``--policy`` names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from taskgen.configfile import load_mapping, read_bytes, validate
from taskgen.errors import ConfigError
from taskgen.policies.config import PolicyConfig
from taskgen.policies.controls import GoldPolicy, NullPolicy, ScriptedPolicy, Strength
from taskgen.policies.endpoint import EndpointConfig, EndpointPolicy
from taskgen.policies.local import DEFAULT_MODEL, LocalConfig, LocalPolicy
from taskgen.policies.policy import Form, Policy, Prompt, Sampling

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


_KINDS: dict[str, type[ScriptedConfig | LocalConfig | EndpointConfig]] = {
    "scripted": ScriptedConfig,
    "local": LocalConfig,
    "openai": EndpointConfig,
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A policy, and how it is sampled."""

    policy: Policy
    sampling: Sampling


def choose(text: str, cache: Path, body_of: BodyOf, hardness_of: HardnessOf) -> Chosen:
    """The policy that ``text`` names (see ``USAGE``), ready to be asked.

    Args:
        body_of, hardness_of: gold bodies, and how hard tasks are, for the scripted policy.

    Raises:
        ConfigError: there is no such policy, or its file is wrong.
        PrerequisiteError: a library or weights are missing.
    """
    kind, _, rest = text.partition(":")
    if text in ("null", "gold"):
        return Chosen(NullPolicy() if text == "null" else GoldPolicy(), Sampling())
    if Path(text).suffix in (".yaml", ".yml"):
        return _made(_read(Path(text)), cache, body_of, hardness_of)
    if kind == "local":
        return _made(LocalConfig(model=rest or DEFAULT_MODEL), cache, body_of, hardness_of)
    model, _, url = rest.partition("@")
    if kind == "openai" and model and url.startswith(("http://", "https://")):
        return _made(EndpointConfig(endpoint=url, model=model), cache, body_of, hardness_of)
    raise ConfigError(f"--policy {text}: there is no such policy", hint=f"give {USAGE}")


def _read(path: Path) -> PolicyConfig:
    document = load_mapping(path, read_bytes(path))
    kind = document.get("kind")
    if kind not in _KINDS:
        raise ConfigError(f"{path}: kind: must be one of {', '.join(_KINDS)}, found {kind!r}")
    return validate(path, document, _KINDS[str(kind)])


def _made(config: PolicyConfig, cache: Path, body_of: BodyOf, hardness_of: HardnessOf) -> Chosen:
    policy: Policy
    match config:
        case LocalConfig():
            policy = LocalPolicy(config, cache)
        case EndpointConfig():
            policy = EndpointPolicy(config)
        case ScriptedConfig():
            policy = _scripted(config, body_of, hardness_of)
        case _:
            raise AssertionError(f"a kind without a class: {config!r}")
    return Chosen(policy, config.sampling.record())


def _scripted(config: ScriptedConfig, body_of: BodyOf, hardness_of: HardnessOf) -> ScriptedPolicy:
    strength = None
    if config.strength is not None:
        strength = Strength(skill=config.strength, hardness_of=hardness_of, spread=config.spread)
    return ScriptedPolicy(
        solves=config.solves, rates=config.rates, body_of=body_of, strength=strength,
        form=Form.PATCH if config.whole else Form.CONTINUATION,
    )  # fmt: skip
