from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from taskgen.config import find_data, load_recipes, load_repos
from taskgen.errors import ConfigError
from taskgen.types import RepoSpec, SourceKind


def repos(tmp_path: Path, text: str) -> tuple[RepoSpec, ...]:
    file = tmp_path / "repos.yaml"
    file.write_text(text, "utf-8")
    return load_repos(file)


def test_repos_full(tmp_path: Path) -> None:
    specs = repos(
        tmp_path,
        """\
repos:
  - pypi: Typing.Extensions==4.12.0
    sha256: "1a7ead55c7e559dd4dee8856e3a88b41225abfe1ce8df57b7c13915fe121ffb8"
    timeout_s: 30
    test_command: python -m pytest -q
    install: ["pip install -e ."]
    requirements: ["hypothesis>=6"]
  - git: https://example.org/group/Owner/name.git
    revision: v1.0
    language: python
    include: ["src/**"]
  - git: git@example.org:me/tool.git
    revision: "0123456789012345678901234567890123456789"
  - path: some/dir
    name: mine/dir
  - path: other
""",
    )
    assert [spec.name for spec in specs] == [
        "pypi/typing-extensions",
        "Owner/name",
        "me/tool",
        "mine/dir",
        "local/other",
    ]
    first = specs[0]
    assert (first.kind, first.location, first.revision) == (SourceKind.SDIST, "typing-extensions", "4.12.0")
    assert first.timeout_s == 30.0
    assert first.requirements == ("hypothesis>=6",)
    assert first.where == f"{tmp_path / 'repos.yaml'}:2"
    assert specs[1].include == ("src/**",)
    assert specs[3].location == "some/dir"
    assert specs[3].base == str(tmp_path.resolve())
    assert specs[3].revision == ""


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("repos:\n  - pypi: a==1\n    lang: x\n", "repos.yaml:3: unknown key 'lang'", "language"),
        ("repos:\n  - pypi: a==1\n    timout_s: 3\n", "3: unknown key 'timout_s'", "did you mean 'timeout_s'?"),
        ("reops: []\n", "1: unknown key 'reops'", "did you mean 'repos'?"),
        ("repos:\n  - pipy: a==1\n", "2: unknown key 'pipy'", "did you mean 'pypi'?"),
        ("repos:\n  - pypi: a>=1\n", "2: repos.0.pypi: must be name==version, found 'a>=1'", ""),
        ("repos:\n  - pypi: a==1.*\n", "must be name==version", ""),
        ("repos:\n  - pypi: a[x]==1\n", "must be name==version", ""),
        ("repos:\n  - pypi: a==1\n    path: b\n", "exactly one of pypi:, git: and path:, has pypi, path", ""),
        ("repos:\n  - name: a/b\n", "exactly one of pypi:, git: and path:, has none", ""),
        ("repos:\n  - git: https://e.org/a/b\n", "git: needs revision:", ""),
        ("repos:\n  - git: https://e.org/a/b\n    revision: 1234567\n", "3: repos.0.revision: expected text", "quotes"),
        ("repos:\n  - git: https://e.org/a/b\n    revision: --upload-pack=x\n", "3: repos.0.revision", ""),
        ("repos:\n  - pypi: a==1\n    timeout_s: fast\n", "3: repos.0.timeout_s: expected a number, found 'fast'", ""),
        ("repos:\n  - pypi: a==1\n    timeout_s: true\n", "3: repos.0.timeout_s", ""),
        ("repos:\n  - pypi: a==1\n    timeout_s: -1\n", "3: repos.0.timeout_s", ""),
        ("repos:\n  - pypi: a==1\n    timeout_s: .inf\n", "3: repos.0.timeout_s", ""),
        ("repos:\n  - pypi: a==1\n    install: pip\n", "3: repos.0.install: expected a list", "['pip']"),
        ("repos:\n  - pypi: a==1\n    install:\n      - 1\n", "4: repos.0.install.0: expected text", ""),
        ("repos:\n  - pypi: a==1\n    sha256: abc\n", "3: repos.0.sha256", ""),
        ("repos:\n  - pypi: a==1\n    test_command: tox\n", "3: repos.0.test_command: must begin with", ""),
        ("repos:\n  - pypi: a==1\n    test_command: pytest '\n", "3: repos.0.test_command: No closing", ""),
        ("repos:\n  - pypi: a==1\n    requirements: ['a b']\n", "3: repos.0.requirements", ""),
        ("repos:\n  - pypi: a==1\n    name: x\n", "3: repos.0.name: must be owner/name", ""),
        ("repos:\n  - pypi: a==1\n    pypi: b==1\n", '3: found duplicate key "pypi"', ""),
        ("repos:\n  - pypi: a==1\n  - pypi: A==2\n", "3: the name 'pypi/a' is taken by the entry at", "name:"),
        ("repos:\n  - pypi: a==1\n    name: x/y-z\n  - pypi: b==1\n    name: x-y/z\n", "is taken", "name:"),
        ("repos: []\n", "1: repos: ", ""),
        ("repos:\n", "1: repos: expected a list", ""),
        ("", "1: expected keys and values at the top level, found nothing", ""),
        ("- a\n", "1: expected keys and values at the top level", ""),
        ("repos:\n  - a: [\n", "not valid YAML", ""),
        ("repos: !!python/object:os.system x\n", "repos", ""),
        ("\x00", "not valid YAML", ""),
        ("repos:\n  - path: /\n", "2: no name can be made of '/'", "add name: owner/name"),
    ],
)
def test_repos_mistakes(tmp_path: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        repos(tmp_path, text)
    assert message in caught.value.args[0]
    assert str(tmp_path / "repos.yaml") in caught.value.args[0]
    assert hint in (caught.value.hint or "")


def test_repos_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load_repos(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_repos(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"repos: \xff\n")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load_repos(tmp_path / "latin.yaml")


RECIPE = """\
name: function
operator: function
languages: [python]
bounds:
  lines: [4, 80]
  files: [1, 1]
  definitions: [1, 1]
  fail_to_pass: [1, 150]
  max_suite_share: 0.5
  max_collateral_share: 0.5
max_tasks: 5
max_candidates: 20
"""


def recipe_folder(tmp_path: Path, text: str = RECIPE) -> Path:
    (tmp_path / "function.yaml").write_text(text)
    (tmp_path / "function.md.j2").write_text("Write {{ name }}.\n")
    return tmp_path


def test_recipe(tmp_path: Path) -> None:
    (recipe,) = load_recipes(recipe_folder(tmp_path))
    assert (recipe.bounds.min_lines, recipe.bounds.max_lines) == (4, 80)
    assert recipe.keep_signature
    assert recipe.keep_docstring
    assert recipe.template == "Write {{ name }}.\n"
    raw = (tmp_path / "function.yaml").read_bytes() + b"\0" + recipe.template.encode()
    assert recipe.sha256 == hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("lines: [4, 80]", "lines: [80, 4]", "5: bounds.lines: must be [min, max]", ""),
        ("lines: [4, 80]", "lines: [4]", "5: bounds.lines", ""),
        ("lines: [4, 80]", "lines: 4", "5: bounds.lines: expected a list [min, max]", ""),
        ("lines: [4, 80]", "line: [4, 80]", "5: unknown key 'line'", "did you mean 'lines'?"),
        ("lines: [4, 80]", "lines: [-4, 80]", "5: bounds.lines.0", ""),
        ("  files: [1, 1]\n", "", "4: bounds.files is missing", "add files:"),
        ("operator: function", "operator: functoin", "2: operator: ", "did you mean 'function'?"),
        ("name: function", "name: other", "1: name: is 'other', the file's is 'function'", "same"),
        ("[python]", "[python, python]", "3: languages: 'python' is there twice", ""),
        ("[python]", "[]", "3: languages", ""),
        ("share: 0.5", "share: 1.5", "9: bounds.max_suite_share", ""),
        ("max_tasks: 5", "max_tasks: 5.0", "11: max_tasks: expected a whole number, found 5.0", ""),
        ("max_tasks: 5", "max_tasks: 0", "11: max_tasks", ""),
        ("max_tasks: 5", "keep_signature: 1", "keep_signature: expected true or false, found 1", ""),
        ("max_tasks: 5", "max_taks: 5", "11: unknown key 'max_taks'", "did you mean 'max_tasks'?"),
    ],
)
def test_recipe_mistakes(tmp_path: Path, old: str, new: str, message: str, hint: str) -> None:
    assert old in RECIPE
    text = RECIPE.replace(old, new, 1)
    if "max_tasks" in old and "keep" in new:
        text += "max_tasks: 5\n"
    with pytest.raises(ConfigError) as caught:
        load_recipes(recipe_folder(tmp_path, text))
    assert message in caught.value.args[0]
    assert hint in (caught.value.hint or "")


def test_recipe_folder_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no recipe"):
        load_recipes(tmp_path)
    (recipe_folder(tmp_path) / "function.md.j2").unlink()
    with pytest.raises(ConfigError, match=r"function\.md\.j2: there is no such file"):
        load_recipes(tmp_path)


def test_recipe_digest_covers_the_template(tmp_path: Path) -> None:
    (before,) = load_recipes(recipe_folder(tmp_path))
    (tmp_path / "function.md.j2").write_text("Other.\n")
    (after,) = load_recipes(tmp_path)
    assert before.sha256 != after.sha256


def test_recipes_are_chosen_by_name_and_others_only_if_they_are_defaults(tmp_path: Path) -> None:
    recipe_folder(tmp_path)
    small = RECIPE.replace("name: function", "name: small\ntemplate: function.md.j2\ndefault: false")
    (tmp_path / "small.yaml").write_text(small)
    assert [recipe.name for recipe in load_recipes(tmp_path)] == ["function"]
    (recipe,) = load_recipes(tmp_path, ["small"])
    assert (recipe.name, recipe.template) == ("small", "Write {{ name }}.\n")
    assert [recipe.name for recipe in load_recipes(tmp_path, ["small", "function"])] == ["function", "small"]
    with pytest.raises(ConfigError, match="--recipe smal: no such recipe") as caught:
        load_recipes(tmp_path, ["smal"])
    assert caught.value.hint == "known: function, small"
    (tmp_path / "function.yaml").unlink()
    with pytest.raises(ConfigError, match="default: false"):
        load_recipes(tmp_path)


def test_a_template_lies_in_the_folder_of_its_recipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="template"):
        load_recipes(recipe_folder(tmp_path, RECIPE + "template: ../function.md.j2\n"))


def test_own_recipes(tmp_path: Path) -> None:
    """The recipes that travel with taskgen are valid, whatever their templates are; five are a build's defaults."""
    for file in find_data("recipes").glob("*.yaml"):
        shutil.copy(file, tmp_path)
        (tmp_path / f"{file.stem}.md.j2").write_text("x")
    names = sorted(file.stem for file in tmp_path.glob("*.yaml"))
    recipes = load_recipes(tmp_path, names)
    assert set(names) - {recipe.name for recipe in load_recipes(tmp_path)} == {"short-function"}
    assert {recipe.operator for recipe in recipes} >= {"function", "method-group", "class", "module", "feature"}
    assert all(recipe.max_candidates >= recipe.max_tasks for recipe in recipes)


def test_find_data_unknown() -> None:
    with pytest.raises(ConfigError, match="not part of this installation"):
        find_data("no-such-thing")
