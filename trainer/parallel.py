"""A decoder on two meshes: experts on the wide one, all else on the narrow one, gradients summed over all ranks.

The gradient that a step uses is that of the sum of all ranks' losses: let each rank's loss be the sum over its own
tokens, divided by the number of tokens of all ranks (``n_tokens``). Then one rule, a sum, is right for both meshes: an
expert's gradient holds the tokens of its whole exchange group already, and is summed over the ranks that hold the same
expert; other gradients are summed over all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import functional

from trainer.collectives import all_reduce
from trainer.experts import Experts
from trainer.fsdp_collectives import NamedAllGather, NamedReduceScatter
from trainer.meshes import Meshes
from trainer.moe import Decoder
from trainer.units import to_local


def parallelize(
    model: Decoder, meshes: Meshes, *, precision: MixedPrecisionPolicy | None = None, recompute: bool = False
) -> None:
    """Shard ``model`` in place, which may be on the meta device (then: ``to_empty``, ``init_weights``).

    ``precision``: dtypes of the computation and of the reduction (default: those of the weights); ``recompute``:
    activations of a block are computed again in the backward pass (activation checkpointing).

    Raises MeshError if the experts cannot be divided over ``ep``.
    """
    model.cp_group = meshes.cp_group
    for block in model.blocks():
        block.recompute = recompute
    shard_modules(model, model.layers, meshes, precision)
    for method in ("hidden", "logits", "in_chunks"):
        register_fsdp_forward_method(model, method)


def shard_modules(
    model: nn.Module, blocks: Iterable[nn.Module], meshes: Meshes, precision: MixedPrecisionPolicy | None = None
) -> None:
    """``fully_shard`` nested: the experts in ``model``, each of ``blocks``, and the model for what is left."""
    policy = precision or MixedPrecisionPolicy()
    experts = [module for module in model.modules() if isinstance(module, Experts)]
    meshes.sizes.check(n_experts=experts[0].n_experts if experts else 0)
    for module in experts:
        _spread(module, meshes)
        # By rows of each expert: the first dim is taken by ``ep``.
        fully_shard(module, mesh=meshes.experts, mp_policy=policy, shard_placement_fn=lambda parameter: Shard(1))
    for block in blocks:
        fully_shard(block, mesh=meshes.weights, mp_policy=policy)
    fully_shard(model, mesh=meshes.weights, mp_policy=policy)
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
            what = name or "the model"
            module.set_custom_all_gather(NamedAllGather(f"all-gather of the weights of {what}"))
            module.set_custom_reduce_scatter(NamedReduceScatter(f"reduce-scatter of the gradients of {what}"))


def _spread(experts: Experts, meshes: Meshes) -> None:
    """Leave this rank its own experts, as shards of a tensor that is spread over ``ep``."""
    for name, parameter in list(experts.named_parameters(recurse=False)):
        spread = distribute_tensor(parameter.detach(), meshes.ep, [Shard(0)], src_data_rank=None)
        setattr(experts, name, nn.Parameter(spread))
    experts.group = meshes.ep.get_group() if meshes.sizes.ep > 1 else None


def share_of(length: int, meshes: Meshes | None) -> Tensor:
    """Positions of this rank's tokens in a sequence of ``length``: two of 2 cp equal pieces, one from the front and
    one from the back, so that all ranks have as much to attend to. Raises MeshError if there are no such pieces."""
    positions = torch.arange(length)
    if meshes is None or meshes.sizes.cp == 1:
        return positions
    meshes.sizes.check(n_experts=meshes.sizes.ep, sequence=length)
    pieces = positions.chunk(2 * meshes.sizes.cp)
    return torch.cat((pieces[meshes.cp_rank], pieces[-1 - meshes.cp_rank]))


def n_tokens(targets: Tensor) -> Tensor:
    """How many tokens of all ranks count (those with a target that is not -100), as a float."""
    return all_reduce((targets != -100).sum().float(), "all-reduce of the number of tokens")


def loss_share(logits_BTV: Tensor, targets_BT: Tensor, total: Tensor) -> Tensor:
    """This rank's share of the mean cross-entropy over ``total`` tokens; the shares of all ranks add up to it."""
    loss = functional.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten(), reduction="sum")
    return loss / total


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale all gradients by min(1, max_norm / norm), in place; returns the norm, taken over both meshes: each element
    once, however many ranks have it. Costs one all-reduce of one number.

    Raises CollectiveFailed when another rank fails. A norm that is not finite scales nothing: Muon refuses it by name.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    world = dist.get_world_size() if dist.is_initialized() else 1
    squares = [to_local(g).float().square().sum() / _copies(g, world) for g in gradients]
    total = torch.stack(squares).sum() if squares else torch.zeros(())
    norm = all_reduce(total, "all-reduce of the gradients' norm").sqrt()
    factor = max_norm / norm
    if torch.isfinite(norm) and factor < 1:
        torch._foreach_mul_([to_local(g) for g in gradients], factor.item())
    return norm


def _copies(tensor: Tensor, world: int) -> int:
    """How many ranks of the world hold the same elements."""
    if not isinstance(tensor, DTensor):
        return world
    shards = 1
    for axis, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard):
            shards *= tensor.device_mesh.size(axis)
    return world // shards
