"""The cost model against real steps on gloo: bytes on the wire, operations, memory traffic, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from muon_cases import AXES, mesh_of
from ranks import Ranks
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainer.costmodel.cluster import Cluster
from trainer.costmodel.memory import memory
from trainer.costmodel.settings import Experts, Optimizer, Plan
from trainer.costmodel.shapes import ModelShape, Weights, weights_of
from trainer.costmodel.step import Step, price
from trainer.meshes import MeshSizes
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
LATENT = replace(EVEN, kv_heads=0, head_dim=0, q_rank=24, kv_rank=8, nope_dim=8, rope_dim=8, value_dim=8, qk_norm=False)
# Key heads that no rank has to share with others.
FOUR_HEADS = replace(EVEN, kv_heads=4)
# Counts and rows that no number of ranks divides.
UNEVEN = replace(EVEN, layers=5, dense_layers=2, dense_width=52, hidden=36, heads=3, kv_heads=3, expert_width=18)
PLAN = Plan(
    model=EVEN,
    cluster=CLUSTER,
    meshes=MeshSizes(world=N, dp_replicate=2, ep=2),
    optimizer=Optimizer(ns_dtype="float32", chunk_bytes=4096),
)
WHOLE = replace(PLAN, experts=Experts.WHOLE)
REPLICATED = MeshSizes(world=N, dp_replicate=2, ep=2, expert_shard=1)
PLANS = {
    "hsdp": PLAN,
    "latent": replace(PLAN, model=LATENT),
    "cp": replace(PLAN, model=FOUR_HEADS, meshes=MeshSizes(world=N, cp=2, ep=2)),
    "cut-over-all": replace(PLAN, model=FOUR_HEADS, meshes=MeshSizes(world=N)),
    "replicated-experts": replace(PLAN, meshes=MeshSizes(world=N, dp_replicate=2, expert_shard=2)),
    "experts-over-the-mesh": replace(PLAN, experts=Experts.MESH),
    "whole-experts": WHOLE,
    "whole-replicated": replace(WHOLE, meshes=REPLICATED),
    "split-whole": replace(WHOLE, meshes=REPLICATED, optimizer=replace(PLAN.optimizer, split_whole=True)),
    "float32-wire": replace(PLAN, optimizer=replace(PLAN.optimizer, wire_dtype="float32")),
    "one-at-a-time": replace(PLAN, optimizer=replace(PLAN.optimizer, in_flight=1)),
    "large-chunks": replace(PLAN, optimizer=replace(PLAN.optimizer, chunk_bytes=2**20)),
}


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with Ranks(N) as pool:
        yield pool


@dataclass
class Seen:
    """What one rank's step did: bytes sent, operations, bytes of state, of its peak, and of elementwise calls."""

    inbound: int
    outbound: int
    collectives: int
    flops: int
    momentum: int
    adamw: int
    peak: int
    elementwise: int


def whole(index: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(index))


def lay(tensor: Tensor, weights: Weights, plan: Plan) -> DTensor:
    """As the plan's meshes place it."""
    m = plan.meshes
    places: list[Placement] = [Replicate(), Shard(0)]
    wide = mesh_of((m.expert_replicate, m.wide_shard, m.ep))
    if not weights.expert:
        mesh = mesh_of((m.dp_replicate, m.narrow_shard))
    elif plan.experts is Experts.WHOLE:
        mesh = mesh_of((m.expert_replicate, m.ep * m.wide_shard))
    elif plan.experts is Experts.MESH:
        mesh, places = wide, [Replicate(), Shard(1), Shard(0)]
    else:
        tensor = tensor.chunk(m.ep)[wide.get_local_rank(AXES[2])]
        replicated = m.expert_replicate > 1
        mesh, places = wide[AXES[:2] if replicated else AXES[1]], [Replicate(), Shard(1)][not replicated :]
    return distribute_tensor(tensor, mesh, places, src_data_rank=None)


ELEMENTWISE = {"_foreach_norm", "_foreach_mul_", "_foreach_mul", "_foreach_add_", "_foreach_copy_", "_to_copy"}
ELEMENTWISE |= {"zeros_like", "mul_", "lerp_", "addcmul_", "sqrt", "div", "add_", "addcdiv_"}
WRITES_UNSEEN = {"_foreach_mul_", "_foreach_add_"}  # these return nothing, but write their first operands
READS_NOTHING = {"zeros_like"}


class Watch(TorchDispatchMode):
    """Counts the bytes that elementwise calls read and write, but for scalars and what Newton-Schulz does inside."""

    def __init__(self) -> None:
        super().__init__()
        self.touched, self.paused = 0, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ELEMENTWISE and not self.paused:
            read = 0 if name in READS_NOTHING else size(args)
            self.touched += read + size(result) + (size(args[0]) if name in WRITES_UNSEEN else 0)
        return result


def size(tree: object) -> int:
    """Bytes of all tensors but scalars."""
    leaves = tree_leaves(tree)
    return sum(t.numel() * t.element_size() for t in leaves if isinstance(t, Tensor) and t.ndim)


def peak_of(run: Callable[[], object]) -> int:
    """The most bytes that ``run`` holds at one time, of what it allocates."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    live = peak = 0
    kineto = profiler.profiler.kineto_results  # type: ignore[union-attr]
    for event in sorted(kineto.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def optimizer_of(plan: Plan, kernel: Callable[..., Tensor]) -> Muon:
    """Over weights of the plan's shapes, which have gradients."""
    weights = [w for w in weights_of(plan.model) for _ in range(w.copies)]
    named = [(f"{i}.{w.name}", torch.nn.Parameter(lay(whole(i, w.shape), w, plan))) for i, w in enumerate(weights)]
    for i, ((_, parameter), w) in enumerate(zip(named, weights, strict=True)):
        parameter.grad = lay(whole(1000 + i, w.shape), w, plan)
    pairs = list(zip(named, weights, strict=True))
    of = plan.optimizer
    options = Options(
        ns_dtype=getattr(torch, of.ns_dtype),
        wire_dtype=getattr(torch, of.wire_dtype),
        kernel=kernel,
        chunk_bytes=of.chunk_bytes,
        in_flight=of.in_flight,
        split_whole=of.split_whole,
    )
    groups = [
        {"algorithm": kind, "params": [pair for pair, w in pairs if w.muon is muon]}
        for kind, muon in (("muon", True), ("adamw", False))
    ]
    splits = {name: w.split for (name, _), w in pairs if w.split is not None}
    return Muon(groups, splits=splits, weight_decay=0.1, options=options)


def seen_of(plan: Plan) -> Seen:
    """One step after a first one, which makes the state."""
    watch, computed = Watch(), 0

    def kernel(x_BMN: Tensor, schedule: Schedule, dtype: torch.dtype) -> Tensor:
        nonlocal computed
        computed += len(x_BMN) * flops(x_BMN.shape[1], x_BMN.shape[2], len(schedule.coefficients))
        watch.paused = True
        result = newton_schulz(x_BMN, schedule, dtype)
        watch.paused = False
        return result

    optimizer = optimizer_of(plan, kernel)
    optimizer.step()
    peak, computed = peak_of(optimizer.step), 0
    with watch:
        optimizer.step()
    sent = optimizer.traffic
    state = {"momentum_buffer": 0, "exp_avg": 0, "exp_avg_sq": 0, "step": 0}
    for held in optimizer.state.values():
        for key, tensor in held.items():
            state[key] += size(tensor.to_local() if isinstance(tensor, DTensor) else tensor)
    return Seen(
        inbound=sent.inbound_bytes,
        outbound=sent.outbound_bytes,
        collectives=sent.n_collectives,
        flops=computed,
        momentum=state["momentum_buffer"],
        adamw=state["exp_avg"] + state["exp_avg_sq"],
        peak=peak,
        elementwise=watch.touched,
    )


def outbound(step: Step) -> float:
    return (step.bytes("outbound") + step.bytes("gather")).total


@pytest.mark.parametrize("name", PLANS)
def test_each_rank_sends_computes_and_keeps_what_the_model_says(four: Ranks, name: str) -> None:
    """Where all ranks have as much: exact, rank by rank. Memory of chunks in flight is a bound."""
    plan = PLANS[name]
    step, kept = price(plan), memory(price(plan))
    for seen in four.run(seen_of, plan):
        assert (seen.inbound, seen.outbound) == (step.bytes("inbound").total, outbound(step))
        assert seen.collectives == sum(p.exchange.chunks * (1 + (p.inbound.total > 0)) for p in step.phases)
        assert seen.flops == pytest.approx(step.compute_s * CLUSTER.mfu * CLUSTER.peak_flops["float32"])
        assert seen.elementwise == pytest.approx(step.elementwise_s * CLUSTER.memory_bandwidth)
        assert (seen.momentum, seen.adamw) == (kept.momentum, kept.adamw)
        assert kept.transient / 8 < seen.peak <= kept.transient


UNEVEN_PLANS = {
    "hsdp": replace(PLAN, model=UNEVEN),
    "cp": replace(PLANS["cp"], model=UNEVEN),
    "shared-heads": replace(PLANS["cp"], model=EVEN),
    "latent-and-rotary": replace(PLAN, model=replace(LATENT, kv_rank=16)),
    "experts-over-the-mesh": replace(PLAN, model=UNEVEN, experts=Experts.MESH),
}


@pytest.mark.parametrize("name", UNEVEN_PLANS)
def test_uneven_shards_are_right_on_the_mean(four: Ranks, name: str) -> None:
    """Where owners have more or less of a unit than others: bytes of all ranks within a tenth, never much more; the
    busiest rank's operations; and memory stays a bound."""
    plan = UNEVEN_PLANS[name]
    step, kept = price(plan), memory(price(plan))
    seen = four.run(seen_of, plan)
    assert sum(s.inbound for s in seen) == pytest.approx(N * step.bytes("inbound").total, rel=0.1)
    assert sum(s.outbound for s in seen) == pytest.approx(N * outbound(step), rel=0.1)
    assert max(s.flops for s in seen) <= 1.001 * step.compute_s * CLUSTER.mfu * CLUSTER.peak_flops["float32"]
    assert max(s.flops for s in seen) == pytest.approx(
        step.compute_s * CLUSTER.mfu * CLUSTER.peak_flops["float32"], rel=0.1
    )
    assert max(s.momentum for s in seen) <= kept.momentum and max(s.adamw for s in seen) <= kept.adamw
    assert max(s.peak for s in seen) <= kept.transient
