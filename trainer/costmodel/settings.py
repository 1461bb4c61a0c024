"""What a plan is made of: model, cluster, meshes, optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trainer.costmodel.cluster import Cluster
from trainer.costmodel.kernels import SCHEDULES, Kernel
from trainer.costmodel.owners import Owners
from trainer.costmodel.shapes import ModelShape
from trainer.meshes import MeshSizes

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


class Experts(StrEnum):
    """Where experts lie, and who computes them.

    GROUP: each is cut over its expert_shard ranks, one of which owns it (parameters are DTensors on the expert_shard
    axis, and replicas if there are any). MESH: cut likewise, but any rank of ep x expert_shard may own it (DTensors on
    the whole wide mesh). WHOLE: the stack is cut over ep x expert_shard ranks between experts, none of which is cut.
    """

    GROUP = "inside the shard group"
    MESH = "over the whole mesh"
    WHOLE = "whole on a rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """Dtypes are names of torch's. ``fused``: elementwise steps as one pass over memory each, which the trainer's
    foreach calls are not. ``master_weights``: a float32 copy beside weights of a shorter dtype."""

    schedule: str = "classic"
    kernel: Kernel = Kernel.EXACT
    ns_dtype: str = "bfloat16"
    wire_dtype: str = "bfloat16"
    weight_dtype: str = "float32"
    gradient_dtype: str = "float32"
    momentum_dtype: str = "float32"
    master_weights: bool = False
    chunk_bytes: int = 32 * 2**20
    in_flight: int = 3
    split_whole: bool = False
    fused: bool = False

    @property
    def steps(self) -> int:
        """Of Newton-Schulz."""
        return len(SCHEDULES[self.schedule].coefficients)

    @property
    def wire(self) -> int:
        """Bytes of an element on the wire."""
        return ITEMSIZE[self.wire_dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A training set-up whose optimizer step is to be priced, with one choice of owners. ``shard_inside``: the ranks
    of an expert's shards are neighbours; in the trainer's mesh those of ep are."""

    model: ModelShape
    cluster: Cluster
    meshes: MeshSizes
    optimizer: Optimizer
    shard_inside: bool = False
    owners: Owners = Owners.ALL
    experts: Experts = Experts.GROUP
