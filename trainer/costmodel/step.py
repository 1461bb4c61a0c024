"""The phases of an optimizer step: operations, bytes and seconds of one rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trainer.costmodel.cluster import Bytes, Group
from trainer.costmodel.elementwise import traffic
from trainer.costmodel.kernels import Work, work
from trainer.costmodel.owners import Exchange, Owners, Spread, busiest, exchange, kinds_of
from trainer.costmodel.settings import Experts, Plan
from trainer.costmodel.shapes import Weights, weights_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """One rank's phases for one kind of units, all its chunks together. Bytes are what it sends."""

    exchange: Exchange
    momentum_s: float
    inbound: Bytes
    inbound_s: float
    ns_s: float
    outbound: Bytes
    gather: Bytes
    outbound_s: float
    apply_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step's phases on one rank, and its time."""

    plan: Plan
    phases: tuple[Phases, ...]
    total_work: Work
    adamw_s: float

    def sum(self, name: str) -> float:
        """Seconds of a phase over all kinds."""
        return float(sum(getattr(phases, name) for phases in self.phases))

    def bytes(self, name: str) -> Bytes:
        """Bytes of a phase over all kinds."""
        return sum((getattr(phases, name) for phases in self.phases), Bytes())

    @property
    def compute_s(self) -> float:
        """Newton-Schulz of the busiest rank."""
        return self.sum("ns_s")

    @property
    def balanced_s(self) -> float:
        """Newton-Schulz if all ranks had as much, and each unit were computed once."""
        cluster = self.plan.cluster
        return self.total_work.seconds(cluster, self.plan.optimizer.ns_dtype) / cluster.gpus

    @property
    def communication_s(self) -> float:
        return self.sum("inbound_s") + self.sum("outbound_s")

    @property
    def elementwise_s(self) -> float:
        return self.sum("momentum_s") + self.sum("apply_s") + self.adamw_s

    @property
    def overlaps(self) -> bool:
        """With three chunks in flight, one's transfers run beside another's Newton-Schulz."""
        return self.plan.optimizer.in_flight >= 3

    @property
    def ramp_s(self) -> float:
        """What nothing runs beside: the first chunk's way in and the last one's way out."""
        sending = [phases for phases in self.phases if phases.exchange.sends]
        if not sending or not self.overlaps:
            return 0.0
        first, last = sending[0], sending[-1]
        return first.inbound_s / first.exchange.chunks + last.outbound_s / last.exchange.chunks

    @property
    def step_s(self) -> float:
        """max(compute, communication) + elementwise + ramp; without overlap their sum."""
        if not self.overlaps:
            return self.compute_s + self.communication_s + self.elementwise_s
        return max(self.compute_s, self.communication_s) + self.elementwise_s + self.ramp_s


def spreads(plan: Plan) -> tuple[Spread, Spread]:
    """How the ranks of the narrow mesh, and those of the wide one, share their weights."""
    split, node, m = plan.optimizer.split_whole, plan.cluster.gpus_per_node, plan.meshes
    narrow = Spread(
        replicas=m.dp_replicate,
        owners=m.narrow_shard,
        shards=m.narrow_shard,
        lead=1,
        inside=Group.of(m.narrow_shard, 1, node),
        around=Group.of(m.world, 1, node),
        rule=plan.owners,
        split_whole=split,
    )
    if plan.experts is Experts.GROUP:
        owners, lead, stride = m.wide_shard, m.ep, 1 if plan.shard_inside else m.ep
    else:
        owners, lead, stride = m.ep * m.wide_shard, 1, 1
    inside = Group.of(owners, stride, node)
    # Replicas are the outermost axis: a node holds ranks of several only if a whole replica fits into it.
    near = inside.near * max(1, min(m.expert_replicate, node // (m.ep * m.wide_shard)))
    wide = Spread(
        replicas=m.expert_replicate,
        owners=owners,
        shards=1 if plan.experts is Experts.WHOLE else m.wide_shard,
        lead=lead,
        inside=inside,
        around=Group(owners * m.expert_replicate, near),
        rule=plan.owners,
        split_whole=split,
    )
    return narrow, wide


def local_elements(weights: Weights, plan: Plan) -> int:
    """Elements of all copies on the rank that has the most, its shard of each copy rounded up as torch.chunk does."""
    if not weights.expert:
        rows, *others = weights.shape
        shard = -(-rows // plan.meshes.narrow_shard)
        return weights.copies * shard * (others[0] if others else 1)
    experts, rows, cols = weights.shape
    meshes = plan.meshes
    if plan.experts is Experts.WHOLE:
        return weights.copies * -(-experts // (meshes.ep * meshes.wide_shard)) * rows * cols
    return weights.copies * -(-experts // meshes.ep) * -(-rows // meshes.wide_shard) * cols


def price(plan: Plan) -> Step:
    """The step's phases on one rank: the busiest one's Newton-Schulz, and the mean of what is sent."""
    weights = weights_of(plan.model)
    narrow, wide = spreads(plan)
    phases = [
        *_phases(plan, [w for w in weights if w.expert], wide),
        *_phases(plan, [w for w in weights if not w.expert], narrow),
    ]
    optimizer, cluster = plan.optimizer, plan.cluster
    n_adamw = sum(local_elements(w, plan) for w in weights if not w.muon)
    total = Work()
    for w in weights:
        for shape, n in w.units().items():
            total += work(optimizer.kernel, *shape, optimizer.steps).times(n)
    return Step(
        plan=plan,
        phases=tuple(sorted(phases, key=lambda p: -p.exchange.kind.cost)),
        total_work=total,
        adamw_s=n_adamw * traffic(optimizer).adamw / cluster.memory_bandwidth,
    )


def _phases(plan: Plan, weights: Iterable[Weights], spread: Spread) -> list[Phases]:
    optimizer, cluster = plan.optimizer, plan.cluster
    kinds = kinds_of(weights, spread)
    seconds = [
        work(optimizer.kernel, *kind.shape, optimizer.steps).seconds(cluster, optimizer.ns_dtype) for kind in kinds
    ]
    found = []
    for kind, each in zip(kinds, seconds, strict=True):
        for part in exchange(kind, spread, optimizer.chunk_bytes, optimizer.wire):
            found.append(_timed(plan, part, each))
    mean = sum(phases.ns_s for phases in found)
    if not mean:
        return found
    # The busiest rank sets the pace; what it has more of is laid on all kinds alike.
    excess = busiest(kinds, spread, seconds) / mean
    return [replace(phases, ns_s=phases.ns_s * excess) for phases in found]


def _timed(plan: Plan, part: Exchange, seconds: float) -> Phases:
    optimizer, cluster = plan.optimizer, plan.cluster
    touched = traffic(optimizer)
    inbound, outbound, gather = (_bytes(e, optimizer.wire) for e in (part.inbound, part.outbound, part.gather))
    sent_s = [bytes_.seconds(cluster) * part.skew for bytes_ in (inbound, outbound, outbound + gather)]
    if part.spread.rule is Owners.GATHER:
        # An all-gather keeps all ranks' links busy, whoever the owners were.
        sent_s[2] = sent_s[1] + gather.seconds(cluster, part.chunks)
    inbound_s = sent_s[0] + (part.chunks * cluster.latency_s if inbound.total else 0.0)
    sent = part.outbound.total + part.gather.total
    momentum = part.parts * touched.momentum + part.inbound.total * touched.inbound
    momentum += part.owned * part.kind.numel * touched.owned
    apply = part.parts * touched.apply + sent * touched.outbound
    return Phases(
        exchange=part,
        momentum_s=momentum / cluster.memory_bandwidth,
        inbound=inbound,
        inbound_s=inbound_s,
        ns_s=part.owned * seconds,
        outbound=outbound,
        gather=gather,
        outbound_s=sent_s[2] + part.chunks * cluster.latency_s,
        apply_s=apply / cluster.memory_bandwidth,
    )


def _bytes(elements: Bytes, itemsize: int) -> Bytes:
    return Bytes(elements.node * itemsize, elements.network * itemsize)
