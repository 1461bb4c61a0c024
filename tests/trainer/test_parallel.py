"""A decoder on two meshes has the losses and gradients of one process, and learns along the same curve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from decoder_cases import GROUPED, LATENT, Run, backward, curve, loss_and_gradients, trainee_of, weights
from ranks import Ranks
from torch import Tensor

from trainer.decoder_config import DecoderConfig
from trainer.meshes import MeshSizes
from trainer.qk_clip import clip_attention, watch

WORLD = 8
# All dims at once, twice: the experts one on a rank, and the experts copied and cut by rows.
COMBINED = MeshSizes(world=WORLD, dp_replicate=2, cp=2, ep=8)
CUT = MeshSizes(world=WORLD, dp_replicate=2, fsdp_shard=2, cp=2, ep=2, expert_shard=2)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(WORLD) as pool:
        yield pool


def close(found: dict[str, Tensor], expected: dict[str, Tensor], relative: float) -> None:
    """Every gradient within ``relative`` of its own largest entry."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        error = (found[name] - tensor).abs().max() / tensor.abs().max()
        assert error < relative, f"{name}: {error}"


@pytest.mark.parametrize(
    "sizes",
    [
        MeshSizes(world=WORLD),
        MeshSizes(world=WORLD, dp_replicate=4),
        MeshSizes(world=WORLD, cp=4),
        MeshSizes(world=WORLD, ep=4, expert_shard=1),
        MeshSizes(world=WORLD, ep=2, expert_shard=4),
        COMBINED,
        CUT,
    ],
    ids=lambda s: f"replicate{s.dp_replicate}-cp{s.cp}-ep{s.ep}-cut{s.wide_shard}",
)
@pytest.mark.parametrize("config", [LATENT, GROUPED], ids=["latent", "grouped"])
def test_loss_and_gradients_are_those_of_one_process(ranks: Ranks, sizes: MeshSizes, config: DecoderConfig) -> None:
    loss, expected = loss_and_gradients(Run(config=config))
    for their_loss, found in ranks.run(loss_and_gradients, Run(config=config, sizes=sizes)):
        assert abs(their_loss - loss) < 2e-6 * loss
        close(found, expected, 2e-5)


def test_recomputed_activations_give_the_same_gradients(ranks: Ranks) -> None:
    loss, expected = loss_and_gradients(Run(config=LATENT))
    for their_loss, found in ranks.run(loss_and_gradients, Run(config=LATENT, sizes=COMBINED, recompute=True)):
        assert abs(their_loss - loss) < 2e-6 * loss
        close(found, expected, 2e-5)


def test_mixed_precision_computes_in_bfloat16_and_reduces_in_float32(ranks: Ranks) -> None:
    """Near the gradients of float32, not at them; tokens that change experts for a rounding set how near."""
    loss, expected = loss_and_gradients(Run(config=LATENT))
    for their_loss, found in ranks.run(loss_and_gradients, Run(config=LATENT, sizes=COMBINED, bf16=True)):
        assert 0 < abs(their_loss - loss) < 5e-3 * loss
        assert {tensor.dtype for tensor in found.values()} == {torch.float32}
        for name, tensor in expected.items():
            alike = torch.nn.functional.cosine_similarity(found[name].flatten(), tensor.flatten(), dim=0)
            assert alike > 0.95, f"{name}: {alike}"


def initial_weights(run: Run) -> dict[str, Tensor]:
    return weights(trainee_of(run).model)


def test_weights_begin_alike_on_every_mesh_also_from_the_meta_device(ranks: Ranks) -> None:
    expected = initial_weights(Run(config=LATENT))
    for found in ranks.run(initial_weights, Run(config=LATENT, sizes=CUT, meta=True)):
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("sizes", [COMBINED, CUT], ids=["combined", "cut"])
def test_fifty_steps_of_muon_overlay_the_curve_of_one_process(ranks: Ranks, sizes: MeshSizes) -> None:
    """Losses and gradient norms within 1e-3 of those of one process, at each of 50 steps, clipped."""
    expected = curve(Run(config=LATENT), 50)
    assert expected[-1][0] < 0.5 * expected[0][0], "it learns"
    assert any(norm > 1.0 for _, norm in expected), "clipping matters"
    for found in ranks.run(curve, Run(config=LATENT, sizes=sizes), 50):
        for (loss, norm), (their_loss, their_norm) in zip(expected, found, strict=True):
            assert abs(their_loss - loss) < 1e-3 * loss
            assert abs(their_norm - norm) < 1e-3 * norm


def clipped(run: Run) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The largest logits before and after a clip to three quarters of the largest, and the weights after it."""
    trainee = trainee_of(run)
    watch(trainee.model)
    backward(trainee, 0)
    before = clip_attention(trainee.model, tau=1e9)
    backward(trainee, 0)
    clip_attention(trainee.model, tau=0.75 * before.max().item())
    backward(trainee, 0)
    return before, clip_attention(trainee.model, tau=1e9), weights(trainee.model)


@pytest.mark.parametrize("config", [LATENT, replace(GROUPED, qk_norm=False)], ids=["latent", "grouped"])
def test_attention_logits_are_clipped_alike_on_every_mesh(ranks: Ranks, config: DecoderConfig) -> None:
    before, after, expected = clipped(Run(config=config))
    bound = 0.75 * before.max()
    assert (before > bound).any() and (before < bound).any()
    assert (after[0] <= bound * 1.0001).all(), "the first layer sees the same inputs"
    for _, theirs, found in ranks.run(clipped, Run(config=config, sizes=COMBINED)):
        assert torch.allclose(theirs, after, rtol=1e-4)
        assert all(torch.allclose(found[name], tensor, rtol=1e-4) for name, tensor in expected.items())


def test_normalised_queries_cannot_be_clipped() -> None:
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn: its queries are normalised"):
        watch(trainee_of(Run(config=GROUPED)).model)
