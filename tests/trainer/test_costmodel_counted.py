"""The cost model against real steps on gloo: bytes on the wire, operations, memory traffic, memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from muon_cases import AXES, mesh_of
from ranks import Ranks
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.costmodel.cluster import Cluster, Narrow, Wide
from trainer.costmodel.memory import memory
from trainer.costmodel.owners import Owners
from trainer.costmodel.settings import Experts, Optimizer, Plan
from trainer.costmodel.shapes import ModelShape, Weights, weights_of
from trainer.costmodel.step import Step, local_elements, price
from trainer.muon import Muon
from trainer.muon_options import Options
from trainer.newton_schulz import Schedule, flops, newton_schulz

N = 4
CLUSTER = Cluster(
    gpus=N,
    gpus_per_node=2,
    peak_flops={"float32": 1e12, "bfloat16": 2e12},
    mfu=0.5,
    node_bandwidth=1e9,
    network_bandwidth=1e8,
    memory_bandwidth=1e10,
    memory_bytes=1e9,
)
# Four of everything, or a multiple: each rank owns as many units of each kind.
EVEN = ModelShape(
    layers=4,
    hidden=32,
    vocabulary=64,
    heads=4,
    kv_heads=2,
    head_dim=8,
    experts=8,
    expert_width=16,
    shared_experts=1,
    qk_norm=True,
)
LATENT = replace(
    EVEN, kv_heads=0, head_dim=0, q_rank=24, kv_rank=16, nope_dim=8, rope_dim=8, value_dim=8, qk_norm=False
)
# Counts and rows that no number of ranks divides.
UNEVEN = replace(EVEN, layers=5, dense_layers=2, dense_width=52, hidden=36, heads=3, kv_heads=3, expert_width=18)
PLAN = Plan(
    model=EVEN,
    cluster=CLUSTER,
    narrow=Narrow(replicate=2, shard=2),
    wide=Wide(replicate=1, ep=2, expert_shard=2),
    optimizer=Optimizer(ns_dtype="float32", chunk_bytes=4096),
)
PLANS = {
    "hsdp": PLAN,
    "latent": replace(PLAN, model=LATENT),
    "sharded": replace(PLAN, narrow=Narrow(replicate=1, shard=2, cp=2)),
    "cut-over-all": replace(PLAN, wide=Wide(replicate=1, ep=1, expert_shard=4)),
    "replicated-experts": replace(PLAN, wide=Wide(replicate=2, ep=1, expert_shard=2)),
    "experts-over-the-mesh": replace(PLAN, experts=Experts.MESH),
    "whole-experts": replace(PLAN, experts=Experts.WHOLE),
    "whole-replicated": replace(PLAN, experts=Experts.WHOLE, wide=Wide(replicate=2, ep=2, expert_shard=1)),
    "split-whole": replace(
        PLAN,
        experts=Experts.WHOLE,
        wide=Wide(replicate=2, ep=2, expert_shard=1),
        optimizer=replace(PLAN.optimizer, split_whole=True),
    ),
    "float32-wire": replace(PLAN, optimizer=replace(PLAN.optimizer, wire_dtype="float32")),
}


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with Ranks(N) as pool:
        yield pool


@dataclass
class Seen:
    """What one rank's step did."""

    inbound: int
    outbound: int
    collectives: int
    flops: int
    state_bytes: int
    peak_bytes: int
    elementwise_bytes: Any


def whole(index: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(index))


def lay(tensor: Tensor, weights: Weights, plan: Plan) -> DTensor:
    """As the plan's meshes place it."""
    wide, narrow = plan.wide, plan.narrow
    if not weights.expert:
        mesh, places = mesh_of((narrow.replicate, narrow.shards)), [Replicate(), Shard(0)]
    elif plan.experts is Experts.WHOLE:
        mesh, places = mesh_of((wide.replicate, wide.ep * wide.expert_shard)), [Replicate(), Shard(0)]
    elif plan.experts is Experts.MESH:
        mesh = mesh_of((wide.replicate, wide.ep, wide.expert_shard))
        places = [Replicate(), Shard(0), Shard(1)]
    else:
        full = mesh_of((wide.replicate, wide.ep, wide.expert_shard))
        # A rank's own experts, cut over the axis of shards, and those of the other replicas.
        tensor = tensor.chunk(wide.ep)[full.get_local_rank(AXES[1])]
        mesh = full[AXES[0], AXES[2]] if wide.replicate > 1 else full[AXES[2]]
        places = [Replicate(), Shard(1)] if wide.replicate > 1 else [Shard(1)]
    return distribute_tensor(tensor, mesh, places, src_data_rank=None)


class Watch(TorchDispatchMode):
    """Counts the bytes that elementwise calls touch."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        found = tensors(args, kwargs), tensors(result)
        self.touched[name] = self.touched.get(name, 0) + size(found[0]) + size(found[1])
        return result


def peak_of(run: Any) -> int:
    """The most bytes that ``run`` holds at one time, of what it allocates."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    live = peak = 0
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def tensors(*trees: Any) -> list[Tensor]:  # noqa: ANN401
    return [leaf for leaf in torch.utils._pytree.tree_leaves(trees) if isinstance(leaf, Tensor)]


def size(found: list[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in found)


def step_of(plan: Plan) -> Seen:
    """One step after a first one, which makes the state."""
    computed = 0

    def kernel(x_BMN: Tensor, schedule: Schedule, dtype: torch.dtype) -> Tensor:
        nonlocal computed
        computed += len(x_BMN) * flops(x_BMN.shape[1], x_BMN.shape[2], len(schedule.coefficients))
        return newton_schulz(x_BMN, schedule, dtype)

    weights = [w for w in weights_of(plan.model) for _ in range(w.copies)]
    names = [f"{i}.{w.name}" for i, w in enumerate(weights)]
    parameters = [torch.nn.Parameter(lay(whole(i, w.shape), w, plan)) for i, w in enumerate(weights)]
    for i, (parameter, w) in enumerate(zip(parameters, weights, strict=True)):
        parameter.grad = lay(whole(1000 + i, w.shape), w, plan)
    triples = list(zip(names, parameters, weights, strict=True))
    optimizer = Muon(
        [
            {"algorithm": kind, "params": [(n, p) for n, p, w in triples if w.muon is (kind == "muon")]}
            for kind in ("muon", "adamw")
        ],
        splits={name: w.split for name, _, w in triples if w.split is not None},
        options=Options(
            ns_dtype=getattr(torch, plan.optimizer.ns_dtype),
            wire_dtype=getattr(torch, plan.optimizer.wire_dtype),
            chunk_bytes=plan.optimizer.chunk_bytes,
            in_flight=plan.optimizer.in_flight,
            split_whole=plan.optimizer.split_whole,
            kernel=kernel,
        ),
    )
    optimizer.step()
    computed = 0
    with Watch() as watch:
        optimizer.step()
    peak = peak_of(optimizer.step)
    state = sum(
        size([t.to_local() if isinstance(t, DTensor) else t])
        for held in optimizer.state.values()
        for key, t in held.items()
        if key != "step"
    )
    sent = optimizer.traffic
    return Seen(
        sent.inbound_bytes, sent.outbound_bytes, sent.n_collectives, computed, state, peak, watch.touched
    )


def test_show(four: Ranks) -> None:
    for name, plan in PLANS.items():
        step = price(plan)
        seen = four.run(step_of, plan)
        m = memory(step)
        print(name, step.bytes("inbound").total, (step.bytes("outbound") + step.bytes("gather")).total,
          sum(p.exchange.chunks * (1 + (p.inbound.total > 0)) for p in step.phases), step.compute_s * .5e12, m.momentum + m.adamw, m.transient)
        for s in seen: print("   ", s)
    for plan in (replace(PLAN, model=UNEVEN),replace(PLANS["sharded"], model=UNEVEN),replace(PLANS["experts-over-the-mesh"], model=UNEVEN)):
        step = price(plan)
        seen = four.run(step_of, plan)
        m = memory(step)
        print("UNEVEN", step.bytes("inbound").total, (step.bytes("outbound") + step.bytes("gather")).total,
          sum(p.exchange.chunks * (1 + (p.inbound.total > 0)) for p in step.phases), step.compute_s * .5e12, m.momentum + m.adamw, m.transient)
        for s in seen: print("   ", s)
