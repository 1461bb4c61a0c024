"""Where an audit looks: folders, archives, images; and the sources of a workspace among them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pyarrow.parquet as pq

from taskgen import taskset
from taskgen.errors import ConfigError, FormatError
from taskgen.leaks.scanner import Fault


class TargetKind(StrEnum):
    """What ``taskgen audit`` was pointed at."""

    TASKS = "tasks"
    TREE = "tree"
    FILE = "file"
    IMAGE = "image"
    ROWS = "rows"
    ROLLOUTS = "rollouts"


IMAGE_PREFIX = "docker:"


def kind_of(target: str) -> TargetKind:
    """What kind of target a command line's word names. Raises ConfigError if there is nothing of the name."""
    if target.startswith(IMAGE_PREFIX):
        return TargetKind.IMAGE
    path = Path(target)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(
            f"{target} cannot be read: {error.strerror}", hint=f"give a path, or {IMAGE_PREFIX}NAME for an image"
        ) from error
    if stat.S_ISDIR(mode):
        return TargetKind.TASKS if _holds_tasks(path) else TargetKind.TREE
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{target} is neither a file nor a folder")
    if path.suffix in (".jsonl", ".parquet"):
        return TargetKind.ROLLOUTS if path.suffix == ".jsonl" and _holds_rollouts(path) else TargetKind.ROWS
    return TargetKind.IMAGE if _is_saved_image(path) else TargetKind.FILE


def _holds_tasks(path: Path) -> bool:
    try:
        return bool(taskset.find_tasks(path))
    except FormatError:
        return False


def _holds_rollouts(path: Path) -> bool:
    """Whether the first line of a file has turns or messages: as JSON, or, if it is broken, as far as can be seen."""
    try:
        with path.open("rb") as file:
            first = next((line for line in file if line.strip()), b"")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    keys = ("turns", "messages", "rollout_id")
    try:
        record = json.loads(first)
    except (ValueError, RecursionError):
        return any(f'"{key}"'.encode() in first for key in keys)
    return isinstance(record, dict) and any(key in record for key in keys)


def _is_saved_image(path: Path) -> bool:
    """Whether a file is what ``docker save`` writes: its tar names a manifest or an OCI layout near the beginning or
    the end."""
    with path.open("rb") as file:
        if file.read(262)[257:262] != b"ustar":
            return False
        file.seek(0)
        head = file.read(1 << 20)
        file.seek(max(0, path.stat().st_size - (1 << 20)))
        return any(name in part for part in (head, file.read()) for name in (b"manifest.json\0", b"oci-layout\0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a folder (paths relative to it), and what could not be listed."""

    files: tuple[str, ...]
    faults: tuple[Fault, ...]


def walk(root: Path, without: Collection[Path] = ()) -> Listing:
    """All files below a folder, ``.git`` and the like included. Links are not followed: what they lead to inside the
    folder is listed by its own name, and what lies outside is no part of it. ``without``: folders to leave out."""
    files: list[str] = []
    faults: list[Fault] = []

    def failed(error: OSError) -> None:
        where = os.path.relpath(error.filename or root, root)
        faults.append(Fault(trail=(where,), reason=f"cannot be listed: {error.strerror}"))

    for folder, folders, names in os.walk(root, onerror=failed):
        folders[:] = sorted(name for name in folders if not without or Path(folder, name) not in without)
        relative = os.path.relpath(folder, root)
        for name in sorted(names):
            if not os.path.islink(os.path.join(folder, name)):  # noqa: PTH114, PTH118 - names may not be UTF-8
                files.append(name if relative == "." else f"{relative}/{name}")
    return Listing(files=tuple(files), faults=tuple(faults))


def read_file(root: Path, path: str) -> bytes | None:
    """A regular file below a folder, or None; no link is followed."""
    try:
        descriptor = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read() if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a SWE-bench-style table: what an audit needs of it."""

    instance_id: str
    patch: str
    test_patch: str
    problem_statement: str


def rows(path: Path) -> Iterator[Row]:
    """The rows of a .jsonl or .parquet file. Raises FormatError for one without ``instance_id`` or ``patch``."""
    try:
        records = pq.read_table(path).to_pylist() if path.suffix == ".parquet" else _json_lines(path)
    except (OSError, ValueError) as error:
        raise FormatError(f"{path} cannot be read: {error}") from error
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict) or not isinstance(record.get("patch"), str) or "instance_id" not in record:
            raise FormatError(f"{path}: row {number} has no instance_id and patch", hint="give SWE-bench's columns")
        yield Row(
            instance_id=str(record["instance_id"]),
            patch=record["patch"],
            test_patch=str(record.get("test_patch") or ""),
            problem_statement=str(record.get("problem_statement") or ""),
        )


def _json_lines(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
