"""Sharded Muon has the bits of Muon on one process, whatever the mesh, the placements and the units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from muon_cases import Case, Weight, assert_equal_bits
from ranks import Ranks

from trainer.newton_schulz import POLAR_EXPRESS
from trainer.units import Split


@pytest.fixture(scope="module", params=[2, 3, 4, 8])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param) as pool:
        yield pool


def mixed(n: int) -> tuple[Weight, ...]:
    """Mixed shapes, uneven and empty shards, unaligned heads on either dim, GQA, experts, fused parts, replicas,
    two meshes of equal size, missing gradients, and AdamW beside."""
    line, heads = (n,), Split(-2, (12,) * 5)
    half = (2, n // 2) if n % 2 == 0 else (1, n)
    return (
        Weight((24, 40), line, (0,)),
        Weight((40, 24), line, (0,)),
        Weight((24, 40), line, (1,)),
        Weight((10, 32), line, (0,)),
        Weight((3, 16), line, (0,)),
        Weight((1, 16), line, (0,)),
        Weight((60, 32), line, (0,), split=heads),
        Weight((24, 32), line, (0,), split=Split(-2, (12, 12))),
        Weight((32, 60), line, (0,), split=Split(-1, (12,) * 5)),
        Weight((32, 60), line, (1,), split=Split(-1, (12,) * 5)),
        Weight((56, 32), line, (0,), split=Split(-2, (16, 12) * 2)),
        Weight((6, 16, 24), line, (0,)),
        Weight((5, 32, 24), line, (1,), split=Split(-2, (16, 16))),
        Weight((24, 40), half, (None, 0)),
        Weight((24, 40), half, (0, 1)),
        Weight((8, 16, 24), half, (0, 1), missing=(1,)),
        Weight((24, 40), half, (None, None)),
        Weight((24, 40), (n, 1), (0, None)),
        Weight((24, 40)),
        Weight((30, 20), line, (0,), missing=(0, n - 1)),
        Weight((30, 20), line, (0,), missing=tuple(range(n))),
        Weight((33, 7), line, (0,), algorithm="adamw"),
        Weight((19,), line, (0,), algorithm="adamw", missing=(0,)),
        Weight((19,), algorithm="adamw"),
    )


@pytest.mark.parametrize(
    "options",
    [
        {"ns_dtype": torch.float32},
        {"ns_dtype": torch.float32, "wire_dtype": torch.bfloat16, "schedule": POLAR_EXPRESS},
        {"ns_dtype": torch.bfloat16, "wire_dtype": torch.bfloat16, "chunk_bytes": 1, "in_flight": 1},
        {"ns_dtype": torch.float32, "chunk_bytes": 6000, "in_flight": 2, "split_whole": True},
    ],
    ids=["fp32", "bf16-wire", "bf16-one-at-a-time", "small-chunks"],
)
def test_mixed_parameters_have_the_references_bits(ranks: Ranks, options: dict[str, Any]) -> None:
    assert_equal_bits(ranks, Case(mixed(ranks.n), options, {"weight_decay": 0.1}))


EQUAL_SIZES = {4: [(2, 2)], 8: [(2, 4), (4, 2), (2, 2, 2)]}


@pytest.mark.parametrize("ranks", EQUAL_SIZES, indirect=True)
def test_meshes_of_equal_size_do_not_mix(ranks: Ranks) -> None:
    """The axes of one mesh in one optimizer, of one size or not: each weight goes to its own neighbours alone."""
    shapes = ((24, 40), (7, 16), (6, 8, 12))
    for sizes in EQUAL_SIZES[ranks.n]:
        weights = [Weight(shape, sizes, (0,), axis=axis) for axis in range(len(sizes)) for shape in shapes]
        weights.append(Weight((24, 40), sizes, (0,) * len(sizes)))
        assert_equal_bits(ranks, Case(tuple(weights), {"ns_dtype": torch.float32, "chunk_bytes": 1}))


@pytest.mark.parametrize("ranks", EQUAL_SIZES, indirect=True)
def test_ranks_may_have_other_chunks_before_those_that_they_share(ranks: Ranks) -> None:
    """Experts and shared experts of one shape: the first lie on lines of the mesh, the second on all of it, so that
    the chunks of some lines come before the common ones and those of others after."""
    for sizes in EQUAL_SIZES[ranks.n]:
        common = [Weight((16, 24), sizes, (0,) * len(sizes)) for _ in range(4 * ranks.n)]
        lines = [Weight((4, 16, 24), sizes, (1,), axis=len(sizes) - 1) for _ in range(3)]
        assert_equal_bits(ranks, Case((*common, *lines), {"ns_dtype": torch.float32, "chunk_bytes": 1}))
