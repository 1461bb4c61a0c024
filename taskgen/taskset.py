"""Task sets on disk, format version 2: one folder a task, and tables over all of them. See the format's contract.

Version 2 adds the guards' file to a task's folder and what they cover to ``checks``. Rows of version 1 are read as
tasks without guards.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from taskgen import archive, guards, patches, safepath
from taskgen.archive import ArchiveEntry
from taskgen.atomic import replacing_directory, replacing_file
from taskgen.errors import FormatError, SourceError
from taskgen.guards import Guards
from taskgen.types import SCHEMA_VERSION, Environment

ROW_FILE, WORKSPACE, TESTS = "task.json", "workspace.tar.zst", "tests.tar.zst"
_STR, _INT, _BOOL, _FLOAT = pa.string(), pa.int64(), pa.bool_(), pa.float64()
_STRS = pa.list_(_STR)
#: What ``checks`` has since version 2.
_PROTECTION = [
    ("n_mutants", _INT),
    ("mutation_score", _FLOAT),
    ("guarded_score", _FLOAT),
    ("n_twins", _INT),
    ("n_calls", _INT),
    ("n_changed_calls", _INT),
    ("not_recorded", _STR),
]
SCHEMA = pa.schema(
    [
        ("schema_version", _INT),
        ("instance_id", _STR),
        ("repo", _STR),
        ("base_commit", _STR),
        ("source", pa.struct([("kind", _STR), ("url", _STR), ("revision", _STR), ("sha256", _STR)])),
        ("language", _STR),
        ("recipe", _STR),
        ("recipe_sha256", _STR),
        ("problem_statement", _STR),
        ("patch", _STR),
        ("test_patch", _STR),
        ("deletion_patch", _STR),
        ("FAIL_TO_PASS", _STRS),
        ("PASS_TO_PASS", _STRS),
        ("test_files", _STRS),
        (
            "deleted",
            pa.list_(
                pa.struct(
                    [
                        ("path", _STR),
                        ("qualified_name", _STR),
                        ("kind", _STR),
                        ("signature", _STR),
                        ("start_line", _INT),
                        ("end_line", _INT),
                        ("lines", _INT),
                    ]
                )
            ),
        ),
        (
            "environment",
            pa.struct(
                [
                    ("language", _STR),
                    ("runtime", _STR),
                    ("install", _STRS),
                    ("requirements", _STRS),
                    ("build_command", _STR),
                    ("test_command", _STR),
                    ("timeout_s", _FLOAT),
                    ("image", _STR),
                ]
            ),
        ),
        (
            "checks",
            pa.struct(
                [
                    ("n_runs", _INT),
                    ("full_runs", _INT),
                    ("flaky", _STRS),
                    ("null_fails", _BOOL),
                    ("stub_fails", _BOOL),
                    ("gold_passes", _BOOL),
                    ("tree_restored", _BOOL),
                    ("seconds", _FLOAT),
                    *_PROTECTION,
                ]
            ),
        ),
        (
            "audit",
            pa.struct(
                [
                    ("scanner_version", _STR),
                    ("detectors", _STRS),
                    ("bytes_scanned", _INT),
                    ("findings_removed", pa.list_(pa.struct([("detector", _STR), ("count", _INT)]))),
                    ("thief_reward", _FLOAT),
                ]
            ),
        ),
        (
            "difficulty",
            pa.struct(
                [
                    ("policy", _STR),
                    ("policy_version", _STR),
                    ("n", _INT),
                    ("passes", _INT),
                    ("pass_at_1", _FLOAT),
                    ("interval", pa.list_(_FLOAT)),
                    ("band", _STR),
                    ("measured_at", _STR),
                ]
            ),
        ),
        ("created_at", _STR),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The files that a task touches, as they stand in the pristine tree and in the workspace (None: absent)."""

    pristine: Mapping[str, ArchiveEntry | None]
    workspace: Mapping[str, ArchiveEntry | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patches:
    """The three patches of a task."""

    gold: str
    tests: str
    deletion: str


def make_patches(sources: Changes, tests: Changes) -> Patches:
    """The patches between workspace and pristine tree, proven: gold and tests together restore every byte.

    Raises:
        SourceError: they do not (the candidate cannot become a task), or a patch is not UTF-8.
    """
    with tempfile.TemporaryDirectory(prefix="taskgen-patch-") as folder:
        root = Path(folder)
        for name, both in (("sources", sources), ("tests", tests)):
            _write(root / f"{name}-old", both.workspace)
            _write(root / f"{name}-new", both.pristine)
        _write(root / "all-old", {**sources.pristine, **tests.pristine})
        _write(root / "all-new", {**sources.workspace, **tests.workspace})
        gold = patches.diff_directories(root / "sources-old", root / "sources-new")
        test = patches.diff_directories(root / "tests-old", root / "tests-new")
        deletion = patches.diff_directories(root / "all-old", root / "all-new")
        for text in (gold, test, deletion):
            _must_be_text(text)
        patches.apply_patch(patches.patch_bytes(gold), root / "all-new")
        if test:
            patches.apply_patch(patches.patch_bytes(test), root / "all-new")
        restored = {entry.path: entry for entry in archive.entries_of(root / "all-new")}
        wanted = {p: e for p, e in {**sources.pristine, **tests.pristine}.items() if e is not None}
        if restored != wanted:
            raise SourceError("the gold patch does not restore the pristine tree byte for byte")
    return Patches(gold=gold, tests=test, deletion=deletion)


def _write(root: Path, entries: Mapping[str, ArchiveEntry | None]) -> None:
    root.mkdir()
    for path, entry in entries.items():
        if entry is not None:
            safepath.write_file(root, path, entry.content, executable=entry.executable)


def _must_be_text(patch: str) -> None:
    try:
        patch.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SourceError("a changed file is not UTF-8 text") from error


def write_task(
    out: Path,
    row: Mapping[str, Any],
    workspace: Iterable[ArchiveEntry],
    tests: Iterable[ArchiveEntry],
    task_guards: Guards,
) -> Path:
    """Write the folder of a task, whole or not at all; returns it. Raises StoreError on a full disk."""
    target = out / "tasks" / str(row["instance_id"])
    with replacing_directory(target) as folder:
        (folder / ROW_FILE).write_text(json.dumps(row, indent=1, ensure_ascii=False) + "\n", "utf-8")
        (folder / "instruction.md").write_text(row["problem_statement"], "utf-8", newline="")
        for name, field in (("gold.patch", "patch"), ("deletion.patch", "deletion_patch")):
            (folder / name).write_text(row[field], "utf-8", newline="")
        (folder / WORKSPACE).write_bytes(archive.pack_zst(workspace))
        (folder / TESTS).write_bytes(archive.pack_zst(tests))
        (folder / guards.FILE).write_bytes(guards.to_bytes(task_guards))
    return target


def write_tables(
    out: Path, ids: Sequence[str], rejections: Iterable[Mapping[str, str]], build: Mapping[str, Any]
) -> None:
    """Write tasks.parquet, rejected.jsonl and build.json over the tasks ``ids``; each replaces its old one at once."""
    rows = [read_row(out / "tasks" / name) for name in sorted(ids)]
    with replacing_file(out / "tasks.parquet") as scratch:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), scratch)
    with replacing_file(out / "rejected.jsonl") as scratch:
        lines = [json.dumps(r, ensure_ascii=False) + "\n" for r in rejections]
        scratch.write_text("".join(sorted(lines)), "utf-8")
    with replacing_file(out / "build.json") as scratch:
        scratch.write_text(json.dumps(build, indent=1, ensure_ascii=False) + "\n", "utf-8")
    for name in ("tasks.parquet", "rejected.jsonl", "build.json"):
        (out / name).chmod(0o644)


def write_difficulties(difficulties: Mapping[Path, Mapping[str, Any]]) -> None:
    """Put ``difficulty`` into the rows of task folders, and into the tables of the sets that these belong to.

    Each file is replaced at once. A row that has the same difficulty already, but for when it was measured, is left.

    Raises:
        FormatError: a row cannot be read.
        StoreError: the disk is full or read-only.
    """
    for folder, difficulty in difficulties.items():
        row = read_row(folder)
        if _without_time(row["difficulty"]) == _without_time(difficulty):
            continue
        # As it stands in the file, whatever version that has.
        raw = json.loads((folder / ROW_FILE).read_text("utf-8")) | {"difficulty": dict(difficulty)}
        with replacing_file(folder / ROW_FILE) as scratch:
            scratch.write_text(json.dumps(raw, indent=1, ensure_ascii=False) + "\n", "utf-8")
            scratch.chmod(0o644)
    for out in sorted({folder.parent.parent for folder in difficulties if folder.parent.name == "tasks"}):
        _update_table(out)


def _without_time(difficulty: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (difficulty or {}).items() if key != "measured_at"}


def _update_table(out: Path) -> None:
    """Bring the table of a set up to its rows, if it has one and they differ."""
    path = out / "tasks.parquet"
    if not path.is_file():
        return
    try:
        listed = pq.read_table(path, columns=["instance_id", "difficulty"]).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path} cannot be read: {error}") from error
    rows = [read_row(out / "tasks" / line["instance_id"]) for line in listed]
    if [row["difficulty"] for row in rows] == [line["difficulty"] for line in listed]:
        return
    with replacing_file(path) as scratch:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), scratch)
        scratch.chmod(0o644)


def remove_leftovers(out: Path) -> None:
    """Remove what a run that was killed left half-written; only the holder of the folder's lock may do so."""
    for scratch in (*(out / "tasks").glob(".*"), *out.glob(".tasks.parquet.*"), *out.glob(".*.json*.*")):
        if scratch.is_dir():
            shutil.rmtree(scratch, ignore_errors=True)
        else:
            scratch.unlink(missing_ok=True)


def remove_task(out: Path, name: str) -> None:
    """Remove the folder of a task that is no longer part of the set."""
    shutil.rmtree(out / "tasks" / name, ignore_errors=True)


def read_row(folder: Path) -> dict[str, Any]:
    """The row of a task's folder.

    Raises:
        FormatError: there is no task, or it is of another format version.
    """
    path = folder / ROW_FILE
    try:
        row = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise FormatError(f"{folder} is not a task: it has no {ROW_FILE}", hint="give DIR/tasks/ID") from error
    except (ValueError, OSError) as error:
        raise FormatError(f"{path} cannot be read: {error}") from error
    version = row.get("schema_version") if isinstance(row, dict) else None
    if version not in (1, SCHEMA_VERSION):
        raise FormatError(f"{path}: schema_version is {version!r}, this taskgen reads 1 and {SCHEMA_VERSION}")
    missing = sorted(set(SCHEMA.names) - set(row))
    if missing:
        raise FormatError(f"{path}: fields are missing: {', '.join(missing)}")
    if version == 1:
        row |= {
            "schema_version": SCHEMA_VERSION,
            "checks": {**dict.fromkeys(name for name, _ in _PROTECTION), **row["checks"]},
        }
    return dict(row)


def must_be_whole(folder: Path) -> None:
    """Raises FormatError if a task's folder lacks one of its files, or its row cannot be read."""
    read_row(folder)
    for name in (WORKSPACE, TESTS, "gold.patch"):
        if not (folder / name).is_file():
            raise FormatError(f"{folder / name} is not there: the task is not whole", hint="build or download it again")


def find_tasks(path: Path) -> list[Path]:
    """The task folders at a path: of a task, of a task set, or ``DIR/ID`` for ``DIR/tasks/ID``.

    Raises:
        FormatError: there is none.
    """
    if (path / ROW_FILE).exists():
        return [path]
    if (path.parent / "tasks" / path.name / ROW_FILE).exists():
        return [path.parent / "tasks" / path.name]
    found = sorted(p.parent for p in (path / "tasks").glob(f"*/{ROW_FILE}")) if path.is_dir() else []
    if not found:
        raise FormatError(f"{path} holds no task", hint="give a task set, or DIR/tasks/ID")
    return found


def environment_row(environment: Environment) -> dict[str, Any]:
    """The ``environment`` struct of a row."""
    row = asdict(environment)
    del row["key"]
    return {**row, "install": list(environment.install), "requirements": list(environment.requirements)}


def read_environment(row: Mapping[str, Any]) -> Environment:
    """The ``environment`` struct of a row, as a record (its key is unknown). Raises FormatError."""
    try:
        value = dict(row["environment"])
        return Environment(
            key="",
            language=str(value["language"]),
            runtime=str(value["runtime"]),
            install=tuple(map(str, value["install"])),
            requirements=tuple(map(str, value["requirements"])),
            build_command=str(value["build_command"] or ""),
            test_command=str(value["test_command"]),
            timeout_s=float(value["timeout_s"]),
            image=str(value["image"] or ""),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{row.get('instance_id')}: its environment is not whole: {error!r}") from error
