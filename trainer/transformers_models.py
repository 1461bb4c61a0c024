"""Hugging Face's decoders on two meshes: Llama, Qwen3 and Qwen3-MoE, so that real weights train.

Their stacked experts are replaced by ours (same parameters, same names), which send tokens to other ranks; their
attention, where ranks share a sequence, by one that gathers keys and values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

from trainer.collectives import gather_rows
from trainer.experts import Experts
from trainer.meshes import MeshError, Meshes
from trainer.parallel import shard_modules

SUPPORTED = ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
_SHARED = "gathered"


def parallelize_pretrained(
    model: PreTrainedModel, meshes: Meshes, *, precision: MixedPrecisionPolicy | None = None, recompute: bool = False
) -> None:
    """Shard ``model`` in place, as ``trainer.parallel.parallelize`` does. Call it with ``position_ids`` (what
    ``share_of`` gives, [1, T]) and ``use_cache=False``.

    Raises ValueError for another kind of model, MeshError if its experts cannot be divided over ``ep``.
    """
    kind = type(model).__name__
    if kind not in SUPPORTED:
        raise ValueError(f"{kind}: the trainer shards {', '.join(SUPPORTED)}")
    if meshes.sizes.ep > 1 and kind != "Qwen3MoeForCausalLM":
        raise MeshError(f"ep = {meshes.sizes.ep}: {kind} has no experts; ep = 1 would do")
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[no-untyped-call]
    if meshes.sizes.cp > 1:
        _share_sequences(model, meshes)
    decoder: Any = model.model
    for layer in decoder.layers:
        if hasattr(layer.mlp, "experts"):
            _adopt_experts(layer.mlp, model.config.hidden_act)
    shard_modules(model, decoder.layers, meshes, precision)


def _adopt_experts(mlp: Any, activation: str) -> None:  # noqa: ANN401 - any of the library's blocks with experts
    if activation != "silu":
        raise ValueError(f"hidden_act = {activation!r}: the trainer's experts have silu gates alone")
    theirs = mlp.experts
    with torch.device("meta"):
        ours = Experts(theirs.num_experts, theirs.hidden_dim, theirs.intermediate_dim)
    ours.gate_up_proj, ours.down_proj = theirs.gate_up_proj, theirs.down_proj
    mlp.experts = ours


def _share_sequences(model: PreTrainedModel, meshes: Meshes) -> None:
    AttentionInterface.register(_SHARED, _attend)
    model.set_attn_implementation(_SHARED)
    decoder: Any = model.model
    for layer in decoder.layers:
        layer.self_attn.cp_group = meshes.cp_group


def _attend(
    module: Any,  # noqa: ANN401 - any of the library's attention modules
    q_BHTD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    position_ids: Tensor,
    **_: object,
) -> tuple[Tensor, None]:
    """The library's interface of an attention function: [B, T, H, D] and no weights."""
    keys_and_values = torch.stack((k_BGTD, v_BGTD)).permute(3, 0, 1, 2, 4)
    k, v = gather_rows(keys_and_values, module.cp_group, "all-gather of keys and values").permute(1, 2, 3, 0, 4)
    mine = position_ids[0]
    everybody = gather_rows(mine, module.cp_group, "all-gather of positions")
    out = functional.scaled_dot_product_attention(
        q_BHTD,
        k,
        v,
        attn_mask=mine[:, None] >= everybody[None, :],
        scale=scaling,
        enable_gqa=k.shape[1] < q_BHTD.shape[1],
    )
    return out.transpose(1, 2), None
