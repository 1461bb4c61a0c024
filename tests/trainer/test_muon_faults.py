"""What goes wrong on one rank is an error on all, soon, with a name."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from muon_cases import Case, Weight, groups, lay, splits, values
from ranks import Ranks

from trainer.agreement import NonFiniteGradient, PlanMismatch
from trainer.collectives import CollectiveFailed
from trainer.muon import Muon
from trainer.muon_options import Options
from trainer.units import Split

N = 3
CASE = Case((Weight((12, 20), (N,), (0,)), Weight((20, 12), (N,), (0,)), Weight((7,), (N,), (0,), algorithm="adamw")))


def optimizer_of(case: Case, **options: Any) -> Muon:  # noqa: ANN401
    weights = [torch.nn.Parameter(lay(values(i, w.shape), w)) for i, w in enumerate(case.weights)]
    for i, (weight, described) in enumerate(zip(weights, case.weights, strict=True)):
        weight.grad = lay(values(100 + i, described.shape), described)
    return Muon(groups(case, weights), splits=splits(case), options=Options(ns_dtype=torch.float32, **options))


def said(optimizer: Muon) -> tuple[str, str, float]:
    """The kind and text of the error that a step raises, and the seconds that it took."""
    started = time.monotonic()
    try:
        optimizer.step()
    except (CollectiveFailed, PlanMismatch, NonFiniteGradient) as error:
        return type(error).__name__, str(error), time.monotonic() - started
    return "nothing", "", time.monotonic() - started


def with_a_bad_gradient(bad: float) -> tuple[tuple[str, str, float], bool]:
    optimizer = optimizer_of(CASE)
    optimizer.step()
    before = [tensor.full_tensor().clone() for state in optimizer.state.values() for tensor in tensors(state)]
    if dist.get_rank() == 1:
        optimizer.param_groups[0]["params"][1].grad.to_local()[0, 0] = bad
    error = said(optimizer)
    after = [tensor.full_tensor() for state in optimizer.state.values() for tensor in tensors(state)]
    return error, all(map(torch.equal, before, after))


def tensors(state: dict[str, Any]) -> list[Any]:
    return [value for key, value in state.items() if key != "step"]


def disagreeing(what: str) -> tuple[str, str, float]:
    me = dist.get_rank()
    if what == "split" and me == 2:
        return said(
            optimizer_of(Case((CASE.weights[0], Weight((20, 12), (N,), (0,), Split(-2, (10, 10))), CASE.weights[2])))
        )
    if what == "missing" and me == 2:
        return said(optimizer_of(Case(CASE.weights[:1])))
    if what == "settings" and me == 2:
        return said(optimizer_of(CASE, wire_dtype=torch.bfloat16))
    return said(optimizer_of(CASE))


def failing(how: str) -> tuple[str, str, float]:
    optimizer = optimizer_of(CASE, check_finite=how == "flag", timeout=timedelta(seconds=3))
    optimizer.step()
    if dist.get_rank() == 1:
        if how == "lags":
            time.sleep(12)
            return "nothing", "", 0.0
        os._exit(1)
    return said(optimizer)


def test_nan_and_infinity_never_reach_a_momentum_buffer() -> None:
    with Ranks(N) as pool:
        for bad in (float("nan"), float("inf")):
            for (kind, text, _), untouched in pool.run(with_a_bad_gradient, bad):
                assert kind == "NonFiniteGradient"
                assert "rank 1: w1" in text and "rank 0" not in text
                assert untouched


def test_ranks_that_disagree_are_told_the_parameter() -> None:
    with Ranks(N) as pool:
        for what, name in (("split", "w1"), ("missing", "w1"), ("settings", "the optimizer's settings")):
            texts = set()
            for kind, text, _ in pool.run(disagreeing, what):
                assert kind == "PlanMismatch"
                assert name in text
                texts.add(text)
            assert len(texts) == 1, "all ranks say the same"


@pytest.mark.parametrize(
    ("how", "collective"),
    [("dies", "inbound all-to-all of"), ("lags", "inbound all-to-all of"), ("flag", "all-reduce of whether")],
)
def test_a_rank_that_dies_or_lags_is_an_error_that_names_the_collective(how: str, collective: str) -> None:
    with Ranks(N, timeout_s=8) as pool:
        outcomes = pool.outcomes(failing, how)
    for rank in (0, 2):
        fine, answer = outcomes[rank]
        assert fine, answer
        kind, text, seconds = answer
        assert kind == "CollectiveFailed" and text.startswith(collective), text
        assert seconds < 10, "within the timeout"


@pytest.mark.parametrize(
    ("group", "splits", "message"),
    [
        ({"params": [torch.nn.Parameter(torch.zeros(2, 2))]}, {}, "pairs"),
        ({"params": [("norm", torch.nn.Parameter(torch.zeros(3)))]}, {}, "norm: Muon is for matrices"),
        ({"params": [("q", torch.nn.Parameter(torch.zeros(6, 2)))]}, {"q": Split(-2, (4, 4))}, "q: .* add up to 8"),
        ({"params": [("q", torch.nn.Parameter(torch.zeros(6, 2)))]}, {"k": Split(-2, (3, 3))}, "not among .* k"),
        ({"params": [("q", torch.nn.Parameter(torch.zeros(6, 2)))], "algorithm": "sgd"}, {}, "'sgd'"),
    ],
)
def test_wrong_groups_are_refused(group: dict[str, Any], splits: dict[str, Split], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Muon([group], splits=splits)
