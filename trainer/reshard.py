"""From shards to whole matrices and back: which rank computes which matrix, and two packed all-to-alls.

Units of one shape on one set of ranks make *chunks*: an owner for each unit, one all-to-all that brings the parts of
the units to their owners as whole matrices, and one that takes the results back into the original layout. For an
m x n unit over S shards that moves 2 (S-1)/S m n elements, the least that is possible where one rank computes and the
layout is kept. A unit that lies whole on a rank is computed there and nothing is sent.

Imports torch alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.units import Part, Unit, part_of


@dataclass(frozen=True, slots=True)
class Chunk:
    """Units of one shape and one layout's ranks that travel together, each with the index of its owner in ``ranks``.

    ``owners`` is None where every holder computes for itself and nothing is sent.
    """

    ranks: tuple[int, ...]
    units: tuple[Unit, ...]
    owners: tuple[int, ...] | None

    @property
    def whole(self) -> bool:
        """Whether the units lie whole on their owners, so that only results travel, if anything."""
        return bool(self.units[0].holders())

    @property
    def name(self) -> str:
        """For messages and traces."""
        first, *others = (unit.parameter for unit in self.units)
        rows, cols = self.units[0].shape
        return f"{len(self.units)} x [{rows}, {cols}] from {first}" + (f" to {others[-1]}" if others else "")


def plan(
    units: Iterable[Unit], *, cost: Callable[[int, int], int], chunk_bytes: int, wire: torch.dtype, split_whole: bool
) -> list[Chunk]:
    """Owners by least load, ``cost`` of a shape being a unit's work, and chunks of at most ``chunk_bytes`` an owner.

    The same on every rank that has these units: nothing but the units decides, not even their order. Units of several
    layouts on the same ranks share their loads. With ``split_whole``, replicas of a unit that is whole on a rank
    share the work and send each other the result; else each computes it.
    """
    groups: dict[tuple[object, ...], list[Unit]] = {}
    for unit in sorted(units, key=lambda unit: (unit.parameter, unit.box.lo)):
        whole = bool(unit.holders())
        stays = whole and (unit.layout.n_replicas == 1 or not split_whole)
        where = (unit.layout.ranks, unit.layout.placements, whole, stays)
        groups.setdefault((-cost(*unit.shape), unit.group, unit.shape, str(unit.dtype), *where), []).append(unit)
    loads: dict[tuple[int, ...], list[int]] = {}
    chunks: list[Chunk] = []
    for key in sorted(groups):
        members, stays = groups[key], bool(key[-1])
        ranks, shape = members[0].layout.ranks, members[0].shape
        load = loads.setdefault(ranks, [0] * len(ranks))
        at_once = max(1, chunk_bytes // (math.prod(shape) * wire.itemsize))
        if stays:
            for unit in members:
                for holder in unit.holders():
                    load[holder] += cost(*shape)
            chunks += [Chunk(ranks, tuple(part), None) for part in _parts_by_holder(members, at_once)]
        else:
            owned: dict[int, list[Unit]] = {}
            for unit in members:
                owner = _least_loaded(unit, load)
                load[owner] += cost(*shape)
                owned.setdefault(owner, []).append(unit)
            chunks += _exchanges(ranks, owned, at_once)
    return chunks


def _least_loaded(unit: Unit, load: Sequence[int]) -> int:
    """Of the ranks that may own it, the one with the least work, then with the largest part of it."""
    allowed = unit.holders() or range(len(load))
    return min(allowed, key=lambda i: (load[i], -unit.layout.boxes[i].meet(unit.box).numel, i))


def _parts_by_holder(units: Sequence[Unit], at_once: int) -> list[list[Unit]]:
    """Chunks in which no holder has more than ``at_once`` units."""
    counts: dict[int, int] = {}
    parts: dict[int, list[Unit]] = {}
    for unit in units:
        first = unit.holders()[0]
        parts.setdefault(counts.get(first, 0) // at_once, []).append(unit)
        counts[first] = counts.get(first, 0) + 1
    return [parts[i] for i in sorted(parts)]


def _exchanges(ranks: tuple[int, ...], owned: dict[int, list[Unit]], at_once: int) -> list[Chunk]:
    chunks = []
    for start in range(0, max(map(len, owned.values())), at_once):
        pairs = [(unit, owner) for owner in sorted(owned) for unit in owned[owner][start : start + at_once]]
        chunks.append(Chunk(ranks, tuple(u for u, _ in pairs), tuple(o for _, o in pairs)))
    return chunks


@dataclass(frozen=True, slots=True)
class Route:
    """A part on its way: the unit's position in the chunk, and the part of it that lies on the other rank or here."""

    position: int
    part: Part


class Exchange:
    """One rank's side of a chunk. ``mine`` maps the positions of units to this rank's parts of them, ``owned`` lists
    the positions of those whose matrices it computes.

    Both all-to-alls send, for every rank of the group in order, the parts that concern the two, in the chunk's order.
    A part whose owner is this rank is copied, not sent. An owner takes parts from its own replica alone, and answers
    all replicas.
    """

    def __init__(self, chunk: Chunk, me: int, wire: torch.dtype, device: torch.device) -> None:
        self.chunk, self.me, self.wire, self.device = chunk, me, wire, device
        owners = chunk.owners or tuple(me if me in unit.holders() else -1 for unit in chunk.units)
        self.owned = [i for i, owner in enumerate(owners) if owner == me]
        self.mine: dict[int, Part] = {}
        n = len(chunk.ranks)
        self._gives, self._takes = _routes(n), _routes(n)
        self._answers, self._awaits = _routes(n), _routes(n)
        for position, (unit, owner) in enumerate(zip(chunk.units, owners, strict=True)):
            part = part_of(unit, me)
            if part is not None and owner >= 0:
                self.mine[position] = part
            if owner == me and chunk.owners is not None:
                self._own(position, unit)
            elif position in self.mine and owner != me:
                if unit.layout.replicas[owner] == unit.layout.replicas[me]:
                    self._gives[owner].append(Route(position, self.mine[position]))
                self._awaits[owner].append(Route(position, self.mine[position]))

    def _own(self, position: int, unit: Unit) -> None:
        for other in range(len(self.chunk.ranks)):
            part = part_of(unit, other)
            if part is None or other == self.me:
                continue
            if unit.layout.replicas[other] == unit.layout.replicas[self.me]:
                self._takes[other].append(Route(position, part))
            self._answers[other].append(Route(position, part))

    @property
    def inbound(self) -> tuple[list[int], list[int]]:
        """Elements sent to and received from every rank by the first all-to-all."""
        return _sizes(self._gives), _sizes(self._takes)

    @property
    def outbound(self) -> tuple[list[int], list[int]]:
        """Elements sent to and received from every rank by the second all-to-all."""
        return _sizes(self._answers), _sizes(self._awaits)

    def pack(self, parts: dict[int, Tensor]) -> Tensor:
        """The first send buffer, [elements] of the wire's dtype, from this rank's parts by position."""
        routes = [route for routes in self._gives for route in routes]
        return self._packed([(route, parts[route.position]) for route in routes])

    def assemble(self, received: Tensor, parts: dict[int, Tensor]) -> Tensor:
        """The matrices of ``owned``, [k, m, n] of the wire's dtype."""
        matrices = received.new_empty((len(self.owned), *self.chunk.units[0].shape))
        slots = {position: slot for slot, position in enumerate(self.owned)}
        routes = [route for routes in self._takes for route in routes]
        kept = [Route(position, self.mine[position]) for position in self.owned if position in self.mine]
        targets = [matrices[slots[route.position]][route.part.inner] for route in routes + kept]
        _copy(targets, [*_views(received, routes), *(parts[route.position] for route in kept)])
        return matrices

    def pack_results(self, results: Tensor) -> Tensor:
        """The second send buffer, from the results [k, m, n] for ``owned``."""
        slots = {position: slot for slot, position in enumerate(self.owned)}
        routes = [route for routes in self._answers for route in routes]
        pairs = [(route, results[slots[route.position]][route.part.inner]) for route in routes]
        return self._packed(pairs)

    def results(self, received: Tensor, results: Tensor) -> dict[int, Tensor]:
        """The results' parts for ``mine`` by position, of the wire's dtype: views of ``received`` and ``results``."""
        routes = [route for routes in self._awaits for route in routes]
        parts = {route.position: view for route, view in zip(routes, _views(received, routes), strict=True)}
        for slot, position in enumerate(self.owned):
            if position in self.mine:
                parts[position] = results[slot][self.mine[position].inner]
        return parts

    def buffer(self, n_elements: int) -> Tensor:
        """An empty buffer, [n_elements] of the wire's dtype."""
        return torch.empty(n_elements, dtype=self.wire, device=self.device)

    def _packed(self, pairs: Sequence[tuple[Route, Tensor]]) -> Tensor:
        routes = [route for route, _ in pairs]
        buffer = self.buffer(sum(math.prod(route.part.shape) for route in routes))
        _copy(_views(buffer, routes), [tensor for _, tensor in pairs])
        return buffer


def _routes(n: int) -> list[list[Route]]:
    return [[] for _ in range(n)]


def _sizes(routes: Iterable[Iterable[Route]]) -> list[int]:
    return [sum(math.prod(route.part.shape) for route in to_one) for to_one in routes]


def _views(buffer: Tensor, routes: Sequence[Route]) -> list[Tensor]:
    shapes = [route.part.shape for route in routes]
    pieces = torch.split(buffer, [math.prod(shape) for shape in shapes]) if shapes else ()
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)
