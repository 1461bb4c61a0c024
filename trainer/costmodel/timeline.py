"""When each chunk is on the network and when in Newton-Schulz: the trainer's own pipeline, on a clock of its own.

Computation runs in one order, as on one stream of a GPU; transfers run one after the other in the order in which they
are started, beside it. Waiting for a transfer is all that holds computation up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from trainer.costmodel.step import Phases, Step
from trainer.pipeline import run, spread


class Lane(StrEnum):
    """What a bar of the timeline is."""

    INBOUND = "network in"
    NS = "Newton-Schulz"
    OUTBOUND = "network out"
    ELEMENTWISE = "elementwise"


@dataclass(frozen=True, slots=True)
class Bar:
    """From ``start_s`` to ``end_s``, of the chunk with this number."""

    lane: Lane
    start_s: float
    end_s: float
    chunk: int


@dataclass(slots=True)
class _Clock:
    now: float = 0.0
    network: float = 0.0  # when it will be free
    bars: list[Bar] = field(default_factory=list)

    def compute(self, lane: Lane, seconds: float, chunk: int) -> None:
        if seconds:
            self.bars.append(Bar(lane, self.now, self.now + seconds, chunk))
        self.now += seconds

    def transfer(self, lane: Lane, seconds: float, chunk: int) -> float:
        start = max(self.now, self.network)
        self.network = start + seconds
        if seconds:
            self.bars.append(Bar(lane, start, self.network, chunk))
        return self.network

    def wait(self, until: float) -> None:
        self.now = max(self.now, until)


def timeline(step: Step) -> list[Bar]:
    """All bars of one rank's step, in the order in which they begin."""
    clock = _Clock()
    network: list[Iterator[None]] = []
    local: list[Iterator[None]] = []
    number = 0
    for phases in step.phases:
        part = phases.exchange
        n = part.chunks or math.ceil(math.ceil(part.owned) / part.at_once)
        for _ in range(n):
            (network if part.sends else local).append(_chunk(phases, 1 / n, number, clock))
            number += 1
    local.append(_adamw(step.adamw_s, number, clock))
    run(spread(network, local), step.plan.optimizer.in_flight)
    return sorted(clock.bars, key=lambda bar: bar.start_s)


def _chunk(phases: Phases, share: float, number: int, clock: _Clock) -> Iterator[None]:
    """As trainer.muon's task of a chunk, with ``share`` of the times of all chunks of its kind."""
    clock.compute(Lane.ELEMENTWISE, phases.momentum_s * share, number)
    if phases.exchange.sends:
        arrived = clock.transfer(Lane.INBOUND, phases.inbound_s * share, number)
        yield
        clock.wait(arrived)
    clock.compute(Lane.NS, phases.ns_s * share, number)
    if phases.exchange.sends:
        answered = clock.transfer(Lane.OUTBOUND, phases.outbound_s * share, number)
        yield
        clock.wait(answered)
    clock.compute(Lane.ELEMENTWISE, phases.apply_s * share, number)


def _adamw(seconds: float, number: int, clock: _Clock) -> Iterator[None]:
    clock.compute(Lane.ELEMENTWISE, seconds, number)
    yield from ()


def ends(bars: Iterable[Bar]) -> float:
    """Seconds until the last bar ends."""
    return max((bar.end_s for bar in bars), default=0.0)
