"""Bytes on the wire, what is in flight while a rank computes, and what overlap saves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from muon_cases import Case, Weight, groups, lay, splits, values
from ranks import Ranks
from torch import Tensor

from trainer.muon import Muon, all_to_all
from trainer.muon_options import Options
from trainer.newton_schulz import Schedule, newton_schulz
from trainer.reshard import Chunk
from trainer.units import Split

N = 4
FP32 = {"ns_dtype": torch.float32}


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with Ranks(N) as pool:
        yield pool


def ready(case: Case, **more: object) -> Muon:
    """An optimizer over the case's weights, which have gradients."""
    weights = [torch.nn.Parameter(lay(values(i, w.shape), w)) for i, w in enumerate(case.weights)]
    for i, (weight, described) in enumerate(zip(weights, case.weights, strict=True)):
        weight.grad = lay(values(100 + i, described.shape), described)
    return Muon(groups(case, weights), splits=splits(case), options=Options(**case.options), **more)  # type: ignore[arg-type]


def traffic(case: Case) -> tuple[int, int, int]:
    optimizer = ready(case)
    optimizer.step()
    sent = optimizer.traffic
    return sent.inbound_bytes, sent.outbound_bytes, sent.n_collectives


def total(four: Ranks, weights: list[Weight], **options: object) -> tuple[int, int]:
    sent = four.run(traffic, Case(tuple(weights), {**FP32, **options}))
    return sum(inbound for inbound, _, _ in sent), sum(outbound for _, outbound, _ in sent)


@pytest.mark.parametrize(("wire", "n_bytes"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_sharded_matrices_cost_twice_s_minus_one_over_s(four: Ranks, wire: torch.dtype, n_bytes: int) -> None:
    weights = [Weight((16, 24), (N,), (0,)), Weight((16, 24), (N,), (0,)), Weight((24, 64), (N,), (1,))]
    elements = sum(torch.Size(weight.shape).numel() for weight in weights)
    inbound, outbound = total(four, weights, wire_dtype=wire)
    assert inbound == outbound == elements * (N - 1) // N * n_bytes


def test_uneven_shards_cost_what_the_owners_do_not_have(four: Ranks) -> None:
    # Ten rows over four ranks are 3, 3, 3, 1; the owner has three of them.
    assert total(four, [Weight((10, 8), (N,), (0,))]) == (7 * 8 * 4, 7 * 8 * 4)


@pytest.mark.parametrize(
    "weight",
    [
        Weight((16, 24)),
        Weight((16, 24), (N,), (None,)),
        Weight((8, 16, 24), (N,), (0,)),
        Weight((48, 24), (N,), (0,), split=Split(-2, (12,) * 4)),
        Weight((24, 64), (N,), (1,), split=Split(-1, (8,) * 8)),
        Weight((8, 16, 24), (2, 2), (None, 0)),
    ],
    ids=["plain", "replicated", "experts", "aligned-heads", "aligned-columns", "replicated-experts"],
)
def test_what_is_whole_on_a_rank_costs_nothing(four: Ranks, weight: Weight) -> None:
    sent = four.run(traffic, Case((weight,), FP32))
    assert sent == [(0, 0, 0)] * N


def test_replicas_share_the_work_and_send_results_alone(four: Ranks) -> None:
    """Two shards, two replicas: (S-1)/S of a matrix goes in, (R S - 1)/S of it come out."""
    elements = 16 * 24
    assert total(four, [Weight((16, 24), (2, 2), (None, 0))]) == (elements // 2 * 4, elements * 3 // 2 * 4)


def test_whole_matrices_of_replicas_can_be_shared_too(four: Ranks) -> None:
    """Each result goes to the three others; nothing goes in."""
    weights = [Weight((16, 24), (N,), (None,))] * N
    assert total(four, weights, split_whole=True) == (0, N * 16 * 24 * 4 * (N - 1))


def test_owners_are_balanced_by_work(four: Ranks) -> None:
    """Each rank computes as many of the equal matrices, and the big one keeps its owner from the small ones."""
    weights = [Weight((64, 64), (N,), (0,))] + [Weight((16, 16), (N,), (0,))] * 6
    computed = four.run(shapes_computed, Case(tuple(weights), FP32))
    assert sorted(sorted(shapes) for shapes in computed) == [[(16, 16)] * 2] * 3 + [[(64, 64)]]


def shapes_computed(case: Case) -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = []

    def kernel(x_BMN: Tensor, schedule: Schedule, dtype: torch.dtype) -> Tensor:
        shapes.extend([tuple(x_BMN.shape[1:])] * len(x_BMN))
        return newton_schulz(x_BMN, schedule, dtype)

    optimizer = ready(Case(case.weights, {**case.options, "kernel": kernel}))
    optimizer.step()
    return shapes


# One stack of experts, each cut over the ranks: a single group of equal shapes.
EXPERTS = Case((Weight((24, 16, 24), (N,), (1,)),), {**FP32, "chunk_bytes": 2 * 16 * 24 * 4})


def events(case: Case) -> list[tuple[str, int]]:
    seen: list[tuple[str, int]] = []
    numbers: dict[Chunk, int] = {}
    optimizer = ready(case, observe=lambda event, chunk: seen.append((event, numbers.setdefault(chunk, len(numbers)))))
    optimizer.step()
    return seen


def test_collectives_of_one_chunk_are_in_flight_while_another_computes(four: Ranks) -> None:
    for seen in four.run(events, EXPERTS):
        in_flight: set[tuple[str, int]] = set()
        beside: list[set[tuple[str, int]]] = []
        for event, chunk in seen:
            if event in ("inbound", "outbound"):
                in_flight.add((event, chunk))
            elif event == "compute":
                in_flight.discard(("inbound", chunk))
                beside.append(set(in_flight))
            else:
                in_flight.discard(("outbound", chunk))
            assert len({number for _, number in in_flight}) <= 3
        assert len(beside) == 3, "24 experts over four owners, two at a time"
        assert beside == [{("inbound", 1), ("inbound", 2)}, {("inbound", 2), ("outbound", 0)}, {("outbound", 1)}]


@dataclass
class Clock:
    now: float = 0.0


@dataclass
class Late:
    """A collective on a network that takes ``delay`` of the clock's time."""

    work: dist.Work
    clock: Clock
    ends: float

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.clock.now = max(self.clock.now, self.ends)
        return bool(self.work.wait())


def simulated(case: Case, delay: float, compute: float) -> float:
    clock = Clock()

    def transport(
        received: Tensor, sent: Tensor, received_sizes: list[int], sent_sizes: list[int], group: dist.ProcessGroup
    ) -> Late:
        return Late(all_to_all(received, sent, received_sizes, sent_sizes, group), clock, clock.now + delay)

    def kernel(x_BMN: Tensor, schedule: Schedule, dtype: torch.dtype) -> Tensor:
        clock.now += compute
        return newton_schulz(x_BMN, schedule, dtype)

    ready(Case(case.weights, {**case.options, "kernel": kernel}), transport=transport).step()
    return clock.now


@pytest.mark.parametrize(("in_flight", "expected"), [(1, 3 * (1 + 1 + 1)), (3, 1 + 3 * 1 + 1)])
def test_a_slow_network_hides_behind_the_computation(four: Ranks, in_flight: int, expected: float) -> None:
    """Three chunks, one unit of time for each transfer and computation: nine in turn, five when overlapped."""
    case = Case(EXPERTS.weights, {**EXPERTS.options, "in_flight": in_flight})
    assert four.run(simulated, case, 1.0, 1.0) == [expected] * N
