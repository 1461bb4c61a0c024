"""The optimizer's state goes through a file that holds tensors and plain values alone."""

from __future__ import annotations

from pathlib import Path

import torch

from trainer.muon import Muon
from trainer.muon_options import Options, Scale


def optimizer_of(weights: dict[str, torch.nn.Parameter]) -> Muon:
    groups = [
        {"algorithm": "muon", "params": [("w", weights["w"])], "lr": 0.1},
        {"algorithm": "adamw", "params": [("b", weights["b"])], "lr": 0.01},
    ]
    return Muon(groups, scale=Scale.MUP, options=Options(ns_dtype=torch.float32))


def weights() -> dict[str, torch.nn.Parameter]:
    torch.manual_seed(0)
    return {"w": torch.nn.Parameter(torch.randn(6, 8)), "b": torch.nn.Parameter(torch.randn(5))}


def steps(optimizer: Muon, named: dict[str, torch.nn.Parameter], which: range) -> None:
    for step in which:
        for i, weight in enumerate(named.values()):
            weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(10 * step + i))
        optimizer.step()


def test_a_run_goes_on_from_a_saved_state_with_the_same_bits(tmp_path: Path) -> None:
    whole = weights()
    undisturbed = optimizer_of(whole)
    steps(undisturbed, whole, range(4))

    first = weights()
    optimizer = optimizer_of(first)
    steps(optimizer, first, range(2))
    torch.save(({name: w.data for name, w in first.items()}, optimizer.state_dict()), tmp_path / "state.pt")

    tensors, state = torch.load(tmp_path / "state.pt", weights_only=True)
    second = {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()}
    optimizer = optimizer_of(second)
    optimizer.load_state_dict(state)
    steps(optimizer, second, range(2, 4))
    assert all(torch.equal(whole[name], second[name]) for name in whole)
