"""Who computes how much, and how many elements travel: closed forms of what trainer.reshard plans.

With O ranks in a replica among which a unit's owner is chosen, R replicas, and an m x n unit: mn (1 - 1/O) elements
come in, since the owner has mn/O on average; the same goes back inside the replica, and (R - 1) mn to the others.
Exact where every rank has as much of a unit and owns as many; else a mean (tests/trainer/test_costmodel_counted.py).
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from trainer.costmodel.cluster import Bytes, Group
from trainer.costmodel.shapes import Weights
from trainer.newton_schulz import flops


class Owners(StrEnum):
    """Which ranks compute the units that lie on several, where there are replicas.

    ALL, the trainer's: any rank that has the parameter; the owner sends the result to every replica. GATHER: owners
    are chosen alike, but the result goes back inside the owner's replica alone, and from there each rank's part to the
    ranks that have the same part in other replicas, by an all-gather among them. REPLICA: each replica computes for
    itself, and nothing passes between replicas.
    """

    ALL = "over replicas, sent to each"
    GATHER = "over replicas, gathered"
    REPLICA = "each replica for itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Ranks that share parameters: ``replicas``, and in each ``owners`` ranks; every unit is cut over ``shards`` of
    them by rows (1: it is whole on one), the leading dim over ``lead`` outside of this group.

    ``inside`` are the ranks of one replica, ``around`` those of all. ``split_whole`` as in trainer.muon_options.
    """

    replicas: int
    owners: int
    shards: int
    lead: int
    inside: Group
    around: Group
    rule: Owners = Owners.ALL
    split_whole: bool = False

    def __post_init__(self) -> None:
        assert self.inside.size == self.owners and self.around.size == self.replicas * self.owners

    @property
    def sharing(self) -> int:
        """Replicas that share the work."""
        return 1 if self.rule is Owners.REPLICA else self.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Units of one shape on one group of ranks: ``cut`` ones, and ``whole`` ones by index of the rank that has them."""

    shape: tuple[int, int]
    cut: int
    whole: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def cost(self) -> int:
        """What the planner balances; independent of kernel and steps but for a factor."""
        return flops(*self.shape, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One kind of units on one rank, the mean over ranks. Sizes in elements but for units.

    ``owned``: units that it computes; ``inbound`` and ``outbound`` what it sends inside its replica, ``gather`` what
    it sends to others; ``parts``: what it has of the units that travel; ``at_once``: units of an owner in a chunk,
    ``chunks`` how many there are. The busiest owner sends and takes ``skew`` times the mean, and a collective is not
    over before it is done.
    """

    kind: Kind
    owned: float
    parts: float
    inbound: Bytes
    outbound: Bytes
    gather: Bytes
    chunks: int
    at_once: int
    spread: Spread

    @property
    def copies(self) -> int:
        """In how many replicas an owner's result is needed."""
        return self.spread.replicas if self.spread.rule is Owners.ALL else 1

    @property
    def skew(self) -> float:
        return math.ceil(self.owned) / self.owned

    def in_chunk(self, units: int) -> int:
        """The most elements that a rank can have of a chunk in which each owner has ``units``."""
        if not self.sends:
            return units * self.kind.numel
        rows, cols = self.kind.shape
        shard = -(-rows // self.spread.shards) * cols if self.kind.cut else self.kind.numel
        owners = self.spread.owners * self.spread.sharing
        return min(units * owners, max(self.kind.cut, max(self.kind.whole, default=0))) * shard

    @property
    def sends(self) -> bool:
        return self.chunks > 0


def kinds_of(weights: Iterable[Weights], spread: Spread) -> list[Kind]:
    """The kinds of units of one group of ranks, the costliest first, as the planner takes them."""
    cut: dict[tuple[int, int], int] = {}
    whole: dict[tuple[int, int], list[int]] = {}
    for w in weights:
        if not w.muon:
            continue
        if w.expert:
            _stacked(w, spread, cut, whole)
            continue
        step = -(-w.shape[0] // spread.shards)
        for lo, hi, shape in w.edges():
            first = lo // step
            if first == (hi - 1) // step:
                whole.setdefault(shape, [0] * spread.owners)[first] += w.copies
            else:
                cut[shape] = cut.get(shape, 0) + w.copies
    kinds = [
        Kind(shape=shape, cut=cut.get(shape, 0), whole=tuple(whole.get(shape, ())))
        for shape in sorted(cut.keys() | whole.keys())
    ]
    return sorted(kinds, key=lambda kind: -kind.cost)


def _stacked(
    w: Weights, spread: Spread, cut: dict[tuple[int, int], int], whole: dict[tuple[int, int], list[int]]
) -> None:
    experts, *matrix = w.shape
    shape = (matrix[0], matrix[1])
    mine = -(-experts // spread.lead)
    if spread.shards > 1:
        cut[shape] = cut.get(shape, 0) + mine * w.copies
        return
    step = -(-mine // spread.owners)
    loads = whole.setdefault(shape, [0] * spread.owners)
    for rank in range(spread.owners):
        loads[rank] += w.copies * max(0, min(step, mine - rank * step))


def exchange(kind: Kind, spread: Spread, chunk_bytes: int, wire: int) -> list[Exchange]:
    """What the cut units of a kind cost, and what its whole ones do, each if there are any."""
    at_once = max(1, chunk_bytes // (kind.numel * wire))
    found = []
    if kind.cut:
        found.append(_cut(kind, spread, at_once))
    if any(kind.whole):
        found.append(_whole(kind, spread, at_once))
    return found


def _cut(kind: Kind, spread: Spread, at_once: int) -> Exchange:
    n = spread.owners
    owned = kind.cut / (n * spread.sharing)
    moved = owned * kind.numel * (1 - 1 / n)
    parts = kind.cut * kind.numel / n
    return Exchange(
        kind=kind,
        owned=owned,
        parts=parts,
        inbound=_split(moved, spread.inside),
        outbound=_split(moved, spread.inside),
        gather=_to_others(owned * kind.numel, spread),
        chunks=math.ceil(math.ceil(owned) / at_once),
        at_once=at_once,
        spread=spread,
    )


def _whole(kind: Kind, spread: Spread, at_once: int) -> Exchange:
    """Each holder computes its own, and sends nothing; or, with ``split_whole``, replicas take turns."""
    shared = spread.split_whole and spread.sharing > 1
    mean = sum(kind.whole) / spread.owners
    owned = mean / spread.replicas if shared else mean
    return Exchange(
        kind=kind,
        owned=owned,
        parts=mean * kind.numel,
        inbound=Bytes(),
        outbound=Bytes(),
        gather=_to_others(owned * kind.numel if shared else 0.0, spread),
        chunks=math.ceil(math.ceil(owned) / at_once) if shared else 0,
        at_once=at_once,
        spread=spread,
    )


def _split(elements: float, group: Group) -> Bytes:
    """To all ranks of a group alike."""
    near = (group.near - 1) / (group.size - 1) if group.size > 1 else 0.0
    return Bytes(elements * near, elements * (1 - near))


def _to_others(owned: float, spread: Spread) -> Bytes:
    """The results of ``owned`` elements to all other replicas. Gathered or sent, a rank sends as much on average."""
    if spread.sharing == 1:
        return Bytes()
    there = spread.around.size - spread.inside.size
    near = (spread.around.near - spread.inside.near) / there
    elements = owned * (spread.replicas - 1)
    return Bytes(elements * near, elements * (1 - near))


def busiest(kinds: Sequence[Kind], spread: Spread, seconds: Sequence[float]) -> float:
    """Seconds of Newton-Schulz on the rank with the most, if each unit of a kind takes ``seconds``."""
    loads = _assigned(tuple(kinds), spread)
    return max((sum(map(operator.mul, load, seconds)) for load in loads), default=0.0)


@cache
def _assigned(kinds: tuple[Kind, ...], spread: Spread) -> frozenset[tuple[float, ...]]:
    """How many units of each kind a rank computes: what is found on some rank.

    The planner's own rule: the costliest units first, each to the rank with the least work so far.
    """
    n = spread.owners * spread.sharing
    load = [0.0] * n
    units: list[list[float]] = [[] for _ in range(n)]
    for kind in kinds:
        taken = _shares(kind, spread, n)
        load = [value + mine * kind.cost for value, mine in zip(load, taken, strict=True)]
        rounds, rest = divmod(kind.cut, n) if min(load) == max(load) else (0, kind.cut)
        taken = [mine + rounds for mine in taken]
        load = [value + rounds * kind.cost for value in load]
        queue = [(value, rank) for rank, value in enumerate(load)] if rest else []
        heapq.heapify(queue)
        for _ in range(rest):
            value, rank = queue[0]
            heapq.heapreplace(queue, (value + kind.cost, rank))
            load[rank] += kind.cost
            taken[rank] += 1
        for mine, more in zip(units, taken, strict=True):
            mine.append(more)
    return frozenset(map(tuple, units))


def _shares(kind: Kind, spread: Spread, n: int) -> list[float]:
    """Whole units that each rank computes."""
    if not kind.whole:
        return [0.0] * n
    shared = spread.sharing if spread.split_whole else 1
    return [kind.whole[rank % spread.owners] / shared for rank in range(n)]
