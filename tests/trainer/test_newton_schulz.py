"""Newton-Schulz: known singular values, exact kernels, and agreement with torch's own Muon."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainer.muon_reference import MuonReference
from trainer.newton_schulz import (
    CLASSIC,
    CONVERGENT,
    POLAR_EXPRESS,
    QUINTIC,
    Schedule,
    batched,
    flops,
    gram,
    newton_schulz,
    separate,
)

LIFTED = [
    "newton_schulz",
    "units",
    "reshard",
    "pipeline",
    "collectives",
    "agreement",
    "adamw",
    "muon_options",
    "ways",
    "muon",
]


def gaussian(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("schedule", "low", "high"),
    [(CLASSIC, 0.68, 1.135), (QUINTIC, 0.977, 1.033), (POLAR_EXPRESS, 0.858, 1.142), (CONVERGENT, 0.999, 1.001)],
    ids=["classic", "quintic", "polar-express", "convergent"],
)
@pytest.mark.parametrize("kernel", [batched, separate, newton_schulz, gram])
@pytest.mark.parametrize("shape", [(2, 256, 512), (2, 512, 256)])
def test_singular_values_become_about_one(
    schedule: Schedule, low: float, high: float, kernel: type[object], shape: tuple[int, ...]
) -> None:
    values = torch.linalg.svdvals(kernel(gaussian(*shape), schedule, torch.float32))  # type: ignore[call-arg]
    assert low <= values.min().item() and values.max().item() <= high


def test_the_convergent_schedule_gives_the_polar_factor() -> None:
    x = gaussian(1, 24, 40)
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    assert torch.allclose(newton_schulz(x, CONVERGENT, torch.float32), u @ v, atol=2e-3)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.integers(1, 130), st.integers(1, 130), st.sampled_from([torch.float32, torch.bfloat16]))
def test_a_batch_has_the_bits_of_its_matrices_alone(n: int, rows: int, cols: int, dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    x = gaussian(n, rows, cols)
    alone = torch.cat([newton_schulz(matrix[None].clone(), CLASSIC, dtype) for matrix in x])
    assert torch.equal(newton_schulz(x, CLASSIC, dtype), alone)


def test_zero_stays_zero_and_scale_does_not_matter() -> None:
    assert not newton_schulz(torch.zeros(1, 4, 6), CLASSIC, torch.float32).any()
    x = gaussian(1, 16, 48)
    assert torch.allclose(
        newton_schulz(x, QUINTIC, torch.float32), newton_schulz(1e4 * x, QUINTIC, torch.float32), atol=1e-5
    )


def test_a_matrix_without_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[B, M, N\].*\(4, 6\)"):
        newton_schulz(torch.zeros(4, 6), CLASSIC)


def test_flops_are_those_of_the_products() -> None:
    """Per step: X X^T is 2 s^2 l, its square 2 s^3, and the product with X 2 s^2 l."""
    assert flops(3, 5, 2) == flops(5, 3, 2) == 2 * (2 * 9 * 5 + 2 * 27 + 2 * 9 * 5)


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (32, 32)])
@pytest.mark.parametrize("nesterov", [True, False])
def test_the_reference_takes_the_steps_of_torchs_muon(shape: tuple[int, int], nesterov: bool) -> None:
    """torch averages gradients where the reference sums them; the direction is the same. Both in bfloat16."""
    ours, theirs = (torch.nn.Parameter(gaussian(*shape)) for _ in range(2))
    common = {"lr": 0.1, "momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.05}
    reference = MuonReference([{"params": [("w", ours)]}], scale="torch", **common)  # type: ignore[arg-type]
    muon = torch.optim.Muon([theirs], adjust_lr_fn="original", **common)
    for step in range(4):
        for weight in (ours, theirs):
            weight.grad = torch.randn(shape, generator=torch.Generator().manual_seed(step + 1))
        reference.step()
        muon.step()
    assert torch.allclose(ours, theirs, atol=0.1 * 0.06)


@pytest.mark.parametrize("module", LIFTED)
def test_the_optimizer_imports_torch_alone(module: str) -> None:
    """What is to be copied into another trainer needs torch, the standard library and its own neighbours."""
    tree = ast.parse((Path(__file__).parents[2] / f"trainer/{module}.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    allowed = {f"trainer.{name}" for name in LIFTED}
    foreign = {n for n in names - allowed if n.split(".")[0] not in {"torch", *sys.stdlib_module_names}}
    assert not foreign
