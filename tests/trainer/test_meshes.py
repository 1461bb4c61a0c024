"""Descriptions of meshes: what they come to, and what is said of those that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
from ranks import Ranks

from trainer.meshes import MeshError, MeshSizes, meshes_of


def test_context_and_expert_parallel_share_their_ranks() -> None:
    sizes = MeshSizes(world=8, cp=2, ep=8)
    assert (sizes.dp, sizes.narrow_shard, sizes.wide_shard, sizes.expert_replicate) == (4, 8, 1, 1)
    sizes = MeshSizes(world=64, dp_replicate=8, cp=2, ep=8, expert_shard=4)
    assert (sizes.dp, sizes.narrow_shard, sizes.wide_shard, sizes.expert_replicate) == (32, 8, 4, 2)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"world": 0}, "world = 0: must be at least 1"),
        ({"world": 8, "cp": -2}, "cp = -2: must be at least 1"),
        (
            {"world": 16, "dp_replicate": 2, "fsdp_shard": 3, "cp": 2},
            "dp_replicate 2 x fsdp_shard 3 x cp 2 = 12, but there are 16 ranks; fsdp_shard = 4 would fit",
        ),
        (
            {"world": 7, "dp_replicate": 2, "fsdp_shard": 3, "cp": 2},
            "dp_replicate 2 x fsdp_shard 3 x cp 2 = 12, but there are 7 ranks; a multiple of 12 ranks would",
        ),
        (
            {"world": 8, "dp_replicate": 3, "cp": 2},
            "dp_replicate 3 x cp 2 = 6 does not divide 8 ranks; dp_replicate = 1 or 2 or 4 would fit",
        ),
        (
            {"world": 8, "ep": 4, "expert_shard": 4},
            "ep 4 x expert_shard 4 = 16 does not divide 8 ranks; ep = 1 or 2, or expert_shard = 1 or 2 would fit",
        ),
    ],
)
def test_sizes_that_do_not_multiply_are_named_with_some_that_would(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(MeshError) as error:
        MeshSizes(**sizes)
    assert str(error.value) == message


def test_sizes_that_do_not_fit_the_model_or_the_data() -> None:
    sizes = MeshSizes(world=8, cp=2, ep=8)
    sizes.check(n_experts=16, sequence=12)
    with pytest.raises(MeshError, match="ep = 8 does not divide 12 experts; 1 or 2 or 3 or 4 or 6 or 12 would"):
        sizes.check(n_experts=12)
    with pytest.raises(MeshError, match=r"sequences of 10 tokens cannot be cut .* 8 or 12 tokens can"):
        sizes.check(n_experts=8, sequence=10)


def places() -> dict[str, Any]:
    meshes = meshes_of(MeshSizes(world=8, dp_replicate=2, cp=2, ep=2, expert_shard=2))
    return {
        "shard": meshes.weights["shard"].mesh.tolist(),
        "expert_shard": meshes.experts["expert_shard"].mesh.tolist(),
        "ep": meshes.ep.mesh.tolist(),
        "sequence": (meshes.dp_rank, meshes.cp_rank),
    }


def other_size() -> str:
    try:
        meshes_of(MeshSizes(world=4))
    except MeshError as error:
        return str(error)
    return "nothing"


def test_who_shares_what_with_whom() -> None:
    with Ranks(8) as pool:
        found = pool.run(places)
        assert pool.run(other_size)[0] == "the meshes are for 4 ranks, but the process group has 8"
    assert found[5] == {"shard": [4, 5, 6, 7], "expert_shard": [5, 7], "ep": [4, 5], "sequence": (2, 1)}
    assert [place["sequence"] for place in found] == [(i // 2, i % 2) for i in range(8)]
