"""The configurations of ``stage: pretrain`` and ``stage: sft`` (docs/pretrain.md), and which one a file is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from taskgen.configfile import line_of, load_mapping, read_bytes, validate
from taskgen.errors import ConfigError
from taskgen.training.config import (
    CheckpointSection,
    Count,
    File,
    OptimizerSection,
    PolicySection,
    Positive,
    Section,
    TrainConfig,
    setup_of,
)

Files = Annotated[list[File], Field(min_length=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class HeldOutSection(Section):
    """``evaluate:``: the loss on what is not read.

    Attributes:
        share: of the documents (sft: of the tasks, with all their rollouts) that are held out; at least one.
        rows: that the loss is taken of, at most.
        every: steps between two measurements; 0: before the first step and at the end.
    """

    share: Annotated[float, Field(ge=0, lt=1)] = 0.05
    rows: Positive = 16
    every: Count = 0


class ReadingConfig(Section):
    """What both stages have.

    Attributes:
        steps: updates.
        rows: in a step, on all ranks together.
        length: tokens of a row.
        warmup: steps in which the learning rates rise from 0; decay: last steps in which they fall to 0.
        tasks: task sets whose deleted code must not be read.
    """

    policy: PolicySection = PolicySection()
    steps: Positive = 100
    rows: Positive = 8
    length: Annotated[int, Field(ge=8)] = 1024
    warmup: Count = 0
    decay: Count = 0
    optimizer: OptimizerSection = OptimizerSection()
    evaluate: HeldOutSection = HeldOutSection()
    checkpoint: CheckpointSection = CheckpointSection()
    seed: Count = 0

    @model_validator(mode="after")
    def _fits(self) -> ReadingConfig:
        if self.warmup + self.decay > self.steps:
            raise ValueError(f"warmup {self.warmup} and decay {self.decay} are more than {self.steps} steps")
        return self

    def setup(self, cache: Path) -> dict[str, Any]:
        """As ``trainer.learner.Setup`` reads it."""
        return setup_of(self.policy, self.optimizer, {"max_norm": self.optimizer.max_norm}, cache)

    def lr_factor(self, step: int) -> float:
        """What the learning rates of a step (from 1) are multiplied by: a straight rise, 1, and a straight fall."""
        rising = step / self.warmup if self.warmup else 1.0
        falling = (self.steps - step + 1) / self.decay if self.decay else 1.0
        return min(rising, 1.0, falling)


class PretrainConfig(ReadingConfig):
    """``text``: folders and archives of source code."""

    stage: Literal["pretrain"]
    text: Files
    tasks: list[File]


class SftConfig(ReadingConfig):
    """``rollouts``: JSON Lines files; those with a reward above ``reward_above`` are learnt."""

    stage: Literal["sft"]
    rollouts: Files
    reward_above: Finite = 0.0
    tasks: Annotated[list[File], Field(default_factory=list)]


AnyConfig = TrainConfig | PretrainConfig | SftConfig
_STAGES: Mapping[str, type[AnyConfig]] = {"rl": TrainConfig, "pretrain": PretrainConfig, "sft": SftConfig}


def load_stage(path: Path) -> AnyConfig:
    """The configuration of whichever stage a file says (rl where it says none). Raises ConfigError, with the line."""
    document = load_mapping(path, read_bytes(path))
    # Chosen here and not by a union of pydantic's: its errors are then of the stage's own keys.
    stage = document.get("stage", "rl")
    model = _STAGES.get(stage) if isinstance(stage, str) else None
    if model is None:
        line = line_of(document, ("stage",))
        raise ConfigError(f"{path}:{line}: stage: {stage!r}", hint=f"it is one of {', '.join(_STAGES)}")
    return validate(path, document, model)
