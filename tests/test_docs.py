"""Documentation is checked against the code: every command, option, key, stage and recipe is described."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from taskgen import config
from taskgen.behaviour import BehaviourConfig
from taskgen.cli import app
from taskgen.training.config import TrainConfig
from taskgen.training.reading_config import HeldOutSection, PretrainConfig, SftConfig

ROOT = Path(__file__).parent.parent
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_has_a_page_with_all_its_options(name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    options = {o for p in COMMANDS[name].params for o in p.opts if o.startswith("--") and o != "--help"}
    assert options == set(re.findall(r"^\| `(--[a-z-]+)", page, re.MULTILINE))


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_and_option_has_help(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert all(p.help for p in command.params if p.name != "help")  # type: ignore[attr-defined]


def test_each_key_of_repos_yaml_is_documented() -> None:
    page = (ROOT / "docs" / "build.md").read_text("utf-8")
    keys = set(config._RepoModel.model_fields)
    assert {key for key in keys if f"`{key}" not in page} == set()


def test_the_readme_names_each_command_and_recipe() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    recipes = [file.stem for file in config.find_data("recipes").glob("*.yaml")]
    assert [name for name in [*recipes, *(f"taskgen {c}" for c in COMMANDS)] if f"`{name}" not in readme] == []


def test_each_key_of_a_training_configuration_is_documented() -> None:
    page = (ROOT / "docs" / "train.md").read_text("utf-8")
    sections = {key: field.annotation for key, field in TrainConfig.model_fields.items() if key != "stage"}
    keys = [*sections, *(f"{a}.{b}" for a, section in sections.items() for b in getattr(section, "model_fields", ()))]
    shown = {key for key in keys if f"`{key}`" in page or f"`.{key.rpartition('.')[2]}`" in page}
    beneath = {key for key in keys if any(other.startswith(f"{key}.") for other in keys)}
    assert set(keys) - shown - beneath - {f"behaviour.{key}" for key in BehaviourConfig.model_fields} == set()


def test_each_key_of_the_stages_that_read_is_documented() -> None:
    page = (ROOT / "docs" / "pretrain.md").read_text("utf-8").partition("## Configuration")[2]
    keys = {*PretrainConfig.model_fields, *SftConfig.model_fields}
    assert {key for key in keys if f"`{key}`" not in page and f"`{key}." not in page} == set()
    assert {key for key in HeldOutSection.model_fields if f".{key}`" not in page} == set()
