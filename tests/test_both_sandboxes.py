"""Both sandboxes give the same task set, byte for byte, and grade alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build_helpers import make_project, taskgen, tasks_of, write_repos

SAME = ("workspace.tar.zst", "tests.tar.zst", "gold.patch", "deletion.patch", "instruction.md")


@pytest.fixture(scope="module")
def sets(
    tmp_path_factory: pytest.TempPathFactory, build_cache: Path, bubblewrap: None, docker_engine: None
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("both")
    repos = write_repos(folder, {"path": str(make_project(folder / "demo"))})
    found = {}
    for kind in ("bubblewrap", "docker"):
        found[kind] = folder / kind
        ended = taskgen("build", repos, "--out", found[kind], "--sandbox", kind, cache=build_cache)
        assert ended.code == 0, ended.stderr
    return found


def test_the_same_ids_and_bytes_on_both(sets: dict[str, Path]) -> None:
    here, there = (tasks_of(sets[kind]) for kind in ("bubblewrap", "docker"))
    assert [task.name for task in here] == [task.name for task in there]
    assert here
    for a, b in zip(here, there, strict=True):
        assert [f for f in SAME if (a / f).read_bytes() != (b / f).read_bytes()] == []


@pytest.mark.parametrize("kind", ["bubblewrap", "docker"])
def test_gold_resolves_and_the_empty_patch_does_not(sets: dict[str, Path], build_cache: Path, kind: str) -> None:
    task = tasks_of(sets[kind])[0]
    gold = taskgen("grade", task, "--gold", "--json", "--sandbox", kind, cache=build_cache)
    assert (gold.code, gold.json()["kind"], gold.json()["failed"]) == (0, "resolved", {})
    empty = taskgen("grade", task, "--empty", "--json", "--sandbox", kind, cache=build_cache)
    assert (empty.code, empty.json()["kind"]) == (4, "unresolved")
    assert set(empty.json()["failed"].values()) == {"failed"}
