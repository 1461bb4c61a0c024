"""Collectives with autograd, and errors that say which collective failed. Imports torch alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class CollectiveFailed(RuntimeError):
    """A collective ended with an error, or did not end in time: a rank died, lags, or went another way."""


@contextmanager
def naming(collective: str) -> Iterator[None]:
    """Raises CollectiveFailed, with the name of the collective in front, for errors of torch.distributed inside."""
    try:
        yield
    except CollectiveFailed:
        raise
    except (RuntimeError, dist.DistError) as error:
        raise CollectiveFailed(f"{collective}: {error}") from error


def all_reduce(
    values: Tensor, name: str, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Reduce ``values`` in place over the ranks of ``group`` (default: all), and return them; on one process without a
    process group they are that already.

    Raises CollectiveFailed, with ``name``.
    """
    if dist.is_initialized():
        with naming(name):
            dist.all_reduce(values, op, group=group)
    return values


def exchange_rows(
    rows: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup, name: str
) -> Tensor:
    """An uneven all-to-all over the first dim: ``sent[i]`` rows go to the i-th rank of ``group``, ``received[i]`` come
    from it. The gradient goes the way back.

    Raises CollectiveFailed, with ``name``, on the way there; the way back raises it from ``backward``.
    """
    result: Tensor = _ExchangeRows.apply(rows, list(sent), list(received), group, name)  # type: ignore[no-untyped-call]
    return result


def gather_rows(rows: Tensor, group: dist.ProcessGroup, name: str) -> Tensor:
    """All ranks' ``rows`` (of one shape) one after the other along the first dim; the gradient is summed over ranks.

    Raises CollectiveFailed as ``exchange_rows`` does.
    """
    result: Tensor = _GatherRows.apply(rows, group, name)  # type: ignore[no-untyped-call]
    return result


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context has no public type
        rows: Tensor,
        sent: list[int],
        received: list[int],
        group: dist.ProcessGroup,
        name: str,
    ) -> Tensor:
        ctx.sent, ctx.received, ctx.group, ctx.name = sent, received, group, name
        return _exchange(rows, sent, received, group, name)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        name = f"gradient of {ctx.name}"
        return _exchange(gradients[0], ctx.received, ctx.sent, ctx.group, name), None, None, None, None


def _exchange(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup, name: str) -> Tensor:
    result = rows.new_empty(sum(received), *rows.shape[1:])
    with naming(name):
        dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group)
    return result


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup, name: str) -> Tensor:  # noqa: ANN401
        ctx.group, ctx.name, ctx.shape = group, name, rows.shape
        result = rows.new_empty(group.size() * rows.shape[0], *rows.shape[1:])
        with naming(name):
            dist.all_gather_single(result, rows.contiguous(), group=group)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        result = gradients[0].new_empty(ctx.shape)
        with naming(f"gradient of {ctx.name}"):
            dist.reduce_scatter_single(result, gradients[0].contiguous(), group=ctx.group)
        return result, None, None
