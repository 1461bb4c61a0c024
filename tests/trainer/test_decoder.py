"""The decoder on one process: its sizes, its causality, its balance; and the parts of a training step."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from decoder_cases import GROUPED, LATENT, Run, backward, trainee_of
from ranks import Ranks

from trainer.collectives import CollectiveFailed
from trainer.decoder_config import KIMI_K2, DecoderConfig
from trainer.experts import Experts, Router, rebalance
from trainer.meshes import MeshSizes
from trainer.moe import Decoder, init_weights
from trainer.parallel import clip_gradients
from trainer.partition import Heads, partition


def test_kimi_k2_has_a_trillion_parameters_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = Decoder(KIMI_K2)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert sum(sizes.values()) == pytest.approx(1.03e12, rel=0.01)
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    active = sum(sizes.values()) - experts * (1 - 8 / 384)
    assert active == pytest.approx(32e9, rel=0.05)
    assigned = partition(model, Heads.of(KIMI_K2)).assignments
    stacked = [a for a in assigned if ".experts." in a.name]
    matrices = sum(a.shape[0] * (len(a.split.sizes) if a.split else 1) for a in stacked)
    assert matrices == 60 * 384 * 3


@pytest.mark.parametrize("config", [LATENT, GROUPED], ids=["latent", "grouped"])
def test_a_token_sees_those_before_it_alone(config: DecoderConfig) -> None:
    model = Decoder(config)
    init_weights(model, 0, std=0.2)
    ids = torch.randint(0, 64, (1, 12), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[0, 7] = (ids[0, 7] + 1) % 64
    with torch.no_grad():
        before, after = model(ids), model(changed)
    assert torch.allclose(before[:, :7], after[:, :7], atol=1e-6)
    assert not torch.allclose(before[:, 7:], after[:, 7:], atol=1e-3)


def test_experts_are_what_a_loop_over_tokens_gives() -> None:
    torch.manual_seed(0)
    experts = Experts(6, 8, 5, std=0.5)
    x, chosen, weights = torch.randn(20, 8), torch.randint(0, 4, (20, 2)), torch.rand(20, 2)
    expected = torch.zeros_like(x)
    for token in range(20):
        for expert, weight in zip(chosen[token], weights[token], strict=True):
            gate, up = (experts.gate_up_proj[expert] @ x[token]).chunk(2)
            expected[token] += weight * (experts.down_proj[expert] @ (gate * gate.sigmoid() * up))
    found = experts(x, chosen, weights)
    assert torch.allclose(found, expected, atol=1e-5)
    found.sum().backward()
    assert experts.gate_up_proj.grad is not None
    assert experts.gate_up_proj.grad[4:].abs().max() == 0, "experts without tokens have gradients of zeros"


def test_biases_even_out_the_load() -> None:
    """Tokens that all like the same experts are spread by the bias; the weights stay those of the scores."""
    torch.manual_seed(0)
    router = Router(LATENT)
    with torch.no_grad():
        router.weight[:2] += 0.05
    x = torch.randn(512, 32) + 1.0
    imbalance = []
    for _ in range(300):
        chosen, weights = router(x)
        imbalance.append((router.load.max() / router.load.mean()).item())
        rebalance(router, speed=0.003)
        assert router.load.sum() == 0
    assert imbalance[0] > 2.5
    assert imbalance[-1] < 1.3
    scores = torch.sigmoid(x @ router.weight.T).gather(-1, chosen)
    assert torch.allclose(weights, scores / scores.sum(-1, keepdim=True), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_lora_rank": None, "head_dim": 0}, "num_key_value_heads, head_dim must be 1 or more"),
        ({"kv_lora_rank": None, "head_dim": 8, "num_key_value_heads": 3}, "4 query heads cannot share 3 key heads"),
        ({"qk_rope_head_dim": 3}, "even number of dims, not 3"),
        ({"num_experts_per_tok": 9}, "9 of 8 experts"),
        ({"scoring_func": "tanh"}, "'sigmoid' or 'softmax', not 'tanh'"),
        ({"n_routed_experts": 0, "num_experts_per_tok": 0, "intermediate_size": 0}, "intermediate_size must be 1"),
    ],
)
def test_sizes_that_make_no_decoder_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(LATENT, **change)


def test_clipping_is_that_of_torch() -> None:
    models = [trainee_of(Run(config=LATENT)).model for _ in range(2)]
    for model in models:
        (model(torch.arange(12)[None]).square().sum()).backward()
    theirs = torch.nn.utils.clip_grad_norm_(models[0].parameters(), 0.5).item()
    ours = clip_gradients(models[1].parameters(), 0.5).item()
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours > 0.5
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert a.grad is None or torch.allclose(a.grad, b.grad, rtol=1e-4)


def test_a_gradient_that_is_not_finite_scales_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.tensor([1.0, math.nan, 2.0])
    assert clip_gradients([weight], 0.1).isnan()
    assert weight.grad[2] == 2.0


def dying(when: str) -> tuple[str, float]:
    """What a rank says whose neighbour dies in the midst of a step."""
    trainee = trainee_of(Run(config=LATENT, sizes=MeshSizes(world=4, cp=2, ep=4)))
    backward(trainee, 0)
    if dist.get_rank() == 3:
        for module in trainee.model.modules():
            if isinstance(module, Experts):
                hook = module.register_forward_pre_hook if when == "forward" else module.register_full_backward_pre_hook
                hook(lambda *_: os._exit(1))
    started = time.monotonic()
    try:
        backward(trainee, 1)
    except CollectiveFailed as error:
        return str(error), time.monotonic() - started
    return "nothing", 0.0


@pytest.mark.parametrize(("when", "said"), [("forward", "all-to-all of"), ("backward", "all-gather of the weights")])
def test_a_rank_that_dies_in_a_layer_is_an_error_that_names_the_collective(when: str, said: str) -> None:
    with Ranks(4, timeout_s=10) as pool:
        outcomes = pool.outcomes(dying, when)
    for fine, answer in outcomes[:3]:
        assert fine, answer
        text, seconds = answer
        assert text.startswith(said), text
        assert seconds < 12
