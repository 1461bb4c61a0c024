"""Errors of collectives that say which one failed. Imports torch alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


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
