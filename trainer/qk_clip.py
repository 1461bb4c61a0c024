"""QK-clip: bounded attention logits, by scaling the query and key projections of the heads that exceed a bound.

For a head whose largest logit of the last steps was S > tau, gamma = tau / S; the logits q k become gamma q k when the
rows of q and of k are both multiplied by sqrt(gamma). In multi-head latent attention the rotary part of the keys is
shared by all heads and stays, so that the rotary rows of the query take all of gamma (MuonClip, arXiv 2507.20534).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.attention import Attention, GroupedQueryAttention, LatentAttention
from trainer.collectives import all_reduce
from trainer.units import Split, layout_of, part_of, to_local, units_of


def gammas(max_logits: Tensor, tau: float = 100.0) -> Tensor:
    """min(1, tau / S) of each head, from the largest logits ``max_logits`` [heads]; those not above 0 give 1."""
    return (tau / max_logits.clamp(min=tau)).clamp(max=1.0)


@torch.no_grad()
def scale_rows(name: str, weight: Tensor, sizes: Sequence[int], factors: Sequence[float], rank: int) -> None:
    """Multiply consecutive blocks of ``sizes`` rows of a projection by ``factors``, on this rank's shard.

    Raises ValueError if sizes do not add up to the rows, or factors and sizes are not as many.
    """
    if len(sizes) != len(factors):
        raise ValueError(f"{name}: {len(sizes)} blocks of rows, but {len(factors)} factors")
    layout = layout_of(name, weight, rank)
    me = layout.ranks.index(rank)
    local = to_local(weight)
    for unit, factor in zip(units_of(name, 0, weight, layout, Split(-2, tuple(sizes))), factors, strict=True):
        part = part_of(unit, me)
        if part is not None and factor != 1.0:
            local[part.local].mul_(factor)


def clip_grouped(q: Tensor, k: Tensor, gamma: Sequence[float], n_kv_heads: int, head_dim: int, rank: int) -> None:
    """Clip a layer whose query heads share ``n_kv_heads`` key heads (one each: multi-head attention).

    A shared key head takes sqrt of the smallest gamma of its queries, and each query what is left of its own.
    """
    shared = len(gamma) // n_kv_heads
    for_keys = [min(gamma[i * shared : (i + 1) * shared]) ** 0.5 for i in range(n_kv_heads)]
    for_queries = [g / for_keys[i // shared] for i, g in enumerate(gamma)]
    scale_rows("q_proj", q, [head_dim] * len(gamma), for_queries, rank)
    scale_rows("k_proj", k, [head_dim] * n_kv_heads, for_keys, rank)


def clip_latent(
    q_b: Tensor, kv_b: Tensor, gamma: Sequence[float], nope_dim: int, rope_dim: int, value_dim: int, rank: int
) -> None:
    """Clip a layer of multi-head latent attention: q_b has per head the rows (nope, rope), kv_b (nope, value)."""
    n = len(gamma)
    scale_rows("q_b_proj", q_b, (nope_dim, rope_dim) * n, [f for g in gamma for f in (g**0.5, g)], rank)
    scale_rows("kv_b_proj", kv_b, (nope_dim, value_dim) * n, [f for g in gamma for f in (g**0.5, 1.0)], rank)


def watch(model: nn.Module) -> None:
    """Let the attention of a ``trainer.moe.Decoder`` keep its largest logits, for ``clip_attention``.

    Raises ValueError where queries are normalised: their projection does not scale them.
    """
    for name, module in model.named_modules():
        if isinstance(module, GroupedQueryAttention) and not isinstance(module.q_norm, nn.Identity):
            raise ValueError(f"{name}: its queries are normalised, and cannot be clipped by their projection")
        if isinstance(module, Attention):
            module.watches = True


@torch.no_grad()
def clip_attention(model: nn.Module, tau: float = 100.0) -> Tensor:
    """After a step: bound by ``tau`` the heads whose logits exceeded it since the last call, on any rank.

    Returns the largest logits [layers, heads]. Costs one all-reduce. Raises CollectiveFailed when another rank fails.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    modules = [module for module in model.modules() if isinstance(module, Attention)]
    largest = torch.stack([module.max_logits for module in modules])
    all_reduce(largest, "all-reduce of the largest attention logits", dist.ReduceOp.MAX)
    for module, logits in zip(modules, largest, strict=True):
        gamma = gammas(logits, tau).tolist()
        module.max_logits.zero_()
        if min(gamma) == 1.0:
            continue
        if isinstance(module, LatentAttention):
            queries = module.q_b_proj if module.compressed else module.q_proj
            clip_latent(queries.weight, module.kv_b_proj.weight, gamma, module.nope, module.rope, module.value, rank)
        elif isinstance(module, GroupedQueryAttention):
            n_kv_heads = module.k_proj.out_features // module.head_dim
            clip_grouped(module.q_proj.weight, module.k_proj.weight, gamma, n_kv_heads, module.head_dim, rank)
    return largest
