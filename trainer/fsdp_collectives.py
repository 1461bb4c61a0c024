"""FSDP's collectives, with a name in their errors. Imports torch alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

# FSDPModule.set_custom_all_gather is public, the classes of what it takes are not.
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from trainer.collectives import naming


class NamedAllGather(AllGather):
    """An all-gather that raises CollectiveFailed with ``name``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        with naming(self.name):
            work: dist.Work | None = dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
        return work


class NamedReduceScatter(ReduceScatter):
    """A reduce-scatter that raises CollectiveFailed with ``name``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        with naming(self.name):
            work: dist.Work | None = dist.reduce_scatter_single(
                output_tensor, input_tensor, op=op, group=group, async_op=async_op
            )
        return work
