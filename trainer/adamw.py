"""AdamW on the local shards of DTensors: elementwise, so that no rank needs another. Imports torch alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from trainer.units import to_local


def adamw_step(optimizer: torch.optim.Optimizer, gradients: Mapping[str, Tensor]) -> None:
    """One step of the parameter groups whose ``algorithm`` is "adamw".

    ``gradients`` are local shards by parameter name; a missing one counts as zeros. The state is laid out as the
    parameters are.
    """
    for group in optimizer.param_groups:
        if group["algorithm"] == "adamw":
            _step(group, [state_of(optimizer, parameter) for parameter in group["params"]], gradients)


def local_gradient(name: str, parameter: Tensor) -> Tensor:
    """This rank's shard of the gradient. Raises ValueError if it does not lie as its parameter does."""
    gradient = parameter.grad
    assert gradient is not None
    if isinstance(parameter, DTensor):
        there = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else None
        if there != (parameter.device_mesh, parameter.placements):
            raise ValueError(f"{name}: its gradient lies as {there}, the parameter as {parameter.placements}")
    return to_local(gradient)


def state_of(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """AdamW's state of a parameter; zeros before the first step."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
    return state


def _step(group: dict[str, Any], states: list[dict[str, Tensor]], gradients: Mapping[str, Tensor]) -> None:
    weights = [to_local(parameter) for parameter in group["params"]]
    adamw(
        weights,
        [gradients.get(n, torch.zeros_like(w)) for n, w in zip(group["param_names"], weights, strict=True)],
        [to_local(state["exp_avg"]) for state in states],
        [to_local(state["exp_avg_sq"]) for state in states],
        [],
        [state["step"] for state in states],
        foreach=False,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
