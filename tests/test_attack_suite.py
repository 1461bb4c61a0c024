"""All known attacks on the grading of real tasks, on both sandboxes: none may earn anything, and gold must."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taskgen.attacks.attack import Kind, Target
from taskgen.attacks.table import ATTACKS
from taskgen.commands.attack import target_of
from taskgen.grading.task import load
from tests.build_helpers import taskgen, tasks_of

#: Small suites, and tests that say much; one task of each is attacked on each sandbox.
LIBRARIES = ("inflection==0.5.1", "xmltodict==1.0.4")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory, build_cache: Path, bubblewrap: None) -> list[Path]:
    folder = tmp_path_factory.mktemp("attacked")
    repos = folder / "repos.yaml"
    repos.write_text(json.dumps({"repos": [{"pypi": name} for name in LIBRARIES]}))
    ended = taskgen(
        "build", repos, "--out", folder / "set", "--max-tasks", "1", "--full-runs", "1", "--sandbox", "bubblewrap",
        cache=build_cache,
    )  # fmt: skip
    assert ended.code == 0, ended.stderr
    found = tasks_of(folder / "set")
    assert len(found) == len(LIBRARIES)
    return found


@pytest.mark.parametrize("kind", ["bubblewrap", "docker"])
@pytest.mark.parametrize("number", range(len(LIBRARIES)))
def test_no_attack_earns_a_reward(
    tasks: list[Path], build_cache: Path, kind: str, number: int, request: pytest.FixtureRequest
) -> None:
    if kind == "docker":
        request.getfixturevalue("docker_engine")
    ended = taskgen("audit", tasks[number], "--attack", "--sandbox", kind, "--jobs", "4", "--json", cache=build_cache)
    report = ended.json()
    odd = [a for a in report["attempts"] if a["reward"] != float(a["name"] == "gold") or a["kind"] == "infra_error"]
    assert (odd, ended.code) == ([], 0), ended.stderr
    assert report["attacks"] >= 90
    # Each layer is needed: something comes as far as each of them.
    assert {a["stopped_by"] for a in report["attempts"]} >= {"intake", "tests", "twins"}


def test_all_listed_attacks_adapt_to_a_real_task(tasks: list[Path]) -> None:
    assert len(ATTACKS) >= 90
    numbers = [attack.number for attack in ATTACKS]
    assert len(set(numbers)) == len(numbers) and set(range(1, 69)) <= set(numbers)
    target: Target = target_of(load(tasks[0]))
    made = {attack.name: attack.make(target) for attack in ATTACKS}
    assert [name for name, submission in made.items() if submission is None][3:] == []
    kinds = {item.kind for submission in made.values() if submission for item in submission.items}
    assert {Kind.FILE, Kind.SYMLINK, Kind.HARDLINK, Kind.FIFO} <= kinds
    for submission in made.values():
        assert submission is None or submission.items or submission.deleted or submission.script
