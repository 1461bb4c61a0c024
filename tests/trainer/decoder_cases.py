"""The decoder, the data and the runs that several tests share: on one process, or on any mesh."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from trainer.decoder_config import DecoderConfig
from trainer.experts import rebalance
from trainer.meshes import Meshes, MeshSizes, meshes_of
from trainer.moe import Decoder, init_weights
from trainer.muon import Muon
from trainer.muon_options import Options
from trainer.parallel import clip_gradients, loss_share, n_tokens, parallelize, share_of
from trainer.partition import Heads, partition

LATENT = DecoderConfig(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    q_lora_rank=24,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=8,
    intermediate_size=48,
    first_k_dense_replace=1,
    n_routed_experts=8,
    num_experts_per_tok=2,
    n_shared_experts=1,
    moe_intermediate_size=20,
)
GROUPED = replace(LATENT, kv_lora_rank=None, num_key_value_heads=2, head_dim=8, qk_norm=True, first_k_dense_replace=0)
SEQUENCES, LENGTH = 8, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A model, and the mesh that it trains on (None: one process)."""

    config: DecoderConfig
    sizes: MeshSizes | None = None
    recompute: bool = False
    meta: bool = False
    bf16: bool = False


@dataclass(slots=True)
class Trainee:
    model: Decoder
    meshes: Meshes | None
    optimizer: Muon


def trainee_of(run: Run, seed: int = 1) -> Trainee:
    with torch.device("meta" if run.meta else "cpu"):
        model = Decoder(run.config)
    if not run.meta:
        init_weights(model, seed, std=0.1)
    meshes = None
    if run.sizes is not None:
        meshes = meshes_of(run.sizes)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if run.bf16 else None
        parallelize(model, meshes, precision=policy, recompute=run.recompute)
    if run.meta:
        model.to_empty(device="cpu")
        init_weights(model, seed, std=0.1)
    found = partition(model, Heads.of(run.config))
    groups = found.groups(model, muon={"lr": 0.01, "weight_decay": 0.1}, adamw={"lr": 3e-3})
    return Trainee(model, meshes, Muon(groups, splits=found.splits, options=Options(ns_dtype=torch.float32)))


def batch(step: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Sequences that count upwards in strides, so that there is something to learn; a few targets do not count."""
    generator = torch.Generator().manual_seed(step)
    start, stride = (torch.randint(1, 5, (SEQUENCES, 1), generator=generator) for _ in range(2))
    ids = (start + stride * torch.arange(LENGTH + 1)) % vocabulary
    targets = ids[:, 1:].clone()
    targets[step % SEQUENCES, :3] = -100
    return ids[:, :-1], targets


def backward(trainee: Trainee, step: int) -> float:
    """Loss of the whole batch, with this rank's part of it; gradients are left on the parameters."""
    ids, targets = batch(step, trainee.model.config.vocab_size)
    positions = share_of(LENGTH, trainee.meshes)
    if trainee.meshes is not None:
        mine = slice(trainee.meshes.dp_rank, None, trainee.meshes.sizes.dp)
        ids, targets = ids[mine][:, positions], targets[mine][:, positions]
    loss = loss_share(trainee.model(ids, positions), targets, n_tokens(targets))
    loss.backward()
    total = loss.detach()
    if dist.is_initialized():
        dist.all_reduce(total)
    return total.item()


def train(trainee: Trainee, steps: range, max_norm: float = 1.0) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step."""
    curve = []
    for step in steps:
        loss = backward(trainee, step)
        norm = clip_gradients(trainee.model.parameters(), max_norm)
        trainee.optimizer.step()
        trainee.optimizer.zero_grad()
        rebalance(trainee.model)
        curve.append((loss, norm.item()))
    return curve


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(p) for name, p in model.named_parameters()}


def loss_and_gradients(run: Run) -> tuple[float, dict[str, Tensor]]:
    trainee = trainee_of(run)
    loss = backward(trainee, 0)
    return loss, gradients(trainee.model)


def curve(run: Run, steps: int, **options: Any) -> list[tuple[float, float]]:  # noqa: ANN401
    return train(trainee_of(run), range(steps), **options)
