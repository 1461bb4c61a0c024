"""Bit-equality for drawn shapes, meshes, placements and units."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from muon_cases import Case, Weight, assert_equal_bits
from ranks import Ranks

from trainer.units import Split

N = 8


@pytest.fixture(scope="module")
def eight() -> Iterator[Ranks]:
    with Ranks(N) as pool:
        yield pool


@st.composite
def weights(draw: st.DrawFn) -> Weight:
    lead = draw(st.lists(st.integers(1, 5), max_size=1))
    matrix = draw(st.lists(st.integers(1, 48), min_size=2, max_size=2))
    shape = (*lead, *matrix)
    mesh = draw(st.sampled_from([(), (8,), (2, 4), (4, 2), (2, 2, 2)]))
    dims = tuple(draw(st.none() | st.integers(0, len(shape) - 1)) for _ in mesh)
    algorithm = draw(st.sampled_from(["muon", "muon", "muon", "adamw"]))
    split = draw(st.none() | splits(shape)) if algorithm == "muon" else None
    return Weight(shape, mesh, dims, split, algorithm)


@st.composite
def splits(draw: st.DrawFn, shape: tuple[int, ...]) -> Split:
    dim = draw(st.sampled_from([-1, -2]))
    ends = draw(st.lists(st.integers(1, shape[dim]), max_size=4, unique=True).map(sorted))
    edges = [0, *(end for end in ends if end < shape[dim]), shape[dim]]
    return Split(dim, tuple(b - a for a, b in itertools.pairwise(edges)))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    drawn=st.lists(weights(), min_size=1, max_size=6),
    wire=st.sampled_from([torch.float32, torch.bfloat16]),
    chunk_bytes=st.sampled_from([1, 4096, 2**20]),
    in_flight=st.integers(1, 4),
    split_whole=st.booleans(),
    nesterov=st.booleans(),
    scale=st.sampled_from(["torch", "moonlight", "mup"]),
)
def test_drawn_parameters_have_the_references_bits(
    eight: Ranks,
    drawn: list[Weight],
    wire: torch.dtype,
    chunk_bytes: int,
    in_flight: int,
    split_whole: bool,
    nesterov: bool,
    scale: str,
) -> None:
    options = {"ns_dtype": torch.float32, "wire_dtype": wire, "chunk_bytes": chunk_bytes, "in_flight": in_flight}
    case = Case(tuple(drawn), {**options, "split_whole": split_whole}, {"nesterov": nesterov, "scale": scale}, steps=2)
    assert_equal_bits(eight, case)
