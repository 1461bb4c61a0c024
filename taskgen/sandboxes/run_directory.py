"""Where a provider keeps its sandboxes on the host, and how what a dead process left there is removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from pathlib import Path


def remove_tree(directory: Path) -> None:
    """Remove a tree, whatever its modes are, without following links. Never raises."""
    for parent, names, _ in os.walk(directory):
        for path in (Path(parent, name) for name in names):
            # A directory without permissions cannot be listed by its owner, unless that is root.
            with contextlib.suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(directory, ignore_errors=True)


def make_run_directory(sandboxes: Path) -> tuple[Path, int]:
    """Make this provider's directory. A lock on a file beside it says that its owner lives."""
    name = f"run-{uuid.uuid4().hex}"
    lock = os.open(sandboxes / f"{name}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (sandboxes / name).mkdir(mode=0o700)
    return sandboxes / name, lock


def remove_stale(sandboxes: Path) -> None:
    """Remove the directories of processes that ended without closing their sandboxes. Never raises."""
    for directory in sandboxes.glob("run-*/"):
        file = directory.with_name(directory.name + ".lock")
        with contextlib.suppress(OSError):
            lock = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(directory)
                file.unlink()
            finally:
                os.close(lock)
