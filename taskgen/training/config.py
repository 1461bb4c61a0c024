"""The configuration of ``taskgen train``: a YAML file, every key with a default but ``tasks``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from taskgen.behaviour import BehaviourConfig
from taskgen.configfile import load_mapping, read_bytes, validate
from taskgen.policies.config import SamplingConfig
from taskgen.policies.local import DEFAULT_MODEL

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
File = Annotated[Path, Field(strict=False)]  # YAML has no paths


class Section(BaseModel):
    """Keys of which none may be misspelt."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PolicySection(Section):
    """``policy:``: what is trained.

    Attributes:
        model: ``smollm2``, a folder with weights, or a .gguf file.
        style: ``text``: it continues the file; ``chat``: it answers a message.
        dtype: of passes; weights and optimizer state are float32.
        threads: of each rank.
        ranks: processes; more than one are started by torchrun.
        torchrun: further options for it, such as ``--nnodes=2``.
        dp_replicate: copies of the weights among the ranks (HSDP); each copy is sharded over the others.
        batch: samples that are generated together.
        recompute: activations are computed again in the backward pass: less memory.
        timeout_s: for one answer of the trainer.
    """

    model: str = DEFAULT_MODEL
    style: Literal["text", "chat"] = "text"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    device: Literal["cpu", "cuda"] = "cpu"
    threads: Positive = 1
    ranks: Positive = 1
    torchrun: list[str] = []
    dp_replicate: Positive = 1
    batch: Positive = 64
    recompute: bool = False
    timeout_s: Rate = 3600.0

    @model_validator(mode="after")
    def _divides(self) -> PolicySection:
        if self.ranks % self.dp_replicate:
            raise ValueError(f"dp_replicate {self.dp_replicate} does not divide {self.ranks} ranks")
        return self


class MuonSection(Section):
    lr: Rate = 1e-3
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95
    weight_decay: Weight = 0.0
    scale: Literal["moonlight", "torch", "mup"] = "moonlight"


class AdamSection(Section):
    lr: Rate = 2e-5
    weight_decay: Weight = 0.0


class OptimizerSection(Section):
    """``optimizer:``: Muon for matrices, AdamW for the rest. ``frozen``: regular expressions; parameters whose names
    one of them finds are not trained."""

    muon: MuonSection = MuonSection()
    adamw: AdamSection = AdamSection()
    frozen: list[str] = []
    max_norm: Rate = 1.0


class ObjectiveSection(Section):
    """``objective:``, as in trainer/objective.py and trainer/advantage.py. ``kl``: weight of the divergence from the
    policy at the beginning; ``cap``: bound of the importance weights of rollouts that an older policy made."""

    ratio: Literal["clipped", "gspo", "cispo"] = "clipped"
    low: Share = 0.2
    high: Rate = 0.28
    normalisation: Literal["token", "sequence", "constant"] = "token"
    scaling: Literal["none", "std"] = "none"
    passes: Positive = 1
    kl: Weight = 0.0
    cap: Rate = 2.0


class FeedbackSection(Section):
    """``feedback:``, as in docs/feedback.md.

    Attributes:
        weight: of what hints teach; 0: no hints are taught (they are still counted).
        anchor: of the divergence from the policy at the beginning, wherever no hint is for.
        rules: a file of hint rules; None: those that come with taskgen.
        max_turns: hinted turns in a step.
        divergence: from the teacher: ``reverse``, ``forward`` or ``jsd``.
        trust: how far the teacher follows the policy; 0: it is the one at the beginning.
    """

    weight: Weight = 0.0
    anchor: Weight = 0.0
    rules: File | None = None
    max_turns: Positive = 8
    divergence: Literal["reverse", "forward", "jsd"] = "reverse"
    top: Count = 64
    trust: Annotated[float, Field(ge=0, le=0.05)] = 0.0


class OrderSection(Section):
    """``curriculum.order:``: tasks that are built while training goes on, when few are left to learn from.

    Attributes:
        repos: a list of repositories; None: the one that comes with taskgen.
        recipes: what is ordered, one after the other: from small deletions to large ones.
        when_below: so few new and normal tasks are few.
        max_tasks: of one repository.
    """

    repos: File | None = None
    recipes: Annotated[list[str], Field(min_length=1)]
    when_below: Positive = 8
    max_tasks: Positive = 8


class CurriculumSection(Section):
    """``curriculum:``: which tasks a policy gets (docs/train.md).

    Attributes:
        hard, easy: below and above these pass rates a task is of little use.
        memory: how much of what was seen of a task is kept each time that it is seen again.
        floor: the least weight of a task, as a share of that of one at a pass rate of a half.
    """

    hard: Share = 0.25
    easy: Share = 0.75
    memory: Share = 0.7
    floor: Share = 0.05
    order: OrderSection | None = None


class EvaluateSection(Section):
    """``evaluate:``: attempts at held-out tasks, before the first step, at the end and each ``every`` steps."""

    tasks: File | None = None
    samples: Positive = 4
    every: Count = 0


class CheckpointSection(Section):
    every: Positive = 5
    keep: Positive = 2


def setup_of(
    policy: PolicySection, optimizer: OptimizerSection, settings: Mapping[str, Any], cache: Path
) -> dict[str, Any]:
    """As ``trainer.learner.Setup`` reads it."""
    return {
        "model": policy.model, "cache": str(cache), "dtype": policy.dtype,
        "meshes": {"dp_replicate": policy.dp_replicate}, "recompute": policy.recompute,
        "muon": optimizer.muon.model_dump(), "adamw": optimizer.adamw.model_dump(),
        "frozen": optimizer.frozen, "settings": dict(settings),
    }  # fmt: skip


class TrainConfig(Section):
    """``stage: rl``.

    Attributes:
        tasks: a task set; those that can be attempted in one turn are used.
        steps: updates of the policy.
        groups: with signal, in a step; groups whose rewards are all alike are replaced.
        group_size: rollouts of one task.
        staleness: how many updates a rollout's policy may be behind the one that learns from it: 0: sampling waits for
            grading; 1: the next groups are sampled while the last ones are graded.
    """

    stage: Literal["rl"] = "rl"
    tasks: File
    policy: PolicySection = PolicySection()
    sampling: SamplingConfig = SamplingConfig()
    steps: Positive = 30
    groups: Positive = 4
    group_size: Annotated[int, Field(ge=2)] = 8
    staleness: Annotated[int, Field(ge=0, le=8)] = 1
    objective: ObjectiveSection = ObjectiveSection()
    feedback: FeedbackSection = FeedbackSection()
    behaviour: BehaviourConfig = BehaviourConfig()
    curriculum: CurriculumSection = CurriculumSection()
    optimizer: OptimizerSection = OptimizerSection()
    evaluate: EvaluateSection = EvaluateSection()
    checkpoint: CheckpointSection = CheckpointSection()
    seed: Count = 0

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        if self.curriculum.hard >= self.curriculum.easy:
            raise ValueError(f"curriculum: hard {self.curriculum.hard} must be below easy {self.curriculum.easy}")
        if self.sampling.temperature <= 0:
            raise ValueError("sampling: temperature must be above 0: rollouts of a group would all be alike")
        return self

    def settings(self) -> dict[str, Any]:
        """Of a step, as ``trainer.grpo.Settings`` reads them."""
        objective, feedback = self.objective, self.feedback
        policy = objective.model_dump(include={"ratio", "low", "high", "normalisation"})
        return {
            "policy": policy | {"max_tokens": self.sampling.max_tokens},
            "scaling": objective.scaling, "passes": objective.passes, "kl": objective.kl, "cap": objective.cap,
            "temperature": self.sampling.temperature, "max_norm": self.optimizer.max_norm,
            "feedback": feedback.weight, "anchor": feedback.anchor,
            "feedback_options": {
                "kind": feedback.divergence, "top": feedback.top, "trust": feedback.trust, "cap": objective.cap,
            },
        }  # fmt: skip

    def setup(self, cache: Path) -> dict[str, Any]:
        """As ``trainer.learner.Setup`` reads it."""
        return setup_of(self.policy, self.optimizer, self.settings(), cache)


def load_config(path: Path) -> TrainConfig:
    """Paths in it are relative to where the command is run. Raises ConfigError, with the line."""
    return validate(path, load_mapping(path, read_bytes(path)), TrainConfig)
