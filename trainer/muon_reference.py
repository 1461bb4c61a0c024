"""Muon on one process: obvious, slow, and what the sharded one (trainer/muon.py) has to equal bit by bit.

Every matrix is taken by itself, in a batch of one; every operation has one rounding. The formulas:

- momentum: m <- mu m + g; input: mu m + g (Nesterov), else m (K. Jordan, "Muon", 2024);
- the input is cast to ``wire_dtype``, orthogonalised, and the result cast to ``wire_dtype``: nothing is sent here, but
  the values are those that would have been;
- weight: w <- (1 - lr decay) w, then w <- w + (-lr factor) o.

A parameter without a gradient has a gradient of zeros.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.newton_schulz import CLASSIC, Schedule, newton_schulz
from trainer.units import Split


class MuonReference(torch.optim.Optimizer):
    """As trainer.muon.Muon, for plain tensors on one process; the same groups, splits and settings."""

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        lr: float = 0.02,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        scale: str = "moonlight",
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        splits: Mapping[str, Split] | None = None,
        schedule: Schedule = CLASSIC,
        ns_dtype: torch.dtype = torch.bfloat16,
        wire_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.splits, self.schedule = dict(splits or {}), schedule
        self.ns_dtype, self.wire_dtype = ns_dtype, wire_dtype
        defaults = {"algorithm": "muon", "lr": lr, "momentum": momentum, "nesterov": nesterov, "scale": scale}
        super().__init__(params, {**defaults, "weight_decay": weight_decay, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of all parameters."""
        for group in self.param_groups:
            for name, weight in zip(group["param_names"], group["params"], strict=True):
                gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
                if group["algorithm"] == "muon":
                    self._muon(name, weight, gradient, group)
                else:
                    self._adamw(weight, gradient, group)

    def _muon(self, name: str, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        momentum = state.setdefault("momentum_buffer", torch.zeros_like(weight))
        momentum.mul_(group["momentum"])
        momentum.add_(gradient)
        mixed = momentum.mul(group["momentum"]).add(gradient) if group["nesterov"] else momentum
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        for lead in itertools.product(*map(range, weight.shape[:-2])):
            for unit in _blocks(weight.shape, self.splits.get(name)):
                matrix = mixed[lead][unit].to(self.wire_dtype).contiguous()
                result = newton_schulz(matrix[None], self.schedule, self.ns_dtype)[0].to(self.wire_dtype)
                factor = _factor(group["scale"], *matrix.shape)
                weight[lead][unit].add_(result.to(weight.dtype).mul(-group["lr"] * factor))

    def _adamw(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Decoupled weight decay, bias-corrected moments (arXiv 1711.05101), by torch's own implementation."""
        state = self.state[weight]
        if "inner" not in state:
            state["inner"] = torch.optim.AdamW([weight], foreach=False)
        for key in ("lr", "betas", "eps", "weight_decay"):
            state["inner"].param_groups[0][key] = group[key]
        before, weight.grad = weight.grad, gradient
        state["inner"].step()
        weight.grad = before


def _blocks(shape: torch.Size, split: Split | None) -> list[tuple[slice, slice]]:
    everything = slice(None)
    if split is None:
        return [(everything, everything)]
    split.check("parameter", shape)
    ends = [0, *itertools.accumulate(split.sizes)]
    cuts = [slice(a, b) for a, b in itertools.pairwise(ends)]
    return [(cut, everything) if split.dim == -2 else (everything, cut) for cut in cuts]


def _factor(scale: str, rows: int, cols: int) -> float:
    if scale == "torch":
        return math.sqrt(max(1.0, rows / cols))
    return 0.2 * math.sqrt(max(rows, cols)) if scale == "moonlight" else math.sqrt(rows / cols)
