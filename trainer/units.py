"""Where the matrices of parameters lie: boxes of shards, and the units that an optimizer treats as wholes.

A parameter is cut into *units*: an attention head, an expert, half of a fused projection, or the whole matrix. The
shard of a tensor that a rank holds is a *box*, and so is a unit, so that what a rank has of a unit is a box too.
Heads that do not divide the shards, uneven and empty shards, sharding of either or of several dims are one case.

Imports torch alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement


def to_local(tensor: Tensor) -> Tensor:
    """This rank's shard of a DTensor; a plain tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@dataclass(frozen=True, slots=True)
class Box:
    """A block of a tensor: lo[d] <= index < hi[d] for every dim d."""

    lo: tuple[int, ...]
    hi: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in zip(self.lo, self.hi, strict=True))

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def meet(self, other: Box) -> Box:
        """What both cover; empty if they do not overlap."""
        lo = tuple(map(max, self.lo, other.lo))
        return Box(lo, tuple(map(max, lo, map(min, self.hi, other.hi))))

    def within(self, outer: Box) -> tuple[slice, ...]:
        """The index of this box into a tensor that holds ``outer``."""
        return tuple(slice(a - o, b - o) for a, b, o in zip(self.lo, self.hi, outer.lo, strict=True))


@dataclass(frozen=True, slots=True)
class Split:
    """A matrix is several units: ``dim`` (-2 rows, -1 columns) is cut into pieces of ``sizes``."""

    dim: int
    sizes: tuple[int, ...]

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Raises ValueError if this cannot cut a parameter of ``shape``."""
        if self.dim not in (-1, -2) or min(self.sizes, default=0) < 1:
            raise ValueError(f"{name}: a split has dim -1 or -2 and positive sizes, not {self}")
        if sum(self.sizes) != shape[self.dim]:
            raise ValueError(
                f"{name}: its units' sizes along dim {self.dim} add up to {sum(self.sizes)}, "
                f"but the parameter of shape {tuple(shape)} has {shape[self.dim]} there"
            )


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a tensor lies: global ``ranks``, and of each its box and the number of the replica that it is part of."""

    ranks: tuple[int, ...]
    boxes: tuple[Box, ...]
    replicas: tuple[int, ...]
    placements: str

    @property
    def n_replicas(self) -> int:
        return max(self.replicas) + 1


def layout_of(name: str, tensor: Tensor, rank: int) -> Layout:
    """The layout of a DTensor, or of a plain tensor, which lies whole on ``rank``, its own.

    Raises ValueError for placements other than Shard and Replicate.
    """
    if not isinstance(tensor, DTensor):
        return Layout((rank,), (Box((0,) * tensor.ndim, tuple(tensor.shape)),), (0,), "whole")
    layout = _mesh_layout(name, tuple(tensor.shape), tensor.device_mesh, tensor.placements)
    local = tuple(tensor.to_local().shape)
    expected = layout.boxes[layout.ranks.index(rank)].shape
    if local != expected and math.prod(local) + math.prod(expected) > 0:
        raise ValueError(f"{name}: its shard on rank {rank} has shape {local}; {layout.placements} says {expected}")
    return layout


@cache
def _mesh_layout(name: str, shape: tuple[int, ...], mesh: DeviceMesh, placements: tuple[Placement, ...]) -> Layout:
    if any(type(p) not in (Shard, Replicate) for p in placements):
        raise ValueError(f"{name}: only Shard and Replicate placements are supported, not {placements}")
    found: list[tuple[int, Box, int]] = []
    for coordinate in itertools.product(*map(range, mesh.mesh.shape)):
        lo, hi, replica = [0] * len(shape), list(shape), 0
        for axis, placement in enumerate(placements):
            n, i = mesh.size(axis), coordinate[axis]
            if isinstance(placement, Shard):
                dim = placement.dim % len(shape)
                step = -(-(hi[dim] - lo[dim]) // n)  # as torch.chunk: equal pieces, the last ones smaller or empty
                lo[dim], hi[dim] = min(lo[dim] + i * step, hi[dim]), min(lo[dim] + (i + 1) * step, hi[dim])
            else:
                replica = replica * n + i
        found.append((int(mesh.mesh[coordinate]), Box(tuple(lo), tuple(hi)), replica))
    ranks, boxes, replicas = zip(*sorted(found, key=lambda entry: entry[0]), strict=True)
    return Layout(ranks, boxes, replicas, f"{tuple(mesh.mesh.shape)} {placements}")


@dataclass(frozen=True, slots=True)
class Unit:
    """One matrix: the block ``box`` of a parameter, with extent 1 along all dims but the last two; ``group`` is the
    number of the optimizer's parameter group."""

    parameter: str
    group: int
    box: Box
    layout: Layout
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int]:
        rows, cols = self.box.shape[-2:]
        return rows, cols

    def holders(self) -> list[int]:
        """Indices of the ranks on which it lies whole."""
        return [i for i, box in enumerate(self.layout.boxes) if box.meet(self.box) == self.box]


def units_of(name: str, group: int, tensor: Tensor, layout: Layout, split: Split | None) -> list[Unit]:
    """The units of a parameter of at least two dims: every leading index has its own, cut further by ``split``."""
    *lead, rows, cols = tensor.shape
    cuts = [((0, 0), (rows, cols))]
    if split is not None:
        split.check(name, tensor.shape)
        ends = list(itertools.accumulate(split.sizes, initial=0))
        pairs = list(itertools.pairwise(ends))
        by_rows = split.dim == -2
        cuts = [((a, 0), (b, cols)) if by_rows else ((0, a), (rows, b)) for a, b in pairs]
    return [
        Unit(name, group, Box((*index, *lo), (*(i + 1 for i in index), *hi)), layout, tensor.dtype)
        for index in itertools.product(*map(range, lead))
        for lo, hi in cuts
    ]


@dataclass(frozen=True, slots=True)
class Part:
    """What a rank has of a unit: its index into the rank's local tensor, and into the unit's matrix."""

    local: tuple[int | slice, ...]
    inner: tuple[slice, slice]

    @property
    def shape(self) -> tuple[int, int]:
        rows, cols = self.inner
        return rows.stop - rows.start, cols.stop - cols.start


def part_of(unit: Unit, index: int) -> Part | None:
    """The part of ``unit`` on the ``index``-th of its ranks, None if it has nothing of it."""
    held = unit.layout.boxes[index]
    box = held.meet(unit.box)
    if box.numel == 0:
        return None
    where, inner = box.within(held), box.within(unit.box)
    return Part((*(s.start for s in where[:-2]), *where[-2:]), (inner[-2], inner[-1]))
