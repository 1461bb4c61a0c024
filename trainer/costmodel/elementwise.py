"""Bytes that the elementwise parts of a step read from and write to memory, for every element.

The foreach calls of trainer.muon pass over memory once each; the counts below are theirs, call by call, and a test
compares them with the calls that a step makes (tests/trainer/test_costmodel_counted.py). ``fused`` is the least: every
operand read once and every result written once. What kernels of Newton-Schulz do between their products is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.costmodel.settings import ITEMSIZE, Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of memory traffic: ``momentum`` and ``apply`` for an element that a rank has, ``owned`` for one of a
    matrix that it computes, ``inbound`` and ``outbound`` for one that it sends, ``adamw`` for one that AdamW updates.
    """

    momentum: int
    owned: int
    inbound: int
    outbound: int
    apply: int
    adamw: int


def traffic(optimizer: Optimizer) -> Traffic:
    """Of the trainer's calls, or, with ``fused``, of the best that could be."""
    m, g, b = (ITEMSIZE[d] for d in (optimizer.momentum_dtype, optimizer.gradient_dtype, optimizer.wire_dtype))
    ns, weight = ITEMSIZE[optimizer.ns_dtype], ITEMSIZE[optimizer.weight_dtype]
    state, w = weight, 4 if optimizer.master_weights else weight
    copy = weight if optimizer.master_weights else 0
    finite = g  # the norm of all gradients
    if optimizer.fused:
        return Traffic(
            momentum=finite + 2 * m + g,
            owned=b,
            inbound=0,
            outbound=0,
            apply=b + 2 * w + copy,
            adamw=finite + g + 2 * w + copy + 4 * state,
        )
    decay, add, nesterov = 2 * m, 2 * m + g, 2 * m + 2 * m + g
    cast = b + w if w != b else 0
    return Traffic(
        momentum=finite + decay + add + nesterov,
        owned=m + b + (ns + b if ns != b else 0),
        inbound=2 * b,
        outbound=2 * b,
        apply=cast + 2 * w + 2 * w + 3 * w + copy,
        adamw=finite + sum(_adamw_calls(w, g, state)) + copy,
    )


def _adamw_calls(w: int, g: int, state: int) -> tuple[int, ...]:
    """The zeros that stand in for a missing gradient, made whether it is missing or not; then torch's single-tensor
    AdamW, in its order."""
    zeros, decay, lerp, mul, addcmul = w, 2 * w, 2 * state + g, 2 * state, 2 * state + 2 * g
    sqrt, div, add, addcdiv = 2 * state, 2 * state, 2 * state, 2 * w + 2 * state
    return zeros, decay, lerp, mul, addcmul, sqrt, div, add, addcdiv
