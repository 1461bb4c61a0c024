"""A policy under training: its weights, a frozen reference, its optimizer, on one process or on the ranks of a mesh.

Weights and optimizer state are float32 shards; passes compute in the dtype that is asked for, on weights that are
gathered and cast for them (FSDP2's mixed precision), gradients are reduced in float32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import PreTrainedTokenizerBase

from trainer import checkpoint
from trainer.grpo import Settings
from trainer.meshes import MeshError, Meshes, MeshSizes, meshes_of
from trainer.moe import Decoder
from trainer.muon import Muon
from trainer.muon_options import Options
from trainer.parallel import parallelize
from trainer.partition import Heads, partition
from trainer.pretrained import load_pretrained

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a learner is made from.

    Attributes:
        model: smollm2, a folder with weights, or a .gguf file.
        dtype: of passes, ``bfloat16`` or ``float32``.
        meshes: sizes beside the world's, as in ``trainer.meshes.MeshSizes``.
        muon, adamw: settings of the optimizer's two parameter groups; ``lr`` at least.
        frozen: regular expressions; parameters whose names one of them finds are not trained.
        settings: of a step.
        recompute: activations are computed again in the backward pass.
    """

    model: str
    cache: Path
    dtype: str = "bfloat16"
    meshes: Mapping[str, int] = field(default_factory=dict)
    muon: Mapping[str, Any] = field(default_factory=dict)
    adamw: Mapping[str, Any] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    settings: Settings = field(default_factory=Settings)
    recompute: bool = False


@dataclass(slots=True)
class Learner:
    """``step``: how many updates were made. ``reference``: None if no term of the loss needs one."""

    model: Decoder
    reference: Decoder | None
    tokenizer: PreTrainedTokenizerBase
    optimizer: Muon
    meshes: Meshes
    settings: Settings
    step: int = 0

    def mine(self, items: Sequence[Any]) -> list[Any]:
        """This rank's share of what all ranks have."""
        return list(items[self.meshes.dp_rank :: self.meshes.sizes.dp])

    def save(self, folder: Path, *, keep: int, progress: str) -> Path:
        """Write a checkpoint; all ranks together. Raises as ``checkpoint.save``."""
        return checkpoint.save(folder, self.step, self.model, self.optimizer, keep=keep, progress=progress)

    def load(self, folder: Path) -> str:
        """Go on from the newest checkpoint, whatever mesh it was written on; returns what was kept beside it.

        Raises CheckpointError.
        """
        self.step = checkpoint.load(folder, self.model, self.optimizer)
        return checkpoint.progress_at(folder, self.step)


def learner_of(setup: Setup, device: str = "cpu") -> Learner:
    """Load the weights and lay them out on the ranks of the default process group, which must be there.

    Raises:
        WeightsError: there are no such weights.
        MeshError: the sizes do not fit the world, or are of a kind that cannot sample: cp or ep above 1.
        ValueError: a pattern of ``frozen`` finds nothing.
    """
    sizes = MeshSizes(world=dist.get_world_size(), **setup.meshes)
    if sizes.cp > 1 or sizes.ep > 1:
        # Ranks sample different numbers of tokens, and both kinds exchange something at each of them.
        raise MeshError(f"cp = {sizes.cp}, ep = {sizes.ep}: a policy that samples its own rollouts needs 1 and 1")
    meshes = meshes_of(sizes, device)
    loaded = load_pretrained(setup.model, setup.cache)
    model = loaded.model.to(device)
    _freeze(model, setup.frozen)
    dtype = DTYPES[setup.dtype]
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    parallelize(model, meshes, precision=precision, recompute=setup.recompute)
    found = partition(model, Heads.of(model.config))
    groups = found.groups(model, muon=setup.muon, adamw=setup.adamw)
    ns_dtype = torch.bfloat16 if dtype is torch.bfloat16 else torch.float32
    optimizer = Muon(groups, splits=found.splits, options=Options(ns_dtype=ns_dtype))
    reference = _reference(setup, meshes, device) if _needs_reference(setup.settings) else None
    return Learner(model, reference, loaded.tokenizer, optimizer, meshes, setup.settings)


def _needs_reference(settings: Settings) -> bool:
    return any((settings.kl, settings.feedback, settings.anchor))


def _reference(setup: Setup, meshes: Meshes, device: str) -> Decoder:
    """The weights that training begins with, also when it is gone on with: nothing of it needs to be kept."""
    model = load_pretrained(setup.model, setup.cache, DTYPES[setup.dtype]).model.to(device)
    model.requires_grad_(False)
    parallelize(model, meshes)
    return model


def _freeze(model: Decoder, patterns: Sequence[str]) -> None:
    for pattern in patterns:
        found = [parameter for name, parameter in model.named_parameters() if re.search(pattern, name)]
        if not found:
            raise ValueError(f"frozen: {pattern!r} is in no parameter's name")
        for parameter in found:
            parameter.requires_grad_(False)
