"""A clean copy of a folder: everything but the files that give something away. Nothing is edited in place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from taskgen.atomic import replacing_directory
from taskgen.errors import StoreError
from taskgen.leaks.findings import Finding
from taskgen.leaks.policy import Action


def condemned(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The files of a target that findings ask to remove: the outermost one of each nesting."""
    return tuple(sorted({f.path.partition("!")[0] for f in findings if f.action == Action.SCRUB.value}))


def copy_without(root: Path, files: Iterable[str], removed: Collection[str], to: Path) -> None:
    """Copy a folder's files to the new folder ``to``, which appears whole or not at all.

    Raises:
        StoreError: there is something at ``to`` already, or no room.
    """
    if to.exists():
        raise StoreError(f"{to} exists", hint="give the name of a new folder; nothing is cleaned in place")
    with replacing_directory(to) as scratch:
        for path in files:
            if path in removed:
                continue
            place = scratch / path
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, place, follow_symlinks=False)
        _copy_links(root, scratch)


def _copy_links(root: Path, to: Path) -> None:
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            source = Path(folder, name)
            if source.is_symlink():
                place = to / source.relative_to(root)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(source.readlink())
