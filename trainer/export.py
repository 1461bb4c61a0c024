"""Trained weights as a folder that any program which reads Hugging Face models loads, this trainer included."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer.collectives import naming
from trainer.moe import Decoder
from trainer.pretrained import WeightsError, load_theirs


def export(model: Decoder, source: str, cache: Path, folder: Path) -> None:
    """Write ``model``'s weights (safetensors, in their own dtype), with configuration and tokenizer of the ``source``
    that they began from, to ``folder``, which appears whole. All ranks call it together; the first one writes.

    Raises WeightsError if the source is no longer there, CollectiveFailed when another rank fails, OSError where the
    disk does.
    """
    first = not dist.is_initialized() or dist.get_rank() == 0
    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():  # a weight that two modules share is listed once
        with naming(f"all-gather of {name}"):
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        if first:
            state[name] = whole.detach().cpu()
    if first:
        _write(state, source, cache, folder)


def _write(state: dict[str, Tensor], source: str, cache: Path, folder: Path) -> None:
    theirs, tokenizer = load_theirs(source, cache)
    own = theirs.state_dict()
    for name, tensor in state.items():
        known = f"model.{name}" if f"model.{name}" in own else name
        if known not in own:
            raise WeightsError(f"{source} has no parameter {known!r}")
        own[known].copy_(tensor)
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    theirs.save_pretrained(part)
    tokenizer.save_pretrained(part)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
