"""Settings of a Muon step, and what it counts. Imports torch alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

import torch
from torch import Tensor

from trainer.newton_schulz import CLASSIC, Schedule, newton_schulz


class Scale(StrEnum):
    """What the orthogonal update is multiplied by, for a matrix of M rows (outputs) and N columns (inputs)."""

    TORCH = "torch"  # sqrt(max(1, M/N)), as torch.optim.Muon
    MOONLIGHT = "moonlight"  # 0.2 sqrt(max(M, N)): the RMS of an update is that of AdamW (arXiv 2502.16982)
    MUP = "mup"  # sqrt(M/N): a spectral norm that transfers over widths

    def factor(self, rows: int, cols: int) -> float:
        if self is Scale.TORCH:
            return math.sqrt(max(1.0, rows / cols))
        return 0.2 * math.sqrt(max(rows, cols)) if self is Scale.MOONLIGHT else math.sqrt(rows / cols)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the step is computed. All ranks must have the same.

    ``kernel`` takes (batch [B, M, N], schedule, dtype); the default has the same bits on any number of ranks.
    ``chunk_bytes`` bounds the matrices that one owner has of a chunk (one matrix at least), ``in_flight`` the chunks
    that are begun and not ended; together they bound the extra memory. ``split_whole``: replicas share the work on
    units that each of them holds whole and send each other the results, instead of computing all of them on each.
    ``timeout`` is that of each collective (None: the process group's own).
    """

    schedule: Schedule = CLASSIC
    ns_dtype: torch.dtype = torch.bfloat16
    wire_dtype: torch.dtype = torch.float32
    kernel: Callable[[Tensor, Schedule, torch.dtype], Tensor] = newton_schulz
    chunk_bytes: int = 32 * 2**20
    in_flight: int = 3
    split_whole: bool = False
    check_finite: bool = True
    timeout: timedelta | None = None

    def text(self) -> str:
        """What ranks compare."""
        kernel = getattr(self.kernel, "__qualname__", type(self.kernel).__qualname__)
        return str(replace(self, kernel=_nothing, timeout=None)).replace(repr(_nothing), kernel)


def _nothing(x_BMN: Tensor, schedule: Schedule, dtype: torch.dtype) -> Tensor:
    raise NotImplementedError


@dataclass(slots=True)
class Traffic:
    """What this rank sent to others in the last step."""

    n_collectives: int = 0
    inbound_bytes: int = 0
    outbound_bytes: int = 0

    def count(self, event: str, n_bytes: int) -> None:
        self.n_collectives += 1
        if event == "inbound":
            self.inbound_bytes += n_bytes
        else:
            self.outbound_bytes += n_bytes
