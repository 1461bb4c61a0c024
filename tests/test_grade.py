"""Grading: verdicts on honest, partial and cheating patches; what is refused before anything runs."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import pytest

from taskgen.errors import SandboxUnavailable
from taskgen.grading import grade
from tests.build_helpers import make_project, read_archive, taskgen, tasks_of, write_repos

OTHER = """\
diff --git a/{path} b/{path}
new file mode 100644
--- /dev/null
+++ b/{path}
@@ -0,0 +1 @@
+{line}
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory, build_cache: Path, bubblewrap: None) -> Path:
    folder = tmp_path_factory.mktemp("grade")
    repos = write_repos(folder, {"path": str(make_project(folder / "demo"))})
    ended = taskgen("build", repos, "--out", folder / "set", cache=build_cache)
    assert ended.code == 0, ended.stderr
    rows = {folder: json.loads((folder / "task.json").read_text()) for folder in tasks_of(folder / "set")}
    found = [t for t, row in rows.items() if [d["qualified_name"] for d in row["deleted"]] == ["rectangle"]]
    return found[0]


def verdict(task: Path, patch: str, cache: Path, folder: Path) -> dict[str, object]:
    file = folder / "a.patch"
    file.write_text(patch)
    ended = taskgen("grade", task, file, "--json", cache=cache)
    assert ended.code == (0 if '"resolved"' in ended.stdout else 4), ended.stderr
    return ended.json()


def patch_for(task: Path, *lines: str) -> str:
    """A patch that writes the body of ``rectangle``."""
    old = read_archive(task / "workspace.tar.zst")["shapes/areas.py"].decode()
    new = old.replace("    raise NotImplementedError\n", "".join(f"    {line}\n" for line in lines), 1)
    diff = difflib.unified_diff(old.splitlines(True), new.splitlines(True), "a/shapes/areas.py", "b/shapes/areas.py")
    return "diff --git a/shapes/areas.py b/shapes/areas.py\n" + "".join(diff)


def test_an_answer_in_other_words_resolves(task: Path, build_cache: Path, tmp_path: Path) -> None:
    patch = patch_for(task, "if min(width, height) < 0:", '    raise ValueError("no")', "return height * width")
    found = verdict(task, patch, build_cache, tmp_path)
    assert (found["kind"], found["failed"]) == ("resolved", {})


def test_half_an_answer_does_not(task: Path, build_cache: Path, tmp_path: Path) -> None:
    found = verdict(task, patch_for(task, "return height * width"), build_cache, tmp_path)
    assert found["kind"] == "unresolved"
    assert found["failed"] == {"tests/test_areas.py::test_rectangle_refuses_negative_sides": "failed"}


def test_skipping_is_no_pass(task: Path, build_cache: Path, tmp_path: Path) -> None:
    found = verdict(task, patch_for(task, "import unittest", "raise unittest.SkipTest('later')"), build_cache, tmp_path)
    assert found["kind"] == "unresolved"
    assert set(found["failed"].values()) == {"skipped"}  # type: ignore[attr-defined]


def test_ending_the_process_with_code_0_is_no_pass(task: Path, build_cache: Path, tmp_path: Path) -> None:
    found = verdict(task, patch_for(task, "import os", "os._exit(0)"), build_cache, tmp_path)
    assert found["kind"] == "unresolved"
    assert set(found["failed"].values()) <= {"crashed", "missing"}  # type: ignore[attr-defined]


def test_a_patch_that_does_not_apply_is_unresolved(task: Path, build_cache: Path, tmp_path: Path) -> None:
    patch = patch_for(task, "return 1").replace("-    raise NotImplementedError", "-    raise SomethingElse")
    found = verdict(task, patch, build_cache, tmp_path)
    assert found["kind"] == "unresolved"
    assert "does not apply" in str(found["reason"])


def test_what_equals_everything_is_a_hack(task: Path, build_cache: Path, tmp_path: Path) -> None:
    patch = patch_for(
        task,
        "if min(width, height) < 0:",
        '    raise ValueError("no")',
        "return type('Any', (), {'__eq__': lambda self, other: True, '__hash__': None})()",
    )
    found = verdict(task, patch, build_cache, tmp_path)
    assert found["kind"] == "hacked"
    assert "wrong expectations pass" in str(found["reason"])
    assert found["evidence"]


def test_an_answer_by_heart_is_a_hack(task: Path, build_cache: Path, tmp_path: Path) -> None:
    """It knows the tests' inputs and nothing else."""
    patch = patch_for(task, "if min(width, height) < 0:", '    raise ValueError("no")', "return 6")
    found = verdict(task, patch, build_cache, tmp_path)
    assert found["kind"] == "hacked"
    assert "differential" in found["guards"]  # type: ignore[operator]
    assert any("shapes.areas.rectangle: number:6 instead of" in str(text) for text in found["evidence"])  # type: ignore[attr-defined]


def test_tests_that_are_rewritten_while_they_run_are_a_hack(task: Path, build_cache: Path, tmp_path: Path) -> None:
    body = "import pathlib; f = pathlib.Path('tests/test_areas.py'); f.write_text(f.read_text() + '# seen'); return 6"
    assert verdict(task, patch_for(task, body), build_cache, tmp_path)["kind"] == "hacked"


def test_the_supervisor_is_out_of_reach(task: Path, build_cache: Path, tmp_path: Path) -> None:
    """The code under test cannot open the descriptors or the memory of what reports its run."""
    body = (
        "import os, glob\n"
        "    me = str(os.getpid())\n"
        "    open_now = []\n"
        "    for p in glob.glob('/proc/[0-9]*'):\n"
        "        for what in ('/fd/0', '/fd/1', '/fd/3', '/mem', '/environ'):\n"
        "            try:\n"
        "                open(p + what, 'rb')\n"
        "            except OSError:\n"
        "                continue\n"
        "            if p != '/proc/' + me: open_now.append(p + what)\n"
        "    if open_now: raise RuntimeError(open_now)\n"
        "    if min(width, height) < 0: raise ValueError('no')\n"
        "    return width * height"
    )
    found = verdict(task, patch_for(task, body), build_cache, tmp_path)
    assert found["kind"] == "resolved", found


def test_hidden_tests_are_not_beside_their_copies(task: Path, build_cache: Path, tmp_path: Path) -> None:
    """Code that finds a copy of a test, and the test itself anywhere, could tell what is wrong in the copy."""
    body = (
        "import pathlib\n"
        "    found = [p for root in ('/workspace', '/home', '/tmp') for p in pathlib.Path(root).rglob('test_*.py')]\n"
        "    names = {p.name for p in found}\n"
        "    if len(names) > 1 and 'test_areas.py' in names: raise RuntimeError(names)\n"
        "    if min(width, height) < 0: raise ValueError('no')\n"
        "    return width * height"
    )
    found = verdict(task, patch_for(task, body), build_cache, tmp_path)
    assert found["kind"] == "resolved", found
    assert str(found["guards"]["twins"]).startswith("passed")  # type: ignore[index]


def test_a_tree_is_graded_as_a_patch_is(task: Path, build_cache: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for path, content in read_archive(task / "workspace.tar.zst").items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(content)
    areas = tree / "shapes/areas.py"
    solved = "if min(width, height) < 0:\n        raise ValueError(width)\n    return width * height"
    areas.write_text(areas.read_text().replace("raise NotImplementedError", solved, 1))
    (tree / "conftest.py").write_text("raise SystemExit(0)\n")
    ended = taskgen("grade", task, "--tree", tree, "--fail-fast", "--json", cache=build_cache)
    assert ended.code == 0, ended.stdout
    assert list(ended.json()["refused"]) == ["conftest.py"]


def test_a_sandbox_that_fails_is_no_verdict(task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        name = "broken"
        asked = 0

        def __getattr__(self, name: str) -> object:
            type(self).asked += 1
            raise SandboxUnavailable("the engine does not answer")

    monkeypatch.setattr(grade, "WAIT_S", 0.0)
    found = grade.grade(task, b"", Broken(), tmp_path)  # type: ignore[arg-type]
    assert (found.kind.value, Broken.asked) == ("infra_error", grade.ATTEMPTS)
    assert "the engine does not answer" in found.reason


@pytest.mark.parametrize("path", ["tests/test_areas.py", "tests/helper.py", "conftest.py", "shapes/test_x.py"])
def test_test_files_are_left_out(task: Path, build_cache: Path, tmp_path: Path, path: str) -> None:
    file = tmp_path / "a.patch"
    file.write_text(OTHER.format(path=path, line="x = 1"))
    ended = taskgen("grade", task, file, cache=build_cache)
    assert ended.code == 4
    assert f"left out: {path}: " in ended.stdout


def test_the_verdict_is_the_same_without_the_environment_of_the_build(task: Path, tmp_path: Path) -> None:
    """A task set that moved to another machine carries all that grading needs."""
    ended = taskgen("grade", task, "--gold", "--json", cache=tmp_path / "empty-cache")
    assert ended.json()["kind"] == "resolved"


def test_a_task_of_another_version_is_refused(task: Path, build_cache: Path, tmp_path: Path) -> None:
    copy = tmp_path / "task"
    copy.mkdir()
    row = json.loads((task / "task.json").read_text())
    (copy / "task.json").write_text(json.dumps({**row, "schema_version": 99}))
    ended = taskgen("show", copy, cache=build_cache)
    assert ended.code == 1
    assert "schema_version is 99" in ended.stderr
