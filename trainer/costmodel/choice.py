"""Which owners are quickest, and on which clusters a step takes no longer than it may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainer.costmodel.kernels import Kernel
from trainer.costmodel.memory import Memory, memory
from trainer.costmodel.owners import Owners
from trainer.costmodel.settings import Experts, Plan
from trainer.costmodel.step import Step, price
from trainer.meshes import MeshError, MeshSizes

LARGEST = 65_536  # GPUs; no search goes beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice of owners, what it costs, and whether the trainer can be told to make it."""

    plan: Plan
    step: Step
    memory: Memory

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.plan.cluster.memory_bytes

    @property
    def in_trainer(self) -> bool:
        """As far as owners go; kernels are told apart by ``Kernel.in_trainer``."""
        meshes = self.plan.meshes
        replicas = meshes.dp_replicate > 1 or (meshes.expert_replicate > 1 and self.plan.model.experts > 0)
        return not self.plan.shard_inside and (not replicas or self.plan.owners is Owners.ALL)

    @property
    def others(self) -> str:
        """Where all else is computed."""
        if self.plan.meshes.dp_replicate > 1:
            return str(self.plan.owners)
        return f"cut over all {self.plan.meshes.world} ranks"

    @property
    def where(self) -> str:
        """Where experts are computed."""
        if not self.plan.model.experts:
            return "no experts"
        if self.plan.experts is not Experts.GROUP:
            return str(self.plan.experts)
        node = self.plan.cluster.gpus_per_node
        stride = 1 if self.plan.shard_inside else self.plan.meshes.ep
        local = self.plan.meshes.wide_shard * stride <= node
        return f"{self.plan.experts}, {'within' if local else 'across'} nodes"


def choices(plan: Plan) -> list[Choice]:
    """All that differ, the best first: those that fit into memory, by time, then the others.

    Beside the plan's meshes, one without copies of the non-expert weights. What its gathers of weights cost in the
    forward and the backward pass is no part of an optimizer step.
    """
    uncopied = replace(plan.meshes, dp_replicate=1, fsdp_shard=0)
    meshes = [plan.meshes] if plan.meshes.dp_replicate == 1 else [plan.meshes, uncopied]
    return sorted(
        (
            priced(replace(plan, meshes=mesh, owners=rule, experts=where, shard_inside=inside))
            for mesh in meshes
            for rule in _rules(plan, mesh)
            for where, inside in _layouts(plan)
        ),
        key=lambda choice: (not choice.fits, choice.step.step_s),
    )


def _rules(plan: Plan, meshes: MeshSizes) -> list[Owners]:
    replicas = meshes.dp_replicate > 1 or (meshes.expert_replicate > 1 and plan.model.experts > 0)
    return list(Owners) if replicas else [Owners.ALL]


def _layouts(plan: Plan) -> list[tuple[Experts, bool]]:
    """Where experts may lie; and whether their shards are neighbours, where ep is a mesh axis to change places with."""
    if not plan.model.experts or plan.meshes.wide_shard == 1:
        return [(Experts.GROUP, False)]
    swapped = [(Experts.GROUP, True), (Experts.MESH, False)] if plan.meshes.ep > 1 else []
    return [(Experts.GROUP, False), *swapped, (Experts.WHOLE, False)]


def priced(plan: Plan) -> Choice:
    """A plan's own choice."""
    step = price(plan)
    return Choice(plan=plan, step=step, memory=memory(step))


def resized(plan: Plan, gpus: int) -> Plan | None:
    """The plan on another number of GPUs: more copies of the non-expert weights; experts over more ranks of ep while
    these divide them, then over more shards. None if there is no such mesh."""
    m = plan.meshes
    shard = m.wide_shard
    while plan.model.experts and shard <= gpus:
        ep, rest = divmod(gpus, shard * m.expert_replicate)
        if not rest and ep and plan.model.experts % ep == 0:
            break
        shard *= 2
    else:
        ep, shard = 1, 0
    copies, rest = divmod(gpus, m.narrow_shard)
    if rest or not copies or (plan.model.experts and not shard):
        return None
    try:
        sizes = MeshSizes(world=gpus, dp_replicate=copies, cp=m.cp, ep=ep, expert_shard=shard)
    except MeshError:
        return None
    return replace(plan, meshes=sizes, cluster=replace(plan.cluster, gpus=gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """For one kernel: the best choice on each size of the cluster, the smallest that is quick enough and fits into
    memory, and the least bandwidth between nodes with which it still is; None if there is none."""

    kernel: Kernel
    fused: bool
    tried: tuple[Choice, ...]
    reached: Choice | None
    network_bandwidth: float | None


def answers(plan: Plan, target_s: float, gpus: Sequence[int]) -> list[Answer]:
    """For every kernel, with elementwise steps as the plan has them and fused."""
    modes = sorted({plan.optimizer.fused, True})
    return [_answer(plan, kernel, fused, target_s, gpus) for fused in modes for kernel in Kernel]


def sizes_around(plan: Plan) -> list[int]:
    """Clusters from a quarter of the plan's to eight times it."""
    gpus = plan.cluster.gpus
    around = [gpus // 4, gpus // 2, gpus, 2 * gpus, 4 * gpus, 8 * gpus]
    return [n for n in around if 1 <= n <= LARGEST and resized(plan, n) is not None]


def _answer(plan: Plan, kernel: Kernel, fused: bool, target_s: float, gpus: Sequence[int]) -> Answer:
    plan = replace(plan, optimizer=replace(plan.optimizer, kernel=kernel, fused=fused))
    tried = [choices(sized)[0] for n in gpus if (sized := resized(plan, n)) is not None]
    reached = next((c for c in tried if c.fits and c.step.step_s <= target_s), None)
    least = _least_bandwidth(reached, target_s) if reached else None
    return Answer(kernel=kernel, fused=fused, tried=tuple(tried), reached=reached, network_bandwidth=least)


def _least_bandwidth(choice: Choice, target_s: float) -> float:
    """By bisection to a percent, with this choice of owners; 0 if nothing leaves a node."""
    if not sum(choice.step.bytes(phase).network for phase in ("inbound", "outbound", "gather")):
        return 0.0
    low, high = choice.plan.cluster.network_bandwidth * 1e-3, choice.plan.cluster.network_bandwidth
    while high > 1.01 * low:
        middle = (low * high) ** 0.5
        slower = replace(choice.plan, cluster=replace(choice.plan.cluster, network_bandwidth=middle))
        if price(slower).step_s <= target_s:
            high = middle
        else:
            low = middle
    return high
