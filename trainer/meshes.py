"""Two meshes over the same ranks: a narrow one for the weights that all tokens use, a wide one for the experts.

Non-expert weights are few and needed by every token: they are sharded over few ranks, close to each other, and
replicated over the rest (HSDP). Experts are many, and each is needed by few tokens: they are spread over many ranks,
first whole (expert parallel), then cut (sharded by FSDP). Both meshes are made of the same ranks, and so are context
and expert parallel: cp=2 and ep=8 need 8 ranks, not 16.

    rank = (replica, shard, cp)                         narrow, cp fastest; weights lie on shard x cp
         = (expert replica, expert shard, ep)           wide, ep fastest
         = (data parallel, cp)                          data: each dp index has its own sequences, cut over cp
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


class MeshError(ValueError):
    """Sizes that do not make a mesh of this world, or do not fit the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSizes:
    """How the ``world`` ranks are used.

    dp_replicate: copies of the non-expert weights; fsdp_shard: shards of one copy, cp not counted (0: what is left);
    cp: ranks that share a sequence; ep: ranks that share the experts, each whole on one of them; expert_shard: ranks
    over which each expert is cut (0: what is left, so that there is one copy of each expert).

    Raises MeshError if sizes are not positive or do not multiply to the world.
    """

    world: int
    dp_replicate: int = 1
    fsdp_shard: int = 0
    cp: int = 1
    ep: int = 1
    expert_shard: int = 0

    def __post_init__(self) -> None:
        for name in ("world", "dp_replicate", "fsdp_shard", "cp", "ep", "expert_shard"):
            least = 0 if name in ("fsdp_shard", "expert_shard") else 1
            if getattr(self, name) < least:
                raise MeshError(f"{name} = {getattr(self, name)}: must be at least {least}")
        _must_fit(self.world, {"dp_replicate": self.dp_replicate, "fsdp_shard": self.fsdp_shard, "cp": self.cp})
        # Experts may have copies too, so these need only divide the world.
        _must_divide(self.world, {"ep": self.ep, "expert_shard": self.expert_shard or 1})

    @property
    def dp(self) -> int:
        """Ranks with sequences of their own."""
        return self.world // self.cp

    @property
    def narrow_shard(self) -> int:
        """Ranks over which a non-expert weight is cut."""
        return self.world // self.dp_replicate

    @property
    def wide_shard(self) -> int:
        """Ranks over which an expert is cut."""
        return self.expert_shard or self.world // self.ep

    @property
    def expert_replicate(self) -> int:
        """Copies of an expert."""
        return self.world // (self.ep * self.wide_shard)

    def check(self, *, n_experts: int = 0, sequence: int = 0) -> None:
        """Raises MeshError if experts or the tokens of a sequence cannot be divided in this way."""
        if n_experts % self.ep or (n_experts == 0 and self.ep > 1):
            raise MeshError(f"ep = {self.ep} does not divide {n_experts} experts; {_divisors(n_experts)} would")
        if self.cp > 1 and sequence % (2 * self.cp):
            pieces = 2 * self.cp
            near = [str(n) for n in (sequence // pieces * pieces, -(-sequence // pieces) * pieces) if n]
            raise MeshError(
                f"sequences of {sequence} tokens cannot be cut into 2 x cp = {pieces} equal pieces; "
                f"{' or '.join(near)} tokens can"
            )


def _must_fit(world: int, sizes: Mapping[str, int]) -> None:
    given = {name: size for name, size in sizes.items() if size}
    product = math.prod(given.values())
    if len(given) < len(sizes):
        _must_divide(world, given)
    elif product != world:
        instead = [
            f"{name} = {world // rest}"
            for name, size in given.items()
            if (rest := product // size) and world % rest == 0 and world // rest != size
        ]
        raise MeshError(f"{_product(given)} = {product}, but there are {world} ranks; {_advice(instead, product)}")


def _must_divide(world: int, sizes: Mapping[str, int]) -> None:
    product = math.prod(sizes.values())
    if world % product:
        instead = [
            f"{name} = {_divisors(world // rest)}"
            for name, size in sizes.items()
            if size > 1 and world % (rest := product // size) == 0
        ]
        raise MeshError(f"{_product(sizes)} = {product} does not divide {world} ranks; {_advice(instead, product)}")


def _advice(instead: list[str], product: int) -> str:
    return f"{', or '.join(instead)} would fit" if instead else f"a multiple of {product} ranks would"


def _product(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{name} {size}" for name, size in sizes.items())


def _divisors(n: int) -> str:
    return " or ".join(str(d) for d in range(1, n + 1) if n % d == 0) or "1"


@dataclass(frozen=True, slots=True)
class Meshes:
    """The meshes on this rank: ``narrow`` (replica, shard), ``wide`` (expert_replica, expert_shard, ep) and ``data``
    (dp, cp)."""

    sizes: MeshSizes
    narrow: DeviceMesh
    wide: DeviceMesh
    data: DeviceMesh

    @property
    def weights(self) -> DeviceMesh:
        """What ``fully_shard`` gets for non-expert weights: one axis to shard, or replicas before it."""
        return self.narrow if self.sizes.dp_replicate > 1 else self.narrow["shard"]

    @property
    def experts(self) -> DeviceMesh:
        """What ``fully_shard`` gets for experts."""
        axes = ("expert_replica", "expert_shard") if self.sizes.expert_replicate > 1 else ("expert_shard",)
        return self.wide[axes]

    @property
    def ep(self) -> DeviceMesh:
        return self.wide["ep"]

    @property
    def dp_rank(self) -> int:
        """Which sequences this rank reads."""
        return int(self.data.get_local_rank("dp"))

    @property
    def cp_rank(self) -> int:
        """Which part of them."""
        return int(self.data.get_local_rank("cp"))

    @property
    def cp_group(self) -> dist.ProcessGroup | None:
        """Those that share this rank's sequences; None if nobody does."""
        return self.data.get_group("cp") if self.sizes.cp > 1 else None


def meshes_of(sizes: MeshSizes, device_type: str = "cpu") -> Meshes:
    """Make the meshes of a default process group that is there. Raises MeshError if it has another size."""
    if dist.get_world_size() != sizes.world:
        raise MeshError(f"the meshes are for {sizes.world} ranks, but the process group has {dist.get_world_size()}")
    narrow = (sizes.dp_replicate, sizes.narrow_shard)
    wide = (sizes.expert_replicate, sizes.wide_shard, sizes.ep)
    return Meshes(
        sizes,
        init_device_mesh(device_type, narrow, mesh_dim_names=("replica", "shard")),
        init_device_mesh(device_type, wide, mesh_dim_names=("expert_replica", "expert_shard", "ep")),
        init_device_mesh(device_type, (sizes.dp, sizes.cp), mesh_dim_names=("dp", "cp")),
    )
