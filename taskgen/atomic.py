"""Cache entries that appear whole or not at all: locks, temporary neighbours, full disks told apart."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from taskgen.errors import StoreError

LOCK_TIMEOUT_S = 3600.0
_UNUSABLE = {
    errno.ENOSPC: "no space is left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
}


@contextlib.contextmanager
def disk_faults(folder: Path) -> Iterator[None]:
    """Turn the OSErrors of a full or read-only disk into a StoreError that names ``folder``."""
    try:
        yield
    except OSError as error:
        reason = _UNUSABLE.get(error.errno or 0)
        if reason is None:
            raise
        raise StoreError(
            f"cannot write below {folder}: {reason}",
            hint="free some space there, or choose another folder for the cache",
        ) from error


@contextlib.contextmanager
def locked(entry: Path, *, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock of a cache entry (``<entry>.lock``) so that several processes make it once.

    Raises:
        StoreError: another process held it for longer than ``timeout_s``, or the folder is unusable.
    """
    lock = FileLock(f"{entry}.lock", timeout=timeout_s)
    with disk_faults(entry.parent):
        entry.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout as error:
            raise StoreError(
                f"{entry} has been locked by another process for {timeout_s:.0f} s",
                hint=f"wait for it, or end it; if there is none, delete {entry}.lock",
            ) from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def replacing_directory(target: Path) -> Iterator[Path]:
    """A temporary neighbour of ``target`` that takes its place when the block ends without an error.

    What was at ``target`` is moved aside and deleted; hold ``locked(target)`` around it.
    """
    with disk_faults(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            new = scratch / "new"
            new.mkdir()
            yield new
            if target.exists() or target.is_symlink():
                target.rename(scratch / "old")
            new.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def replacing_file(target: Path) -> Iterator[Path]:
    """A temporary neighbour of the file ``target`` that takes its place when the block ends well."""
    with disk_faults(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        scratch = Path(name)
        try:
            yield scratch
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)
