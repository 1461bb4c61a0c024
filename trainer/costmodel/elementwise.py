"""Bytes that the elementwise parts of a step read and write, for every element of a shard.

The foreach calls of trainer.muon pass over memory once each; the counts below are theirs, call by call, and a test
compares them with the calls that a step makes (tests/trainer/test_costmodel_counted.py). ``fused`` is the least: every
operand read once and every result written once.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.costmodel.settings import ITEMSIZE, Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of memory traffic: ``momentum`` and ``apply`` for an element that a rank has, ``pack`` for one it sends,
    ``assemble`` for one it puts together as an owner, ``adamw`` for one that AdamW updates."""

    momentum: int
    apply: int
    pack_inbound: int
    assemble: int
    pack_outbound: int
    adamw: int


def traffic(optimizer: Optimizer) -> Traffic:
    """Of the trainer's calls, or, with ``fused``, of the best that could be."""
    m, g, b = (ITEMSIZE[d] for d in (optimizer.momentum_dtype, optimizer.gradient_dtype, optimizer.wire_dtype))
    weight, state = ITEMSIZE[optimizer.weight_dtype], ITEMSIZE[optimizer.weight_dtype]
    w = 4 if optimizer.master_weights else weight
    copy = weight if optimizer.master_weights else 0
    finite = g  # the norm of all gradients
    if optimizer.fused:
        return Traffic(
            momentum=finite + 2 * m + g,
            apply=b + 2 * w + copy,
            pack_inbound=b,
            assemble=0,
            pack_outbound=0,
            adamw=finite + g + 2 * w + copy + 4 * state,
        )
    decay, add = 2 * m, 2 * m + g
    nesterov = 2 * m + 2 * m + g
    cast = b + w if optimizer.weight_dtype != optimizer.wire_dtype or optimizer.master_weights else 0
    return Traffic(
        momentum=finite + decay + add + nesterov,
        apply=cast + 2 * w + 2 * w + 3 * w + copy,
        pack_inbound=m + b,
        assemble=2 * b + (0 if optimizer.ns_dtype == optimizer.wire_dtype else ITEMSIZE[optimizer.ns_dtype] + b),
        pack_outbound=2 * b,
        adamw=finite + sum(_adamw_calls(w, g, state)) + copy,
    )


def _adamw_calls(w: int, g: int, state: int) -> tuple[int, ...]:
    """torch's single-tensor AdamW, in its order."""
    decay, lerp, mul, addcmul = 2 * w, 2 * state + g, 2 * state, 2 * state + 2 * g
    sqrt, div, add, addcdiv = 2 * state, 2 * state, 2 * state, 2 * w + 2 * state
    return decay, lerp, mul, addcmul, sqrt, div, add, addcdiv
