"""Process groups for the two ways of an exchange. Imports torch alone.

Each way has a group of its own. Which comes first, one chunk's way in or another's way out, depends on how many other
chunks a rank has before them; a process group matches collectives by their order, so that on one group for both a
rank with more chunks would take a result for a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainer.agreement import everybody

Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ways:
    """Of one set of ranks."""

    inbound: dist.ProcessGroup
    outbound: dist.ProcessGroup


def ways_of(
    wanted: Iterable[Ranks],
    meshes: Mapping[Ranks, dist.ProcessGroup],
    within: dist.ProcessGroup | None,
    device: torch.device,
) -> dict[Ranks, Ways]:
    """Groups for the sets of ranks, in ascending order, that this rank ``wanted``; a set's group among ``meshes``, or
    that of all ranks, serves for the way in.

    Called by all ranks of ``within`` together. If these are all ranks, each makes all groups in one order; else only
    the members do, who need to have made as many groups before (torch makes a group's name of their number).
    """
    world = tuple(range(dist.get_world_size()))
    known = {world: dist.distributed_c10d._get_default_group(), **meshes}
    ready = {ranks for ranks, group in known.items() if tuple(dist.get_process_group_ranks(group)) == ranks}
    asked = everybody({(ranks, ranks in ready) for ranks in wanted}, within)
    local = within is not None and dist.get_world_size(within) < len(world)
    timeout = (within or known[world])._get_backend(device).options._timeout

    def new(ranks: Ranks) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group(list(ranks), timeout=timeout, use_local_synchronization=local)
        return group

    made: dict[Ranks, Ways] = {}
    for ranks, is_ready in asked:
        mine = dist.get_rank() in ranks
        if mine or not local:
            inbound = known[ranks] if is_ready and mine else None if is_ready else new(ranks)
            outbound = new(ranks)
            if inbound is not None and mine:
                made[ranks] = Ways(inbound, outbound)
    return made
