"""Hugging Face's decoders, sharded, have the losses and gradients that they have on one process; ours have theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from decoder_cases import GROUPED, LATENT, LENGTH, batch, gradients
from ranks import Ranks
from torch import Tensor
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from trainer.decoder_config import DecoderConfig
from trainer.meshes import MeshError, MeshSizes, meshes_of
from trainer.moe import Decoder
from trainer.muon import Muon
from trainer.muon_options import Options
from trainer.parallel import clip_gradients, loss_share, n_tokens, share_of
from trainer.partition import Heads, partition
from trainer.transformers_models import parallelize_pretrained

COMMON: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
MOE: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "norm_topk_prob": True}
KINDS = ("llama", "qwen3", "qwen3-moe")


def model_of(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    match kind:
        case "llama":
            return LlamaForCausalLM(LlamaConfig(**COMMON))
        case "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**COMMON, tie_word_embeddings=True))
        case _:
            return Qwen3MoeForCausalLM(Qwen3MoeConfig(**COMMON, **MOE))


def three_steps(kind: str, sizes: MeshSizes | None, recompute: bool = False) -> tuple[dict[str, Tensor], list[float]]:
    """The first gradients, and the losses of three steps of Muon."""
    model, meshes = model_of(kind), None
    if sizes is not None:
        meshes = meshes_of(sizes)
        parallelize_pretrained(model, meshes, recompute=recompute)
    found = partition(model, Heads.of(model.config))
    groups = found.groups(model, muon={"lr": 0.01}, adamw={"lr": 3e-3})
    optimizer = Muon(groups, splits=found.splits, options=Options(ns_dtype=torch.float32))
    positions, losses, first = share_of(LENGTH, meshes), [], {}
    for step in range(3):
        ids, targets = batch(step, 64)
        if meshes is not None:
            mine = slice(meshes.dp_rank, None, meshes.sizes.dp)
            ids, targets = ids[mine][:, positions], targets[mine][:, positions]
        logits = model(input_ids=ids, position_ids=positions[None], use_cache=False).logits
        loss = loss_share(logits, targets, n_tokens(targets))
        loss.backward()
        first = first or gradients(model)
        total = loss.detach()
        if meshes is not None:
            torch.distributed.all_reduce(total)
        losses.append(total.item())
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return first, losses


@pytest.mark.parametrize("kind", KINDS)
def test_sharded_they_learn_as_on_one_process(kind: str) -> None:
    expected, losses = three_steps(kind, None)
    moe = kind == "qwen3-moe"
    meshes = [MeshSizes(world=4), MeshSizes(world=4, dp_replicate=2, cp=2, ep=4 if moe else 1)]
    with Ranks(4) as pool:
        for sizes in meshes:
            for found, their_losses in pool.run(three_steps, kind, sizes, sizes.cp > 1):
                assert found.keys() == expected.keys()
                for name, tensor in expected.items():
                    assert (found[name] - tensor).abs().max() < 2e-5 * tensor.abs().max(), name
                assert their_losses == pytest.approx(losses, rel=1e-4)


def refusal(kind: str) -> str:
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2)) if kind == "gpt2" else model_of(kind)
    try:
        parallelize_pretrained(model, meshes_of(MeshSizes(world=2, ep=2)))
    except (ValueError, MeshError) as error:
        return str(error)
    return "nothing"


def test_other_models_and_experts_that_are_not_there_are_refused() -> None:
    with Ranks(2) as pool:
        assert "GPT2LMHeadModel: the trainer shards Llama" in pool.run(refusal, "gpt2")[0]
        assert pool.run(refusal, "llama")[0] == "ep = 2: LlamaForCausalLM has no experts; ep = 1 would do"


def assert_same_logits(ours: Decoder, theirs: PreTrainedModel) -> None:
    state = {name.removeprefix("model."): tensor for name, tensor in theirs.state_dict().items()}
    missing, unexpected = ours.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(name.endswith("e_score_correction_bias") for name in missing), "Qwen3's routers have none; ours is 0"
    ids = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(ours(ids), theirs(input_ids=ids).logits, atol=2e-6)


def perturbed(model: PreTrainedModel) -> PreTrainedModel:
    """All weights drawn anew, norms and routers' biases too, so that each of them counts."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)
    return model.eval()


def test_our_decoder_is_deepseek_v3() -> None:
    same = {f: getattr(LATENT, f) for f in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")}
    config = DeepseekV3Config(
        **{k: v for k, v in COMMON.items() if k not in ("head_dim", "num_key_value_heads")},
        **same,
        num_key_value_heads=4,
        v_head_dim=8,
        first_k_dense_replace=1,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=20,
        n_group=1,
        topk_group=1,
        routed_scaling_factor=2.5,
        rope_interleave=False,
    )
    assert_same_logits(Decoder(replace(LATENT, routed_scaling_factor=2.5)), perturbed(DeepseekV3ForCausalLM(config)))


def test_our_decoder_is_qwen3_moe() -> None:
    config: DecoderConfig = replace(GROUPED, scoring_func="softmax", n_shared_experts=0)
    theirs = perturbed(model_of("qwen3-moe"))
    assert_same_logits(Decoder(config), theirs)
