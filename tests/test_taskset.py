from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from taskgen import archive, guards, patches, taskset
from taskgen.archive import ArchiveEntry
from taskgen.errors import FormatError, SourceError
from taskgen.guards import Case, Differential, Guards, Target, Twin
from taskgen.taskset import Changes, make_patches
from taskgen.types import Environment

ENVIRONMENT = Environment(
    key="k", language="python", runtime="3.11", install=("pip install -e .",), requirements=("pytest==9.0",),
    build_command="", test_command="pytest", timeout_s=60.0,
)  # fmt: skip


PROTECTION = {
    "n_mutants": 20, "mutation_score": 0.9, "guarded_score": 0.95, "n_twins": 3, "n_calls": 9, "n_changed_calls": 12,
    "not_recorded": "",
}  # fmt: skip


def row(name: str = "local-demo__class-0123456789", **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    fields: dict[str, Any] = {
        "schema_version": 2,
        "instance_id": name,
        "repo": "local/demo",
        "base_commit": "c" * 40,
        "source": {"kind": "path", "url": ".", "revision": "", "sha256": ""},
        "language": "python",
        "recipe": "class",
        "recipe_sha256": "ab" * 32,
        "problem_statement": "Write `é` again.\r\nNow.\n",
        "patch": "--- a/m.py\n+++ b/m.py\r\n",
        "test_patch": "",
        "deletion_patch": "",
        "FAIL_TO_PASS": ["t.py::a"],
        "PASS_TO_PASS": ["t.py::b", "t.py::c[\u2028]"],
        "test_files": ["t.py"],
        "deleted": [
            {"path": "m.py", "qualified_name": "A", "kind": "class", "signature": "class A",
             "start_line": 1, "end_line": 9, "lines": 8},
        ],
        "environment": taskset.environment_row(ENVIRONMENT),
        "checks": {"n_runs": 3, "full_runs": 3, "flaky": [], "null_fails": True, "stub_fails": True,
                   "gold_passes": True, "tree_restored": True, "seconds": 1.5, **PROTECTION},
        "audit": None,
        "difficulty": None,
        "created_at": "1980-01-01T00:00:00Z",
    }  # fmt: skip
    return {**fields, **changes}


def entries(files: dict[str, bytes | None]) -> dict[str, ArchiveEntry | None]:
    return {p: None if d is None else ArchiveEntry(path=p, content=d, executable=False) for p, d in files.items()}


def changes(pristine: dict[str, bytes | None], workspace: dict[str, bytes | None]) -> Changes:
    return Changes(pristine=entries(pristine), workspace=entries(workspace))


def write(out: Path, **fields: Any) -> Path:  # noqa: ANN401
    made = row(**fields)
    files = [ArchiveEntry(path="m.py", content=b"x\n", executable=False)]
    taskset.write_task(out, made, files, files, Guards())
    return out / "tasks" / str(made["instance_id"])


# -- patches -------------------------------------------------------------------------------------------


def test_patches_go_both_ways(tmp_path: Path) -> None:
    pristine: dict[str, bytes | None] = {"a.py": b"one\r\ntwo\n", "b/c.py": b"no newline at the end", "d.py": b""}
    workspace: dict[str, bytes | None] = {"a.py": b"one\r\n", "b/c.py": None, "d.py": b"more\n"}
    tests = ({"t.py": b"def test_a(): pass\n"}, {"t.py": None})
    made = make_patches(changes(pristine, workspace), changes(*tests))  # type: ignore[arg-type]
    assert "t.py" in made.tests
    assert "t.py" not in made.gold
    for path, data in {**pristine, "t.py": tests[0]["t.py"]}.items():
        place = tmp_path / path
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data or b"")
    patches.apply_patch(patches.patch_bytes(made.deletion), tmp_path)
    left = {p.relative_to(tmp_path).as_posix(): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {"a.py": b"one\r\n", "d.py": b"more\n"}
    patches.apply_patch(patches.patch_bytes(made.gold), tmp_path)
    patches.apply_patch(patches.patch_bytes(made.tests), tmp_path)
    left = {p.relative_to(tmp_path).as_posix(): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {**pristine, **tests[0]}


def test_no_hidden_test_file_changes_no_test_patch() -> None:
    assert make_patches(changes({"a.py": b"1\n"}, {"a.py": b"2\n"}), changes({}, {})).tests == ""


def test_what_is_not_text_is_refused() -> None:
    with pytest.raises(SourceError, match="UTF-8"):
        make_patches(changes({"a.py": b"x = '\xff'\n"}, {"a.py": b""}), changes({}, {}))


# -- folders -------------------------------------------------------------------------------------------


def test_a_task_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert taskset.read_row(folder) == row()
    assert (folder / "instruction.md").read_bytes() == "Write `é` again.\r\nNow.\n".encode()
    assert (folder / "gold.patch").read_bytes() == b"--- a/m.py\n+++ b/m.py\r\n"
    (entry,) = archive.read_entries((folder / taskset.WORKSPACE).read_bytes())
    assert (entry.path, entry.content) == ("m.py", b"x\n")
    taskset.must_be_whole(folder)


def test_guards_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    case = Case(target=0, direct=True, mutated=False, ops=(("call", "", "gASVAA=="),), expected=("number:1",))
    wanted = Guards(
        differential=Differential(targets=(Target(module="m", name="A.f"),), visible=("x",), cases=(case,)),
        twins=(Twin(test="t.py::a[\u2028]", expectation=2),),
    )
    taskset.write_task(tmp_path, row(), [], [], wanted)
    folder = tmp_path / "tasks" / row()["instance_id"]
    assert guards.read(folder) == wanted
    (folder / guards.FILE).write_bytes(archive.compress(b'{"version": 99}'))
    with pytest.raises(FormatError, match="version 99"):
        guards.read(folder)


def test_a_row_of_version_1_is_a_task_without_guards(tmp_path: Path) -> None:
    folder = write(tmp_path)
    old = row(schema_version=1)
    for name in PROTECTION:
        del old["checks"][name]
    (folder / taskset.ROW_FILE).write_text(json.dumps(old))
    (folder / guards.FILE).unlink()
    read = taskset.read_row(folder)
    assert {read["checks"][name] for name in PROTECTION} == {None}
    assert guards.read(folder) == Guards()
    taskset.write_tables(tmp_path, [folder.name], (), {})


def test_a_task_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / taskset.TESTS).unlink()
    with pytest.raises(FormatError, match=taskset.TESTS):
        taskset.must_be_whole(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not a task"),
        ("{", "cannot be read"),
        ("[]", "schema_version is None"),
        (json.dumps(row(schema_version=3)), "schema_version is 3, this taskgen reads 1 and 2"),
        (json.dumps({k: v for k, v in row().items() if k not in ("patch", "repo")}), "fields are missing: patch, repo"),
    ],
)
def test_rows_that_cannot_be_used(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / taskset.ROW_FILE).write_text(text)
    with pytest.raises(FormatError, match=message):
        taskset.read_row(tmp_path)


def test_tasks_are_found_by_set_folder_or_id(tmp_path: Path) -> None:
    b, a = write(tmp_path, name="b"), write(tmp_path, name="a")
    assert taskset.find_tasks(tmp_path) == [a, b]
    assert taskset.find_tasks(b) == [b]
    assert taskset.find_tasks(tmp_path / "a") == [a]
    for nothing in (tmp_path / "c", tmp_path / "tasks.parquet"):
        with pytest.raises(FormatError, match="holds no task"):
            taskset.find_tasks(nothing)


def test_a_task_can_be_removed(tmp_path: Path) -> None:
    write(tmp_path, name="a")
    taskset.remove_task(tmp_path, "a")
    taskset.remove_task(tmp_path, "never there")
    with pytest.raises(FormatError):
        taskset.find_tasks(tmp_path)


# -- tables --------------------------------------------------------------------------------------------


def test_tables_hold_every_field_and_are_sorted(tmp_path: Path) -> None:
    audit = {"scanner_version": "1", "detectors": ["d"], "bytes_scanned": 7, "thief_reward": 0.0,
             "findings_removed": [{"detector": "d", "count": 2}]}  # fmt: skip
    rows = [row(name="a"), row(name="b", audit=audit)]
    for one in reversed(rows):
        taskset.write_task(tmp_path, one, [], [], Guards())
    rejections = [{"candidate": "z", "stage": "null", "reason": "é", "detail": ""},
                  {"candidate": "y", "stage": "null", "reason": "x", "detail": ""}]  # fmt: skip
    taskset.write_tables(tmp_path, ["b", "a"], rejections, {"taskgen": "1"})
    assert pq.read_table(tmp_path / "tasks.parquet").to_pylist() == rows
    lines = (tmp_path / "rejected.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rejections[::-1]
    assert json.loads((tmp_path / "build.json").read_text()) == {"taskgen": "1"}


def test_no_tasks_make_an_empty_table_with_the_same_columns(tmp_path: Path) -> None:
    taskset.write_tables(tmp_path, [], [], {})
    table = pq.read_table(tmp_path / "tasks.parquet")
    assert table.num_rows == 0
    assert table.schema.names == taskset.SCHEMA.names


def test_the_same_tasks_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name)
        taskset.write_tables(tmp_path / name, [row()["instance_id"]], [], {})
    first, second = ({p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n).rglob("*") if p.is_file()}
                     for n in ("one", "two"))  # fmt: skip
    assert first == second


# -- environments --------------------------------------------------------------------------------------


def test_environments_are_read_back_but_for_their_keys() -> None:
    found = taskset.read_environment(json.loads(json.dumps(row())))
    assert found.key == ""
    assert taskset.environment_row(found) == taskset.environment_row(ENVIRONMENT)


@pytest.mark.parametrize("value", [None, {}, {**taskset.environment_row(ENVIRONMENT), "timeout_s": "soon"}])
def test_broken_environments_are_refused(value: object) -> None:
    with pytest.raises(FormatError, match="environment is not whole"):
        taskset.read_environment(row(environment=value))
