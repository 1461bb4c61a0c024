"""Checkpoints of a run: weights, optimizer state and progress, which another mesh, or one process, can go on from.

A checkpoint is a folder ``step-N`` that torch's distributed checkpoint writes, every rank its own shards, under another
name first, so that a folder of this name is whole. Torch unpickles the index in it: load only what you trust as code.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemReader

from trainer.collectives import naming
from trainer.muon import Muon

_NAME = re.compile(r"step-(\d+)")
_PROGRESS = "progress"


class CheckpointError(ValueError):
    """A checkpoint that is not there, not whole, or of another model."""


def save(folder: Path, step: int, model: nn.Module, optimizer: Muon, *, keep: int = 2, progress: str = "") -> Path:
    """Write ``folder``/step-``step``, and delete all but the ``keep`` newest. All ranks call it together.

    ``progress``: what else the run needs to go on; kept as it is, in the same folder.

    Raises CollectiveFailed when another rank fails, OSError where the disk does.
    """
    target, part = folder / f"step-{step}", folder / f".step-{step}.part"
    if _first():
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    _barrier("before a checkpoint")
    with _quietly(), naming("writing a checkpoint"):
        state_dict_saver.save(_state(model, optimizer), checkpoint_id=part)
    if _first():
        (part / _PROGRESS).write_text(progress, encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
        for old in sorted(_steps(folder))[:-keep]:
            shutil.rmtree(folder / f"step-{old}")
    _barrier("after a checkpoint")
    return target


def load(folder: Path, model: nn.Module, optimizer: Muon) -> int:
    """Fill weights, buffers and optimizer state from the newest checkpoint in ``folder``; returns its step. The mesh
    may differ from the one it was written on.

    Raises CheckpointError if there is none, or it is of other parameters.
    """
    steps = _steps(folder)
    if not steps:
        raise CheckpointError(f"{folder}: no checkpoint (step-N) there")
    source, state = folder / f"step-{max(steps)}", _state(model, optimizer)
    _must_match(source, state)
    with _quietly(), naming("reading a checkpoint"):
        state_dict_loader.load(state, checkpoint_id=source)
    return max(steps)


def progress_at(folder: Path, step: int) -> str:
    """What ``save`` was given to keep beside the tensors of ``step``. Raises CheckpointError if it is not there."""
    path = folder / f"step-{step}" / _PROGRESS
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def newest(folder: Path) -> int | None:
    """The step of the newest checkpoint in ``folder``."""
    return max(_steps(folder), default=None)


def _state(model: nn.Module, optimizer: Muon) -> dict[str, Tensor]:
    """Every tensor of a run by a name that does not depend on the mesh; the tensors are those in use."""
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return weights | {f"optimizer.{name}": tensor for name, tensor in optimizer.named_state().items()}


def _must_match(source: Path, state: Mapping[str, Tensor]) -> None:
    try:
        saved = FileSystemReader(source).read_metadata().state_dict_metadata
    except (OSError, EOFError, ValueError) as error:
        raise CheckpointError(f"{source}: not a whole checkpoint: {error}") from error
    faults = [f"{name}: not in the checkpoint" for name in state if name not in saved]
    faults += [f"{name}: not in this run" for name in saved if name not in state]
    for name, tensor in state.items():
        size = getattr(saved.get(name), "size", None)
        if size is not None and tuple(size) != tuple(tensor.shape):
            faults.append(f"{name}: has shape {tuple(size)} in the checkpoint, {tuple(tensor.shape)} in this run")
    if faults:
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise CheckpointError(f"{source} is of another model: {'; '.join(faults[:5])}{more}")


def _steps(folder: Path) -> list[int]:
    return [int(match[1]) for path in _entries(folder) if (match := _NAME.fullmatch(path.name))]


def _entries(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.is_dir() else iter(())


def _first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _barrier(name: str) -> None:
    if dist.is_initialized():
        with naming(f"barrier {name}"):
            dist.barrier()


@contextmanager
def _quietly() -> Iterator[None]:
    """One process is meant; torch warns of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*in a single process")
        yield
