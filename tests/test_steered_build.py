"""``taskgen build --policy --band`` on a small project: what is kept and what is not; runs that stop or have faults."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.build_helpers import Ended, make_project, snapshot, start, taskgen, tasks_of, write_repos

#: Solved by ``rates``, or never: each task's rate is set by its id.
NEVER = "kind: scripted\nsolves: 0.0\n"
HALF = "kind: scripted\nsolves: 0.5\n"


class Project:
    def __init__(self, root: Path, cache: Path) -> None:
        self.root, self.cache = root, cache
        self.repos = write_repos(root, {"path": str(make_project(root / "demo"))})

    def arguments(self, out: Path, policy: str) -> list[str | Path]:
        (self.root / "p.yaml").write_text(policy)
        return ["build", self.repos, "--out", out, "--policy", self.root / "p.yaml", "--max-tasks", "2"]

    def build(self, out: Path, policy: str, *more: str) -> Ended:
        return taskgen(*self.arguments(out, policy), *more, cache=self.cache)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, build_cache: Path, bubblewrap: None) -> Project:
    return Project(tmp_path_factory.mktemp("steered"), build_cache)


@pytest.fixture(scope="module")
def half(project: Project) -> tuple[Path, Ended]:
    """A set of tasks that are solved half of the time."""
    return project.root / "half", project.build(project.root / "half", HALF, "--json")


def rejected(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]


def steady(out: Path) -> dict[str, bytes]:
    """What two runs must agree on."""
    found = {n: d for n, d in snapshot(out).items() if not n.endswith(("task.json", ".parquet", ".lock", "build.json"))}
    return {n: d for n, d in found.items() if n != "rollouts.jsonl"}


def test_what_lies_in_the_band_is_kept_with_its_difficulty(project: Project, half: tuple[Path, Ended]) -> None:
    out, ended = half
    assert ended.code == 0, ended.stderr
    (repo,) = ended.json()["repos"]
    assert repo["accepted"] == {"function": 2} and "trying" in ended.stderr
    rows = pq.read_table(out / "tasks.parquet").to_pylist()
    assert [row["instance_id"] for row in rows] == [folder.name for folder in tasks_of(out)] and len(rows) == 2
    for row in rows:
        assert (row["difficulty"]["policy"], row["difficulty"]["band"]) == ("scripted", "learnable")
        assert 0.25 <= row["difficulty"]["pass_at_1"] <= 0.75
    assert not list((out / ".taskgen" / "attempted" / "tasks").iterdir())
    # The same rollouts serve calibrate.
    again = taskgen(
        "calibrate", out, "--policy", project.root / "p.yaml", "--max-samples", "16", "--json", cache=project.cache
    )
    assert (again.code, again.json()["rollouts"]) == (0, 0), again.stderr
    # Nothing is done again, and another policy or band is another set.
    before = snapshot(out)
    assert project.build(out, HALF).code == 0
    assert [n for n, d in snapshot(out).items() if d != before[n]] in ([], ["build.json"])
    for other in (project.build(out, NEVER), project.build(out, HALF, "--band", "0.1:0.9")):
        assert other.code == 1 and "other settings (target)" in other.stderr


def test_what_lies_out_of_it_is_a_rejection(project: Project, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = project.build(out, NEVER, "--json")
    assert ended.code == 4, ended.stderr
    (repo,) = ended.json()["repos"]
    assert tasks_of(out) == [] and pq.read_table(out / "tasks.parquet").num_rows == 0
    bands = [r for r in rejected(out) if r["stage"] == "band"]
    assert bands and {r["reason"] for r in bands} == {"too hard for the policy"}
    assert all(r["detail"].startswith("0 of ") for r in bands)
    assert repo["rejected"]["band: too hard for the policy"] == len(bands) == len(repo["attempted"])
    assert any("2 of 2 tasks in the band are missing" in note for note in repo["notes"])


def test_an_interrupted_run_goes_on(project: Project, half: tuple[Path, Ended], tmp_path: Path) -> None:
    whole, out = half[0], tmp_path / "out"
    process = start(*project.arguments(out, HALF), cache=project.cache)
    assert process.stderr is not None
    for line in process.stderr:
        if b": attempts" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    said = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(60) == 130, said
    listed = [row["instance_id"] for row in pq.read_table(out / "tasks.parquet").to_pylist()]
    assert listed == [folder.name for folder in tasks_of(out)]
    rollouts = (out / "rollouts.jsonl").read_text().splitlines() if (out / "rollouts.jsonl").exists() else []
    assert all(json.loads(line)["reward"] is not None for line in rollouts), "being stopped is no fault"
    assert project.build(out, HALF).code == 0
    assert steady(out) == steady(whole)


def test_a_policy_that_is_gone_decides_nothing(project: Project, tmp_path: Path) -> None:
    out = tmp_path / "out"
    gone = "kind: openai\nmodel: m\nendpoint: http://127.0.0.1:9/v1\nattempts: 1\n"
    ended = project.build(out, gone)
    assert ended.code == 1 and "error:" in ended.stderr, ended.stderr
    assert tasks_of(out) == []
    assert not (out / "rejected.jsonl").exists() or not [r for r in rejected(out) if r["stage"] == "band"]


def test_wrong_usage(project: Project, tmp_path: Path) -> None:
    for wrong in (["--band", "0.1:0.9"], ["--policy", "null", "--band", "0.9:0.1"]):
        ended = taskgen("build", project.repos, "--out", tmp_path / "out", *wrong, cache=project.cache)
        assert ended.code == 2 and "--band" in ended.stderr
