"""Other ways to run Muon on row-sharded matrices, for benchmarks/muon_step.py to compare with.

``GatherEverything``: each rank all-gathers each matrix and runs Newton-Schulz on all of them. ``ListAllToAll``: the
published algorithm of microsoft/dion, written anew: matrices of one shape in groups of as many as there are ranks, a
list all-to-all of equal (padded) pieces there and back, one batched Newton-Schulz. Both cast to bfloat16 on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

Kernel = Callable[[Tensor], Tensor]
MOMENTUM, LR = 0.95, 0.02


class RowSharded:
    """Momentum and update of local row shards [rows / S, columns]; ``orthogonalised`` is what members differ in."""

    def __init__(self, shards: Sequence[Tensor], kernel: Kernel) -> None:
        self.shards, self.kernel = list(shards), kernel
        self.momenta = [torch.zeros_like(shard) for shard in shards]
        self.sent_bytes = 0

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        torch._foreach_mul_(self.momenta, MOMENTUM)
        torch._foreach_add_(self.momenta, list(gradients))
        inputs = torch._foreach_mul(self.momenta, MOMENTUM)
        torch._foreach_add_(inputs, list(gradients))
        self.sent_bytes = 0
        updates = self.orthogonalised([tensor.to(torch.bfloat16) for tensor in inputs])
        torch._foreach_add_(self.shards, [u.to(s.dtype) for u, s in zip(updates, self.shards, strict=True)], alpha=-LR)

    def orthogonalised(self, inputs: list[Tensor]) -> list[Tensor]:
        raise NotImplementedError


class GatherEverything(RowSharded):
    """One all-gather a matrix; nothing comes back, since each rank cuts its rows out of the result."""

    def orthogonalised(self, inputs: list[Tensor]) -> list[Tensor]:
        size, rank = dist.get_world_size(), dist.get_rank()
        updates = []
        for shard in inputs:
            whole = shard.new_empty((size * shard.shape[0], shard.shape[1]))
            dist.all_gather_single(whole, shard)
            self.sent_bytes += (size - 1) * shard.numel() * shard.element_size()
            updates.append(self.kernel(whole.unsqueeze(0))[0].chunk(size)[rank])
        return updates


class ListAllToAll(RowSharded):
    """Matrix i of a group belongs to rank i; short groups are filled up with zeros."""

    def orthogonalised(self, inputs: list[Tensor]) -> list[Tensor]:
        size = dist.get_world_size()
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for i, shard in enumerate(inputs):
            by_shape.setdefault(tuple(shard.shape), []).append(i)
        updates: dict[int, Tensor] = {}
        for members in by_shape.values():
            per_rank = -(-len(members) // size)
            filler = torch.zeros_like(inputs[members[0]])
            padded = [inputs[i] for i in members] + [filler] * (per_rank * size - len(members))
            # Piece r of the exchange: this rank's rows of all the matrices that belong to rank r.
            pieces = [torch.stack(padded[r * per_rank : (r + 1) * per_rank]) for r in range(size)]
            whole = torch.cat(self._exchanged(pieces), dim=1)
            back = self._exchanged([piece.contiguous() for piece in self.kernel(whole).chunk(size, dim=1)])
            updates.update(zip(members, torch.cat(back), strict=False))
        return [updates[i] for i in range(len(inputs))]

    def _exchanged(self, pieces: list[Tensor]) -> list[Tensor]:
        received = [torch.empty_like(piece) for piece in pieces]
        dist.all_to_all(received, pieces)
        self.sent_bytes += sum(piece.numel() * piece.element_size() for piece in pieces[1:])
        return received
