"""Bytes of GPU memory on one rank: what stays, and what a step needs for a while. Activations are left out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainer.costmodel.kernels import Kernel
from trainer.costmodel.settings import ITEMSIZE, Plan
from trainer.costmodel.shapes import weights_of
from trainer.costmodel.step import Phases, Step, local_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the rank that has the most. ``transient`` bounds what a step adds: its chunks in flight."""

    weights: int
    master: int
    gradients: int
    momentum: int
    adamw: int
    transient: int

    @property
    def total(self) -> int:
        return self.weights + self.master + self.gradients + self.momentum + self.adamw + self.transient


def memory(step: Step) -> Memory:
    """Of the step's plan. AdamW's two moments have the dtype of the weights, as the trainer's do."""
    plan, optimizer = step.plan, step.plan.optimizer
    muon = adamw = 0
    for weights in weights_of(plan.model):
        n = local_elements(weights, plan)
        muon, adamw = (muon + n, adamw) if weights.muon else (muon, adamw + n)
    weight = ITEMSIZE[optimizer.weight_dtype]
    return Memory(
        weights=(muon + adamw) * weight,
        master=(muon + adamw) * 4 if optimizer.master_weights else 0,
        gradients=(muon + adamw) * ITEMSIZE[optimizer.gradient_dtype],
        momentum=muon * ITEMSIZE[optimizer.momentum_dtype],
        adamw=2 * adamw * weight,
        transient=transient(step),
    )


def transient(step: Step) -> int:
    """A bound: the chunks in flight, each at its largest, and beside them one local chunk, or AdamW's temporaries."""
    plan, weight = step.plan, ITEMSIZE[step.plan.optimizer.weight_dtype]
    sent = [_chunk(phases, plan) for phases in step.phases if phases.exchange.sends]
    local = [_chunk(phases, plan) for phases in step.phases if not phases.exchange.sends]
    # The square root of the second moment, and what it becomes.
    local += [2 * weight * local_elements(w, plan) // w.copies for w in weights_of(plan.model) if not w.muon]
    return plan.optimizer.in_flight * max(sent, default=0) + max(local, default=0)


def _chunk(phases: Phases, plan: Plan) -> int:
    """The most bytes that one chunk holds at any point, in the order of trainer.muon's step."""
    optimizer, part = plan.optimizer, phases.exchange
    n, short = part.kind.numel, min(part.kind.shape)
    m, w, b, ns = (
        ITEMSIZE[d]
        for d in (optimizer.momentum_dtype, optimizer.weight_dtype, optimizer.wire_dtype, optimizer.ns_dtype)
    )
    units = max(1, min(part.at_once, math.ceil(part.owned)))
    owned, parts = units * n, part.in_chunk(units)
    received = owned if part.sends else 0
    inbound = parts * (m + b) + received * b
    square = 4 if optimizer.kernel is Kernel.GRAM else ns
    # A transposed copy, its quotient by the norm in float32, the iterates; the Gram matrix and its polynomials.
    iterating = owned * (b + 4 + 3 * ns) + units * short * short * 4 * square
    compute = (received + owned) * b + iterating + (owned * b if ns != b else 0)
    sent = owned * part.copies if part.sends else 0
    outbound = owned * b + (sent + (parts if part.sends else 0)) * b
    apply = outbound + 2 * parts * w
    return max(inbound + owned * b, compute, outbound, apply)
