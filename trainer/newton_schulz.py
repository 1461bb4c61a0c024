"""Newton-Schulz iterations: the polar factor of matrices by matrix products alone.

Shapes: ``x_BMN`` is a batch of B matrices M x N; inside, ``x_BSL`` is the same batch with its short side first.

One step with coefficients (a, b, c) maps X to a X + (b A + c A^2) X with A = X X^T, so that every singular value s
becomes a s + b s^3 + c s^5. After division by the Frobenius norm all singular values lie in [0, 1], and the schedules
below drive them to about 1. ``newton_schulz`` is *exact*: each result has the same bits as in a batch of one, which is
what lets a sharded optimizer be bit-equal to an unsharded one. ``batched`` and ``gram`` are the fast kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-7
# On a CPU, a batch of larger matrices than this is slower as one bmm than as several.
CPU_BATCH_ELEMENTS = 128 * 256
# BLAS libraries may add in another order where a matrix does not start at such an address, as in the middle of a batch.
CPU_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Coefficients of the steps, and what the Frobenius norm is multiplied by before the division."""

    coefficients: tuple[tuple[float, float, float], ...]
    norm_factor: float = 1.0


_JORDAN = (3.4445, -4.7750, 2.0315)

# K. Jordan's five equal steps: fast, singular values between about 0.7 and 1.15.
CLASSIC = Schedule(coefficients=(_JORDAN,) * 5)
# Five steps with coefficients of their own, tuned for a narrow band (0.978 to 1.032 on Gaussian matrices).
QUINTIC = Schedule(
    coefficients=(
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    )
)
# Polar Express (arXiv 2505.16932): minimax-optimal steps for singular values from 1e-3, with a safety factor.
POLAR_EXPRESS = Schedule(
    coefficients=(
        (8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
    ),
    norm_factor=1.02,
)
# Eight fast steps, then two of the convergent polynomial 2 s - 1.5 s^3 + 0.5 s^5, whose fixed point 1 attracts.
CONVERGENT = Schedule(coefficients=(_JORDAN,) * 8 + ((2.0, -1.5, 0.5),) * 2)


def flops(rows: int, cols: int, steps: int) -> int:
    """Floating-point operations of ``steps`` steps on one matrix: steps (4 s^2 l + 2 s^3), s the short side."""
    short, long = min(rows, cols), max(rows, cols)
    return steps * (4 * short * short * long + 2 * short**3)


def newton_schulz(x_BMN: Tensor, schedule: Schedule, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The polar factors of ``x_BMN``, [B, M, N] of ``dtype``: by ``batched`` where a batch is quicker and has the same
    bits as its matrices alone, else by ``separate``.

    Raises ValueError if ``x_BMN`` has not three dims.
    """
    if x_BMN.ndim != 3:
        raise ValueError(f"newton_schulz: expected a batch [B, M, N], got a tensor of shape {tuple(x_BMN.shape)}")
    rows, cols = x_BMN.shape[1:]
    as_batch = x_BMN.device.type == "cpu" and rows * cols <= CPU_BATCH_ELEMENTS and _aligned(rows, cols, dtype)
    return batched(x_BMN, schedule, dtype) if as_batch else separate(x_BMN, schedule, dtype)


def batched(x_BMN: Tensor, schedule: Schedule, dtype: torch.dtype) -> Tensor:
    """All matrices in one product a step. Exact on a CPU where every matrix of the batch starts at an aligned address;
    elsewhere the library may choose another algorithm for a batch than for one matrix."""
    return _with_short_side_first(x_BMN, lambda x_BSL: _steps(_normalised(x_BSL, schedule, dtype), schedule))


def separate(x_BMN: Tensor, schedule: Schedule, dtype: torch.dtype) -> Tensor:
    """One matrix after the other, each a batch of one. Exact by construction."""
    if x_BMN.shape[0] == 1:
        return batched(x_BMN, schedule, dtype)
    out_BMN = torch.empty(x_BMN.shape, dtype=dtype, device=x_BMN.device)
    for x_MN, out_MN in zip(x_BMN, out_BMN, strict=True):
        out_MN.copy_(batched(x_MN.unsqueeze(0), schedule, dtype)[0])
    return out_BMN


def gram(x_BMN: Tensor, schedule: Schedule, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Steps on the Gram matrix alone: not bit-equal to the others, less work where l > 1.5 s.

    With X_k = P_k X_0, P_k a polynomial of G_0 = X_0 X_0^T (so all of them are symmetric and commute), a step is
    R = a I + b G + c G^2, P <- R P, G <- R G R: four s x s products in place of two s x l and one s x s. The first P
    and the last G are not computed: 4 s^2 l + 34 s^3 operations for five steps, 0.56 of the usual at l = 4 s. P and G
    are float32 whatever ``dtype`` is, since their errors add up over the steps.
    """
    return _with_short_side_first(x_BMN, lambda x_BSL: _gram_steps(_normalised(x_BSL, schedule, dtype), schedule))


def _aligned(rows: int, cols: int, dtype: torch.dtype) -> bool:
    short = min(rows, cols)
    return all(n * dtype.itemsize % CPU_ALIGNMENT_BYTES == 0 for n in (short * short, rows * cols))


def _with_short_side_first(x_BMN: Tensor, kernel: Callable[[Tensor], Tensor]) -> Tensor:
    if x_BMN.shape[-2] > x_BMN.shape[-1]:
        return kernel(x_BMN.mT.contiguous()).mT
    return kernel(x_BMN.contiguous())


def _normalised(x_BSL: Tensor, schedule: Schedule, dtype: torch.dtype) -> Tensor:
    # The norm of each matrix by itself: a reduction over a batch may add in another order.
    norms_B = torch.stack([torch.linalg.vector_norm(x_SL, dtype=torch.float32) for x_SL in x_BSL])
    return x_BSL.div((norms_B * schedule.norm_factor).clamp_(min=EPSILON).view(-1, 1, 1)).to(dtype)


def _steps(x_BSL: Tensor, schedule: Schedule) -> Tensor:
    for a, b, c in schedule.coefficients:
        gram_BSS = torch.bmm(x_BSL, x_BSL.mT)
        poly_BSS = torch.baddbmm(gram_BSS, gram_BSS, gram_BSS, beta=b, alpha=c)
        x_BSL = torch.baddbmm(x_BSL, poly_BSS, x_BSL, beta=a)
    return x_BSL


def _gram_steps(x_BSL: Tensor, schedule: Schedule) -> Tensor:
    gram_BSS = torch.bmm(x_BSL, x_BSL.mT).float()
    identity_SS = torch.eye(gram_BSS.shape[-1], device=x_BSL.device)
    total_BSS: Tensor | None = None
    for i, (a, b, c) in enumerate(schedule.coefficients, start=1):
        step_BSS = torch.baddbmm(gram_BSS, gram_BSS, gram_BSS, beta=b, alpha=c).add_(identity_SS, alpha=a)
        total_BSS = step_BSS if total_BSS is None else torch.bmm(step_BSS, total_BSS)
        if i < len(schedule.coefficients):
            gram_BSS = torch.bmm(step_BSS, torch.bmm(gram_BSS, step_BSS))
    return x_BSL if total_BSS is None else torch.bmm(total_BSS.to(x_BSL.dtype), x_BSL)
