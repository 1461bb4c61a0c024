"""Operations of Newton-Schulz on one matrix, by kernel. One multiply-add is two operations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trainer.costmodel.cluster import Cluster
from trainer.newton_schulz import CLASSIC, CONVERGENT, POLAR_EXPRESS, QUINTIC, Schedule, flops

SCHEDULES: dict[str, Schedule] = {
    "classic": CLASSIC,
    "quintic": QUINTIC,
    "polar-express": POLAR_EXPRESS,
    "convergent": CONVERGENT,
}
RESTART_AFTER = 2


class Kernel(StrEnum):
    """EXACT and GRAM are trainer.newton_schulz's. The others are not in this trainer: SYMMETRIC computes half of each
    product whose result is symmetric, GRAM_SYMMETRIC does so on the Gram matrix, in the dtype of Newton-Schulz, and
    starts anew from X after two steps (Gram Newton-Schulz, https://github.com/Dao-AILab/gram-newton-schulz)."""

    EXACT = "exact"
    SYMMETRIC = "symmetric"
    GRAM = "gram"
    GRAM_SYMMETRIC = "gram-symmetric"

    @property
    def in_trainer(self) -> bool:
        return self in (Kernel.EXACT, Kernel.GRAM)


@dataclass(frozen=True, slots=True)
class Work:
    """Operations in the dtype of Newton-Schulz, and in float32."""

    ns: int = 0
    float32: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.ns + other.ns, self.float32 + other.float32)

    def times(self, n: int) -> Work:
        return Work(self.ns * n, self.float32 * n)

    @property
    def total(self) -> int:
        return self.ns + self.float32

    def seconds(self, cluster: Cluster, ns_dtype: str) -> float:
        """On one GPU."""
        peak = cluster.peak_flops
        took = self.ns / peak[ns_dtype] + (self.float32 / peak["float32"] if self.float32 else 0.0)
        return took / cluster.mfu


def work(kernel: Kernel, rows: int, cols: int, steps: int) -> Work:
    """Of ``steps`` steps on a matrix with short side s, long side l.

    EXACT: steps (4 s^2 l + 2 s^3). SYMMETRIC: steps (3 s^2 l + s^3), the X X^T and A^2 halved. GRAM: 4 s^2 l for the
    first and the last product, and 4 k - 3 products of s x s in float32. GRAM_SYMMETRIC: per start 3 s^2 l, and
    (4 k - 3) s^3 for its k steps.
    """
    s, l = min(rows, cols), max(rows, cols)  # noqa: E741 - the letters of the formula
    match kernel:
        case Kernel.EXACT:
            return Work(flops(rows, cols, steps))
        case Kernel.SYMMETRIC:
            return Work(steps * (3 * s * s * l + s**3))
        case Kernel.GRAM:
            return Work(4 * s * s * l, 2 * s**3 * (4 * steps - 3))
    runs = [k for k in (min(steps, RESTART_AFTER), steps - RESTART_AFTER) if k > 0]
    return Work(sum(3 * s * s * l + s**3 * (4 * k - 3) for k in runs))
