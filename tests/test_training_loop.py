"""``taskgen train``: it learns, it goes on after a kill as if nothing had happened, on any number of ranks."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from taskgen.behaviour import BehaviourConfig
from taskgen.errors import SandboxUnavailable
from taskgen.hints.rules import load_rules
from taskgen.hints.writer import Hinter
from taskgen.policies.policy import Completion, Form, Sampling
from taskgen.rollout_file import Grade, RolloutFile
from taskgen.stopper import Stopper
from taskgen.training.config import CurriculumSection, OrderSection
from taskgen.training.curriculum import Pool, Seen, draw, pool_of, pools
from taskgen.training.groups import Graded, Sampler
from taskgen.training.learner import Sampled
from taskgen.training.orders import Orders
from taskgen.training.state import Counted
from taskgen.trajectories import read_rollouts
from taskgen.types import Rollout
from tests.build_helpers import Ended, environment, make_project, taskgen, write_repos
from trainer.pretrained import load_pretrained

SCRIPT = Path(__file__).with_name("training_run.py")
TIMED = {"seconds", "tokens_per_s", "seconds_of"}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory, build_cache: Path, bubblewrap: None) -> Path:
    folder = tmp_path_factory.mktemp("training")
    ended = taskgen(
        "build", write_repos(folder, {"path": str(make_project(folder / "demo"))}), "--out", folder / "set",
        cache=build_cache,
    )  # fmt: skip
    assert ended.code == 0, ended.stderr
    return folder / "set"


def config(folder: Path, tasks: Path, model: Path, **more: Any) -> Path:  # noqa: ANN401 - YAML
    document: dict[str, Any] = {
        "tasks": str(tasks), "policy": {"model": str(model), "dtype": "float32"},
        "sampling": {"max_tokens": 6, "temperature": 1.0, "context_chars": 100}, "steps": 4, "groups": 1,
        "group_size": 6, "optimizer": {"muon": {"lr": 0.01}, "adamw": {"lr": 0.01}}, "checkpoint": {"every": 1},
    }  # fmt: skip
    path = folder / "run.yaml"
    path.write_text(json.dumps(document | more))  # JSON is YAML
    return path


def start(config: Path, out: Path, cache: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(SCRIPT), "train", str(config), "--out", str(out), "--json"]
    env = environment(cache, PYTHONPATH=str(SCRIPT.parent.parent))
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )  # fmt: skip


def run(config: Path, out: Path, cache: Path) -> Ended:
    process = start(config, out, cache)
    stdout, stderr = process.communicate(timeout=300)
    return Ended(process.returncode, stdout.decode(), stderr.decode())


def records(out: Path) -> list[dict[str, Any]]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMED} for line in lines]


def rollouts(out: Path) -> list[tuple[str, float | None]]:
    lines = (out / "rollouts.jsonl").read_text().splitlines()
    return [(r["rollout_id"], r["reward"]) for r in map(json.loads, lines)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tasks: Path, tiny_model: Path, build_cache: Path) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    ended = run(config(folder, tasks, tiny_model), folder / "out", build_cache)
    assert ended.code == 0, ended.stderr
    (folder / "model").symlink_to(tiny_model)
    return folder


def test_a_run_leaves_metrics_rollouts_checkpoints_and_a_page(whole: Path) -> None:
    out = whole / "out"
    steps = [record for record in records(out) if record["kind"] == "step"]
    assert [record["step"] for record in steps] == [1, 2, 3, 4]
    assert all(0 <= record["pass_rate"] <= 1 and record["tokens"] > 0 for record in steps)
    assert {record["staleness_max"] for record in steps} <= {0, 1}
    assert steps[-1]["loss"] != steps[0]["loss"]
    assert (out / "report.html").is_file() and list((out / "tensorboard").iterdir())
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step-3", "step-4"]
    assert len({name for name, _ in rollouts(out)}) == len(rollouts(out))
    trained = load_pretrained(str(out / "weights"), out)
    begun = load_pretrained(str(whole / "model"), out)
    assert not torch.equal(trained.model.layers[0].mlp.up_proj.weight, begun.model.layers[0].mlp.up_proj.weight)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_run_goes_on_with_the_same_tasks_and_the_same_losses(
    seed: int,
    whole: Path,
    tasks: Path,
    tiny_model: Path,
    build_cache: Path,
    tmp_path: Path,
) -> None:
    """Rollouts that were made but not learnt from are neither lost nor made anew with others (NeMo-RL #3599,
    OpenRLHF #1322): a resumed run sees the very stream of the one that was not stopped."""
    path, out = config(tmp_path, tasks, tiny_model), tmp_path / "out"
    process = start(path, out, build_cache)
    kill_after(process, out, lines=seed, wait_s=random.Random(seed).uniform(0, 0.5))
    ended = run(path, out, build_cache)
    assert ended.code == 0, ended.stderr
    assert records(out) == records(whole / "out")
    assert rollouts(out) == rollouts(whole / "out")


def kill_after(process: subprocess.Popen[bytes], out: Path, *, lines: int, wait_s: float) -> None:
    """SIGKILL to taskgen alone, once so many records stand: the trainer must notice by itself."""
    deadline = time.monotonic() + 200
    metrics = out / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= lines):
        assert process.poll() is None and time.monotonic() < deadline, process.stderr and process.stderr.read()
        time.sleep(0.02)
    time.sleep(wait_s)
    process.kill()
    process.communicate()


def test_ctrl_c_leaves_a_checkpoint_and_a_page(
    tasks: Path,
    tiny_model: Path,
    build_cache: Path,
    tmp_path: Path,
    whole: Path,
) -> None:
    path, out = config(tmp_path, tasks, tiny_model, checkpoint={"every": 1000}, steps=1000), tmp_path / "out"
    process = start(path, out, build_cache)
    deadline = time.monotonic() + 200
    while not ((out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    said = json.loads(stdout)
    assert said["stopped"] and said["step"] < 1000
    assert (out / "checkpoints" / f"step-{said['step']}").is_dir() and (out / "report.html").is_file()
    ended = run(config(tmp_path, tasks, tiny_model, steps=max(4, said["step"])), out, build_cache)
    assert ended.code == 0, ended.stderr
    assert records(out)[:4] == records(whole / "out")


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_have_the_losses_of_one_process(
    ranks: int,
    whole: Path,
    tasks: Path,
    tiny_model: Path,
    build_cache: Path,
    tmp_path: Path,
) -> None:
    policy = {"model": str(tiny_model), "dtype": "float32", "ranks": ranks}
    path = config(tmp_path, tasks, tiny_model, policy=policy)
    ended = run(path, tmp_path / "out", build_cache)
    assert ended.code == 0, ended.stderr
    for mine, theirs in zip(records(tmp_path / "out"), records(whole / "out"), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=2e-4)
        assert mine["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=2e-3)
    assert rollouts(tmp_path / "out") == rollouts(whole / "out")


def test_a_run_of_four_ranks_goes_on_with_two(
    whole: Path, tasks: Path, tiny_model: Path, build_cache: Path, tmp_path: Path
) -> None:
    for ranks, steps in ((4, 2), (2, 4)):
        policy = {"model": str(tiny_model), "dtype": "float32", "ranks": ranks}
        ended = run(config(tmp_path, tasks, tiny_model, policy=policy, steps=steps), tmp_path / "out", build_cache)
        assert ended.code == 0, ended.stderr
    found = [(r["step"], r["loss"]) for r in records(tmp_path / "out")]
    assert found == [(r["step"], pytest.approx(r["loss"], abs=2e-4)) for r in records(whole / "out")]


def test_another_configuration_does_not_go_on_with_a_run(
    whole: Path, tasks: Path, tiny_model: Path, build_cache: Path, tmp_path: Path
) -> None:
    ended = run(config(tmp_path, tasks, tiny_model, group_size=4), whole / "out", build_cache)
    assert ended.code == 1 and "group_size" in ended.stderr and "begun with" in ended.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"grops": 3}, "did you mean 'groups'"),
        ({"sampling": {"temperature": 0.0}}, "temperature must be above 0"),
        ({"policy": {"model": "/nowhere"}}, "/nowhere"),
        ({"policy": {"ranks": 4, "dp_replicate": 3}}, "does not divide"),
        ({"optimizer": {"frozen": ["nothing-like-it"]}}, "is in no parameter's name"),
    ],
)
def test_wrong_configurations_are_told_and_leave_nothing(
    more: dict[str, Any],
    said: str,
    tasks: Path,
    tiny_model: Path,
    build_cache: Path,
    tmp_path: Path,
) -> None:
    ended = run(config(tmp_path, tasks, tiny_model, **more), tmp_path / "out", build_cache)
    assert ended.code == 1 and said in ended.stderr, ended.stderr


# --- Groups ----------------------------------------------------------------------------------------------


class Canned:
    """A learner that gives the same texts for every question."""

    form, step = Form.CONTINUATION, 3

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def generate(self, questions: Any, seeds: Any, sampling: Any) -> list[Sampled]:  # noqa: ANN401
        samples = tuple(
            Completion(
                text=text, form=self.form, finish_reason="stop", token_ids=(1, 2), logps=(-1.0, -2.0), n_tokens=2
            )
            for text in self._texts
        )
        return [Sampled((7, 8), samples) for _ in questions]


class Grading:
    """Right: a patch that says so. A patch that says "lost" meets a sandbox that dies."""

    def grade(self, folder: Path, patch: bytes) -> tuple[str, Grade, float]:
        if b"lost" in patch:
            raise SandboxUnavailable("the sandbox died")
        return patch.hex(), Grade(float(b"right" in patch), "", ""), 0.1


def graded(tasks: Path, out: Path, texts: list[str], **more: Any) -> tuple[Graded, list[Rollout]]:  # noqa: ANN401
    folder = next((tasks / "tasks").iterdir())
    with ThreadPoolExecutor(2) as pool:
        sampler = Sampler(
            Canned(texts), {folder.name: folder}, Sampling(max_tokens=8), seed=0, label="train",  # type: ignore[arg-type]
            behaviour=more.get("behaviour", BehaviourConfig()), hinter=Hinter(load_rules()), grader=Grading(),  # type: ignore[arg-type]
            file=RolloutFile(out / "rollouts.jsonl"), pool=pool, stopper=Stopper(),
        )  # fmt: skip
        (group,) = sampler.sample([folder.name], len(texts), 0)
        found = sampler.grade(group)()
    return found, list(read_rollouts(out / "rollouts.jsonl"))


BODIES = ["\n    return 'right'\n", "\n    return 'wrong'\n", "\n    return 'lost'\n", "\n    return ((\n"]


def test_a_lost_sandbox_leaves_its_group_alone_and_is_no_failure(tasks: Path, tmp_path: Path) -> None:
    found, rollouts = graded(tasks, tmp_path, BODIES)
    assert [outcome.reward for outcome in found.outcomes] == [1.0, 0.0, None, 0.0]
    assert found.known == (3, 1) and found.has_signal
    assert "the sandbox died" in found.outcomes[2].fault
    assert [rollout.reward for rollout in rollouts] == [1.0, 0.0, None, 0.0]
    assert [rollout.turns[-1].extra["token_ids"] for rollout in rollouts] == [[1, 2]] * 4


def test_hints_become_turns_that_a_step_is_taught(tasks: Path, tmp_path: Path) -> None:
    found, _ = graded(tasks, tmp_path, BODIES)
    assert found.outcomes[3].rule == "syntax-error" and found.outcomes[0].rule == ""
    (turn,) = (
        t
        for t, o in zip(found.turns(), [o for o in found.outcomes if o.hinted], strict=True)
        if o.rule == "syntax-error"
    )
    assert turn["context"] == {"ids": [7, 8]} and turn["tokens"] == [1, 2]
    assert "valid Python" in turn["hinted"]["text"]
    assert 3 in found.as_request(teaches=True)["hinted"] and found.as_request(teaches=False)["hinted"] == []


def test_what_the_monitor_flags_has_no_reward_and_is_counted(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskgen.training.groups.monitor", lambda rollout: ["flag"] if rollout.reward else [])
    monkeypatch.setattr("taskgen.training.groups.masks", bool)
    found, rollouts = graded(tasks, tmp_path, BODIES[:2])
    assert found.outcomes[0].masked and [outcome.reward for outcome in found.outcomes] == [None, 0.0]
    assert found.outcomes[0].passed, "it is known that its tests passed"
    assert not found.has_signal and rollouts[0].reward is None
    counted = Counted()
    counted.add(found)
    assert (counted.n_masked, counted.n_passed, counted.n_rewarded) == (1, 1, 1)


def test_behaviour_changes_the_reward_but_not_what_grading_is_known_to_say(tasks: Path, tmp_path: Path) -> None:
    behaviour = BehaviourConfig(efforts={"low": 1}, effort_weight=0.5)
    found, _ = graded(tasks, tmp_path, BODIES[:2], behaviour=behaviour)
    assert [outcome.reward for outcome in found.outcomes] == [0.5, 0.0] and found.known == (2, 1)
    again = RolloutFile(tmp_path / "rollouts.jsonl")
    assert sorted(grade.reward for grade in again.grades.values()) == [0.0, 1.0]


# --- Tasks that are ordered from build -------------------------------------------------------------------


@pytest.mark.parametrize("heldout", [False, True])
def test_when_few_tasks_are_left_more_are_built_and_join(
    heldout: bool, tasks: Path, build_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKGEN_CACHE", str(build_cache))
    repo = str(json.loads(next(tasks.glob("tasks/*/task.json")).read_text())["repo"])
    notes: list[str] = []
    orders = Orders(
        section=OrderSection(repos=tasks.parent / "repos.yaml", recipes=["function"], when_below=5), out=tmp_path,
        begun=0, heldout=frozenset([repo] if heldout else []), on_note=notes.append,
    )  # fmt: skip
    assert orders.poll(5) == {} and orders.begun == 0
    assert orders.poll(4) == {} and orders.begun == 1
    deadline = time.monotonic() + 300
    while len(notes) < 2:
        assert time.monotonic() < deadline
        new = orders.poll(4)
        time.sleep(0.1)
    assert set(new) == (set() if heldout else {path.name for path in (tasks / "tasks").iterdir()}), notes
    assert orders.poll(0) == {} and orders.begun == 1, "there is no further recipe"
    orders.close()


# --- The curriculum --------------------------------------------------------------------------------------

SECTION = CurriculumSection()


def test_tasks_at_a_half_are_drawn_most_and_none_is_forgotten() -> None:
    seen = {"half": Seen(8, 4), "hard": Seen(80, 0), "easy": Seen(80, 80)}
    counts = dict.fromkeys(seen, 0)
    for number in range(2000):
        counts[draw(list(seen), seen, 1, SECTION, random.Random(number))[0]] += 1
    # Weights 1 and twice the floor of 0.05.
    assert counts["half"] / 2000 == pytest.approx(1 / 1.1, abs=0.03)
    assert min(counts.values()) > 50


def test_a_draw_holds_no_task_twice_and_depends_on_its_seed_alone() -> None:
    tasks = [f"t{i}" for i in range(10)]
    first = draw(tasks, {}, 4, SECTION, random.Random("a"))
    assert len(set(first)) == 4
    assert first == draw(tasks[::-1], {}, 4, SECTION, random.Random("a"))
    assert len(draw(tasks, {}, 99, SECTION, random.Random(0))) == 10


def test_what_was_seen_is_forgotten_and_pools_follow() -> None:
    seen = Seen().after(8, 0, 0.5)
    assert pool_of(Seen(), SECTION) is Pool.NEW and pool_of(seen, SECTION) is Pool.HARD
    for _ in range(3):
        seen = seen.after(8, 8, 0.5)
    assert seen.n == pytest.approx(15) and pool_of(seen, SECTION) is Pool.EASY
    assert pool_of(seen.after(8, 0, 0.5), SECTION) is Pool.NORMAL
    assert pools(["a", "b"], {"a": seen}, SECTION) == {"new": 1, "hard": 0, "normal": 0, "easy": 1}
