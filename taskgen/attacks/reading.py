"""Targets from task folders."""

from __future__ import annotations

import tempfile
from pathlib import Path

from taskgen import archive, patches, taskset
from taskgen.archive import ArchiveEntry
from taskgen.attacks.attack import Target
from taskgen.patchread import patch_paths


def read_target(folder: Path) -> Target:
    """The target that the task in ``folder`` is.

    Raises:
        FormatError: the task is not whole, or its gold patch does not apply.
    """
    row = taskset.read_row(folder)
    workspace = _entries(folder / taskset.WORKSPACE)
    patch = (folder / "gold.patch").read_bytes()
    touched = [entry.path for entry in patch_paths(patch)]
    with tempfile.TemporaryDirectory(prefix="taskgen-target-") as scratch:
        root = Path(scratch)
        archive.write_entries([workspace[path] for path in touched if path in workspace], root)
        patches.apply_patch(patch, root)
        gold = {entry.path: entry.content for entry in archive.entries_of(root)}
    return Target(row=row, workspace=workspace, tests=_entries(folder / taskset.TESTS), gold=gold)


def _entries(file: Path) -> dict[str, ArchiveEntry]:
    return {entry.path: entry for entry in archive.read_entries(file.read_bytes())}
