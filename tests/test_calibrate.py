"""``taskgen calibrate`` on a real task in bubblewrap: controls, resuming, faults, what is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from taskgen import fill
from taskgen.attempts import loaded
from taskgen.commands.calibrate import Options, Status, calibrate
from taskgen.difficulty import Band, Design
from taskgen.errors import PolicyFault, SandboxUnavailable
from taskgen.policies.controls import GoldPolicy, NullPolicy, ScriptedPolicy
from taskgen.policies.policy import Policy, Prompt, Sampled, Sampling
from taskgen.rollout_file import open_rollouts
from taskgen.sandboxes.select import select
from taskgen.trajectories import read_rollouts
from tests.build_helpers import taskgen, tasks_of


@pytest.fixture
def tasks(demo_set: Path, tmp_path: Path) -> Path:
    """A set with one task that can be filled."""
    shutil.copytree(demo_set, tmp_path / "set")
    found = [f for f in tasks_of(tmp_path / "set") if isinstance(fill.site_of(loaded(f)), fill.Site)]
    for folder in tasks_of(tmp_path / "set"):
        if folder != found[0]:
            shutil.rmtree(folder)
    table = pq.read_table(tmp_path / "set" / "tasks.parquet")
    kept = [row == found[0].name for row in table.column("instance_id").to_pylist()]
    pq.write_table(table.filter(kept), tmp_path / "set" / "tasks.parquet")
    return tmp_path / "set"


@pytest.fixture
def options(build_cache: Path) -> Options:
    return Options(
        design=Design(max_samples=10), sampling=Sampling(), provider=select("bubblewrap", build_cache),
        cache=build_cache, jobs=2,
    )  # fmt: skip


def scripted(solves: float) -> ScriptedPolicy:
    return ScriptedPolicy(solves=solves, body_of=lambda prompt: fill.gold_body(loaded(prompt.folder)))


def run(tasks: Path, policy: Policy, options: Options) -> Any:  # noqa: ANN401 - the only task of the result
    with open_rollouts(tasks / "rollouts.jsonl") as file:
        found = calibrate(tasks, policy, file, options, lambda text: None)
    (task,) = found.tasks
    return task, found


def row_of(tasks: Path) -> dict[str, Any]:
    (folder,) = tasks_of(tasks)
    row = json.loads((folder / "task.json").read_text())
    assert pq.read_table(tasks / "tasks.parquet").to_pylist()[0]["difficulty"] == row["difficulty"]
    assert isinstance(row, dict)
    return row


def test_controls_and_a_policy_of_known_strength(tasks: Path, options: Options) -> None:
    gold, _ = run(tasks, GoldPolicy(), options)
    assert (gold.estimate.n, gold.estimate.passes, gold.estimate.band) == (9, 9, Band.TOO_EASY)
    null, _ = run(tasks, NullPolicy(), options)
    assert (null.status, null.estimate.passes, null.estimate.band) == (Status.MEASURED, 0, Band.TOO_HARD)
    half, found = run(tasks, scripted(0.5), options)
    assert 0 < half.estimate.passes < half.estimate.n
    difficulty = row_of(tasks)["difficulty"]
    assert (difficulty["policy"], difficulty["policy_version"]) == ("scripted", "0.5")
    assert (difficulty["n"], difficulty["passes"]) == (half.estimate.n, half.estimate.passes)
    assert difficulty["interval"] == list(half.estimate.interval) and difficulty["band"] == half.estimate.band
    # The same patch is graded once, whoever gives it.
    recorded = [r for r in read_rollouts(tasks / "rollouts.jsonl") if r.extra["grading_s"] > 0]
    assert len({r.extra["patch_sha256"] for r in recorded}) == len(recorded) <= 3
    assert found.as_json()["tasks"][0]["pass_at"][1] == half.estimate.pass_at_1


def test_a_run_that_was_killed_goes_on(tasks: Path, options: Options) -> None:
    whole, _ = run(tasks, scripted(0.5), options)
    file = tasks / "rollouts.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + lines[3][:40])
    again, found = run(tasks, scripted(0.5), options)
    assert again.estimate == whole.estimate
    assert found.n_rollouts == len(lines) - 3
    ids = [rollout.rollout_id for rollout in read_rollouts(file)]
    assert len(ids) == len(set(ids)) == len(lines)
    nothing_new, found = run(tasks, scripted(0.5), options)
    assert (nothing_new.estimate, found.n_rollouts) == (whole.estimate, 0)
    fewer, _ = run(tasks, scripted(0.5), replace(options, design=Design(max_samples=4)))
    assert fewer.estimate.n == 4


class Flaky(NullPolicy):
    """A null policy of which some samples are lost, each at its first try; a dead one loses all."""

    __slots__ = ("dead", "lost", "seen")

    def complete(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Sampled]]:
        found = NullPolicy.complete(self, prompts, seeds, sampling)
        for group, asked in zip(found, seeds, strict=True):
            for i, seed in enumerate(asked):
                if self.dead or (seed not in self.seen and len(self.seen) < self.lost):
                    self.seen.add(seed)
                    group[i] = PolicyFault("the line is dead")
        return found


def flaky(lost: int, *, dead: bool = False) -> Flaky:
    policy = Flaky()
    object.__setattr__(policy, "dead", dead)
    object.__setattr__(policy, "lost", lost)
    object.__setattr__(policy, "seen", set())
    return policy


def test_a_lost_sample_is_no_failed_attempt(tasks: Path, options: Options) -> None:
    # All four of the first round, as when a process dies with them.
    found, _ = run(tasks, flaky(4), options)
    assert (found.status, found.estimate.n, len(found.tally.faults)) == (Status.MEASURED, 9, 4)
    faults = [r for r in read_rollouts(tasks / "rollouts.jsonl") if r.reward is None]
    assert len(faults) == 4 and all("the line is dead" in r.extra["fault"] for r in faults)


def test_a_dead_policy_is_never_0_of_n(tasks: Path, options: Options) -> None:
    with pytest.raises(PolicyFault, match="batches in a row without an answer"):
        run(tasks, flaky(0, dead=True), options)
    assert row_of(tasks)["difficulty"] is None


def test_a_sandbox_that_fails_is_never_0_of_n(tasks: Path, options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise SandboxUnavailable("no room")

    monkeypatch.setattr("taskgen.grading.grade.WAIT_S", 0.0)
    monkeypatch.setattr(options.provider, "create", broken)
    found, _ = run(tasks, NullPolicy(), options)
    assert found.status is Status.NOT_RUN and "no room" in found.reason
    assert row_of(tasks)["difficulty"] is None


def test_a_task_whose_gold_patch_fails_is_broken_and_not_hard(tasks: Path, options: Options) -> None:
    (folder,) = tasks_of(tasks)
    patch = (folder / "gold.patch").read_text()
    (folder / "gold.patch").write_text(patch.replace("+    return area", "+    return area + 1"))
    loaded.cache_clear()
    found, _ = run(tasks, NullPolicy(), options)
    assert found.status is Status.BROKEN and row_of(tasks)["difficulty"] is None


def test_the_command(tasks: Path, build_cache: Path) -> None:
    ended = taskgen("calibrate", tasks, "--policy", "gold", "--json", cache=build_cache)
    assert ended.code == 0, ended.stderr
    assert ended.json()["bands"] == {"too-hard": 0, "learnable": 0, "too-easy": 1}
    assert "1 of 1 tasks are open" in ended.stderr
    for wrong in (["--band", "0.7"], ["--band", "0.9:0.1"], ["--max-samples", "0"]):
        assert taskgen("calibrate", tasks, "--policy", "null", *wrong, cache=build_cache).code == 2
    assert taskgen("calibrate", tasks, "--policy", "nil", cache=build_cache).code == 1
