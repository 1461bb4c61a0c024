"""Cases for sharded Muon: the same steps on one process and on shards, and their comparison bit by bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from ranks import Ranks
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from trainer.muon import Muon
from trainer.muon_options import Options, Scale
from trainer.muon_reference import MuonReference
from trainer.units import Split

AXES = ("a", "b", "c")


@dataclass(frozen=True)
class Weight:
    """A parameter of a test: ``mesh`` are its axes' sizes (none: a plain tensor), ``dims`` what each axis shards
    (None: it replicates), ``missing`` the ranks on which its gradient is missing. With ``axis``, it lies on that
    axis of the mesh alone: every line of ranks along it has a copy of its own."""

    shape: tuple[int, ...]
    mesh: tuple[int, ...] = ()
    dims: tuple[int | None, ...] = ()
    split: Split | None = None
    algorithm: str = "muon"
    missing: tuple[int, ...] = ()
    axis: int | None = None


@dataclass(frozen=True)
class Case:
    weights: tuple[Weight, ...]
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    steps: int = 3


def values(seed: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradient(case: Case, step: int, i: int) -> Tensor:
    """The whole gradient of weight ``i``, with zeros where a rank misses its shard."""
    weight = case.weights[i]
    whole = values(1000 * (step + 1) + i, weight.shape)
    if not weight.mesh:
        return torch.zeros_like(whole) if weight.missing else whole
    for box in boxes_of(weight, weight.missing):
        whole[box] = 0
    return whole


def boxes_of(weight: Weight, ranks: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """What of the weight lies on ``ranks``, by torch.chunk alone."""
    n = torch.Size(weight.mesh).numel()
    index = torch.arange(torch.Size(weight.shape).numel()).view(weight.shape)
    boxes = []
    for rank in ranks:
        if rank >= n:
            continue
        held, left = index, rank
        coordinate = []
        for size in reversed(weight.mesh):
            coordinate.insert(0, left % size)
            left //= size
        for size, at, dim in zip(weight.mesh, coordinate, weight.dims, strict=True):
            if dim is not None:
                pieces = held.chunk(size, dim)
                held = pieces[at] if at < len(pieces) else held.narrow(dim, 0, 0)
        if held.numel():
            lo, hi = int(held.min()), int(held.max())
            low = torch.unravel_index(torch.tensor(lo), weight.shape)
            high = torch.unravel_index(torch.tensor(hi), weight.shape)
            boxes.append(tuple(slice(int(a), int(b) + 1) for a, b in zip(low, high, strict=True)))
    return boxes


def groups(case: Case, tensors: list[Tensor]) -> list[dict[str, Any]]:
    named = [(f"w{i}", tensor) for i, tensor in enumerate(tensors)]
    return [
        {
            "algorithm": kind,
            "params": [pair for pair, w in zip(named, case.weights, strict=True) if w.algorithm == kind],
        }
        for kind in ("muon", "adamw")
        if any(w.algorithm == kind for w in case.weights)
    ]


def splits(case: Case) -> dict[str, Split]:
    return {f"w{i}": w.split for i, w in enumerate(case.weights) if w.split is not None}


def reference(case: Case) -> list[Tensor]:
    weights = [torch.nn.Parameter(values(i, w.shape)) for i, w in enumerate(case.weights)]
    same = {key: case.options[key] for key in ("schedule", "ns_dtype", "wire_dtype") if key in case.options}
    optimizer = MuonReference(groups(case, weights), splits=splits(case), **same, **case.settings)
    for step in range(case.steps):
        for i, weight in enumerate(weights):
            weight.grad = gradient(case, step, i)
        optimizer.step()
    return [weight.detach() for weight in weights]


def chosen(case: Case) -> dict[str, Any]:
    scale = case.settings.get("scale")
    return {**case.settings, "scale": Scale(scale)} if scale else case.settings


def lay(whole: Tensor, weight: Weight) -> Tensor:
    if not weight.mesh:
        return whole
    placements = [Replicate() if dim is None else Shard(dim) for dim in weight.dims]
    mesh = mesh_of(weight.mesh)
    return distribute_tensor(
        whole, mesh if weight.axis is None else mesh[AXES[weight.axis]], placements, src_data_rank=None
    )


@cache
def mesh_of(sizes: tuple[int, ...]) -> DeviceMesh:
    return DeviceMesh("cpu", torch.arange(torch.Size(sizes).numel()).view(sizes), mesh_dim_names=AXES[: len(sizes)])


def sharded(case: Case) -> list[Tensor]:
    """The same steps on this rank's shards; whole weights at the end."""
    weights = [torch.nn.Parameter(lay(values(i, w.shape), w)) for i, w in enumerate(case.weights)]
    optimizer = Muon(groups(case, weights), splits=splits(case), options=Options(**case.options), **chosen(case))
    for step in range(case.steps):
        for i, (weight, described) in enumerate(zip(weights, case.weights, strict=True)):
            there = dist.get_rank() not in described.missing
            whole = gradient(case, step, i)
            weight.grad = lay(whole, described) if there else None
        optimizer.step()
    return [(w.full_tensor() if isinstance(w, DTensor) else w).detach() for w in weights]


def assert_equal_bits(ranks: Ranks, case: Case) -> None:
    torch.set_num_threads(1)
    expected = reference(case)
    for rank, found in enumerate(ranks.run(sharded, case)):
        for weight, a, b in zip(case.weights, expected, found, strict=True):
            assert torch.equal(a, b), f"rank {rank}, {weight}: differs by {(a - b).abs().max()}"
