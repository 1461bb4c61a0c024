"""``taskgen train``: the trainer is another process, whose output and exit code are passed on."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from taskgen.cli import app
from taskgen.commands import train
from taskgen.errors import ConfigError, PrerequisiteError
from taskgen.training.config import load_config
from taskgen.training.reading_config import load_stage

EXAMPLE = Path(__file__).parent.parent / "trainer" / "examples" / "kimi-k2.yaml"


def test_a_plan_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A folder of this name where the command is given is not the trainer.
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__main__.py").write_text("raise SystemExit(77)", "utf-8")
    monkeypatch.chdir(tmp_path)
    done = train.plan(EXAMPLE, target_s=None, picture=Path("step.svg"), as_json=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["parameters"] > 1e12 and found["plan"]["step_s"] > 0
    assert (tmp_path / "step.svg").read_text("utf-8").startswith("<svg")


def test_what_the_trainer_says_of_a_mistake_is_passed_on(tmp_path: Path) -> None:
    config = tmp_path / "plan.yaml"
    config.write_text("model:\n  preset: kimi-k2\nclusters: {}\n", "utf-8")
    result = CliRunner().invoke(app, ["train", str(config), "--plan"])
    assert result.exit_code == 1
    assert f"error: {config}:3: unknown key 'clusters'; did you mean 'cluster'?" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--target", "1"], "are for --plan"), (["--plan", "--target", "0"], "seconds above 0, not 0.0")],
)
def test_wrong_usage_is_said(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["train", str(EXAMPLE), *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_without_torch_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    with pytest.raises(PrerequisiteError, match=r"pip install 'taskgen\[train\]'"):
        train.plan(EXAMPLE, target_s=None, picture=None, as_json=False)


def test_a_configuration_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.yaml: there is no such file"):
        train.plan(tmp_path / "no.yaml", target_s=None, picture=None, as_json=False)


def test_the_examples_are_configurations() -> None:
    for name in ("smollm2", "gpu-node"):
        assert load_config(EXAMPLE.with_name(f"{name}.yaml")).stage == "rl"
    for name in ("pretrain", "sft"):
        assert load_stage(EXAMPLE.with_name(f"{name}.yaml")).stage == name
