"""A run that stops goes on from its checkpoint: on the same mesh, on another, on fewer ranks, or on one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from decoder_cases import GROUPED, LATENT, Run, Trainee, train, trainee_of, whole
from ranks import Ranks
from torch import Tensor

from trainer import checkpoint
from trainer.checkpoint import CheckpointError
from trainer.meshes import MeshSizes

EIGHT = MeshSizes(world=8, dp_replicate=2, cp=2, ep=4, expert_shard=2)
OTHER_EIGHT = MeshSizes(world=8, cp=1, ep=8)
FOUR = MeshSizes(world=4, dp_replicate=2, cp=2, ep=2, expert_shard=1)


def tensors(trainee: Trainee) -> dict[str, Tensor]:
    both = trainee.model.state_dict() | trainee.optimizer.named_state()
    return {name: whole(tensor) for name, tensor in both.items()}


def train_and_save(run: Run, folder: Path) -> tuple[dict[str, Tensor], list[Any]]:
    """Two steps, a checkpoint, and what three more steps bring."""
    trainee = trainee_of(run)
    train(trainee, range(2))
    checkpoint.save(folder, 2, trainee.model, trainee.optimizer)
    return tensors(trainee), train(trainee, range(2, 5))


def load_and_go_on(run: Run, folder: Path) -> tuple[int, dict[str, Tensor], list[Any]]:
    trainee = trainee_of(run, seed=99)
    step = checkpoint.load(folder, trainee.model, trainee.optimizer)
    loaded = tensors(trainee)
    return step, loaded, train(trainee, range(step, 5))


def assert_goes_on(found: tuple[int, dict[str, Tensor], list[Any]], saved: dict[str, Tensor], curve: list[Any]) -> None:
    step, loaded, their_curve = found
    assert step == 2
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items()), "not a bit is lost"
    assert torch.tensor(their_curve) == pytest.approx(torch.tensor(curve), rel=1e-4)


def test_a_run_moves_from_eight_ranks_to_another_mesh_to_four_and_to_one(tmp_path: Path) -> None:
    with Ranks(8) as pool:
        saved, curve = pool.run(train_and_save, Run(config=LATENT, sizes=EIGHT), tmp_path)[0]
        for sizes in (EIGHT, OTHER_EIGHT):
            for found in pool.run(load_and_go_on, Run(config=LATENT, sizes=sizes), tmp_path):
                assert_goes_on(found, saved, curve)
    with Ranks(4) as pool:
        for found in pool.run(load_and_go_on, Run(config=LATENT, sizes=FOUR), tmp_path):
            assert_goes_on(found, saved, curve)
    assert_goes_on(load_and_go_on(Run(config=LATENT), tmp_path), saved, curve)


def test_only_the_newest_are_kept_and_a_broken_one_is_not_taken_for_whole(tmp_path: Path) -> None:
    trainee = trainee_of(Run(config=LATENT))
    (tmp_path / ".step-9.part").mkdir()  # what a killed run leaves
    for step in (8, 9, 10):
        checkpoint.save(tmp_path, step, trainee.model, trainee.optimizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-9"]
    assert checkpoint.newest(tmp_path) == 10
    (tmp_path / "step-10" / ".metadata").unlink()
    with pytest.raises(CheckpointError, match="step-10: not a whole checkpoint"):
        checkpoint.load(tmp_path, trainee.model, trainee.optimizer)


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    trainee = trainee_of(Run(config=LATENT))
    with pytest.raises(CheckpointError, match="no checkpoint"):
        checkpoint.load(tmp_path, trainee.model, trainee.optimizer)
    checkpoint.save(tmp_path, 1, trainee.model, trainee.optimizer)
    other = trainee_of(Run(config=GROUPED))
    with pytest.raises(CheckpointError, match=r"another model: .*k_norm.weight: not in the checkpoint"):
        checkpoint.load(tmp_path, other.model, other.optimizer)
