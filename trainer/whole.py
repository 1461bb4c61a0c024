"""Passes that leave a sharded model's weights whole until they are done, as generation does thousands of times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed.fsdp import FSDPModule


@contextmanager
def kept_whole(model: nn.Module) -> Iterator[None]:
    """Inside, weights are gathered by the first pass and stay; afterwards each rank has its shards alone again.

    Ranks may make different numbers of passes, but each of them at least one. Does nothing for a model that is not
    sharded.
    """
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for module in modules:
            module.reshard()
            # The root's weights are used behind its forward pass, too: by the head.
            module.set_reshard_after_forward(module is not model, recurse=False)
