"""The state of a run: one SQLite file in the output folder, one record for each unit of work that is done.

A unit that was interrupted has no record and is done again; one that has a record never is.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from taskgen.atomic import disk_faults
from taskgen.errors import StoreError

STATE_FOLDER = ".taskgen"
_FORMAT = 1
_FULL_BYTES = 256 << 10
_ROOM = "free some space on the disk of --out, and repeat the command"


class RunState:
    """Records of one output folder. Safe to use from several threads; one process at a time.

    Raises (on construction):
        StoreError: another run uses the folder, it holds something else, or it belongs to another configuration.
    """

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        """``settings``: what must not change between runs into one folder (seed, recipes, ...)."""
        folder = out / STATE_FOLDER
        if out.exists() and not out.is_dir():
            raise StoreError(f"{out} is a file, not a folder", hint="choose another folder with --out")
        if out.exists() and not folder.exists() and any(out.iterdir()):
            raise StoreError(
                f"{out} is not empty and was not made by taskgen build",
                hint="choose a new folder with --out, or empty this one",
            )
        with disk_faults(out):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(folder / "lock", timeout=0)
            try:
                self._lock.acquire()
            except Timeout as error:
                raise StoreError(
                    f"another run is writing into {out}", hint="wait for it, or choose another folder with --out"
                ) from error
        self._mutex, self._out = threading.Lock(), out
        try:
            self._db = self._open(folder / "state.sqlite")
            self._check_settings(out, settings)
        except StoreError:
            self._lock.release()
            raise

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("CREATE TABLE IF NOT EXISTS record (kind TEXT, key TEXT, value TEXT, PRIMARY KEY (kind, key))")
        except sqlite3.OperationalError as error:  # full, read-only, locked
            raise StoreError(f"cannot use {path}: {_reason(path.parent, error)}", hint=_ROOM) from error
        except sqlite3.Error as error:
            raise StoreError(f"cannot use {path}: {error}", hint="delete it to begin again") from error
        return db

    def _check_settings(self, out: Path, settings: Mapping[str, Any]) -> None:
        wanted = {"format": _FORMAT, **settings}
        known = self.get("settings", "all")
        if known is None:
            self.put("settings", "all", wanted)
        elif known != json.loads(json.dumps(wanted)):
            now = json.loads(json.dumps(wanted))
            different = sorted(k for k in {*wanted, *known} if known.get(k) != now.get(k))
            self._db.close()
            raise StoreError(
                f"{out} was made with other settings ({', '.join(different)})",
                hint="choose another folder with --out, or repeat the command that made it",
            )

    def get(self, kind: str, key: str) -> Any:  # noqa: ANN401 - any JSON value
        """The JSON value of a record, or None."""
        rows = self._query("SELECT value FROM record WHERE kind = ? AND key = ?", kind, key)
        return json.loads(rows[0][0]) if rows else None

    def put(self, kind: str, key: str, value: object) -> None:
        """Write a record, durably. Raises StoreError if the disk is full."""
        self._query("INSERT OR REPLACE INTO record VALUES (?, ?, ?)", kind, key, json.dumps(value))

    def all(self, kind: str) -> dict[str, Any]:
        """All records of a kind, by key, sorted."""
        rows = self._query("SELECT key, value FROM record WHERE kind = ? ORDER BY key", kind)
        return {key: json.loads(value) for key, value in rows}

    def _query(self, statement: str, *values: str) -> list[tuple[str, ...]]:
        try:
            with self._mutex:
                return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            reason = _reason(self._out, error)
            raise StoreError(f"cannot record or read a result in {self._out}: {reason}", hint=_ROOM) from error

    def close(self) -> None:
        """Release the folder."""
        self._db.close()
        self._lock.release()


def _reason(folder: Path, error: sqlite3.Error) -> str:
    """SQLite's own words, which for a full disk may be "disk I/O error"."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(folder).free < _FULL_BYTES:
            return f"no space is left on the disk ({error})"
    return str(error)
