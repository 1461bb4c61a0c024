"""SQLite databases: every cell of every ordinary table. Views, triggers and virtual tables are not run."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from taskgen.leaks.blob import Blob, Unreadable, parsing
from taskgen.leaks.records import Problem

NAME = "sqlite"
RAW_STRINGS = False
MAX_BYTES = 1 << 30
#: Cells from this length on are files of their own; shorter ones are put together, a row a line.
_CELL_CHARS = 40
_JOINED_BYTES = 4 << 20
_STEPS = 100_000


def matches(head: bytes, name: str) -> bool:
    """The magic line."""
    return head.startswith(b"SQLite format 3\0")


def decode(blob: Blob) -> Iterator[Blob | Problem]:
    """The cells; and the file's own bytes, since deleted rows stay in its free pages."""
    if blob.size_bytes > MAX_BYTES:
        raise Unreadable(f"larger than {MAX_BYTES:,} bytes")
    with tempfile.TemporaryDirectory(prefix="taskgen-audit-") as folder:
        copy = Path(folder, "copy.db")
        with blob.open() as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)
        with blob.open() as source:
            yield blob.child("(pages)", _Printable(source))  # type: ignore[arg-type]
        with parsing("sqlite file"):
            connection = sqlite3.connect(f"file:{copy}?mode=ro&immutable=1", uri=True)
        try:
            yield from _tables(blob, connection)
        finally:
            connection.close()


class _Printable:
    """A file whose first bytes no longer say that it is a database."""

    def __init__(self, stream: object) -> None:
        self._stream = stream
        self._begun = False

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)  # type: ignore[attr-defined]
        if not self._begun and data:
            self._begun = True
            return b"(pages)\0\0\0\0\0\0\0\0\0" + data[16:]
        return data


def _tables(blob: Blob, connection: sqlite3.Connection) -> Iterator[Blob | Problem]:
    deadline = blob.budget.deadline
    connection.set_progress_handler(lambda: int(time.monotonic() > deadline), _STEPS)
    connection.text_factory = bytes
    with parsing("sqlite file"):
        connection.execute("PRAGMA trusted_schema=OFF")
        listed = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    for name, sql in listed:
        if b"virtual" in (sql or b"")[:40].lower():
            continue
        try:
            yield from _rows(blob, connection, name.decode("utf-8", "replace"))
        except Unreadable as error:
            blob.budget.check_time()
            if "unpacks to" in str(error) or "nested" in str(error):
                raise
            yield Problem(reason=f"sqlite: table {name!r}: {error}")


def _rows(blob: Blob, connection: sqlite3.Connection, table: str) -> Iterator[Blob]:
    quoted = table.replace('"', '""')
    joined = bytearray()
    with parsing("sqlite table"):
        cursor = connection.execute(f'SELECT * FROM "{quoted}"')
    for number in range(1 << 40):
        with parsing("sqlite table"):
            row = cursor.fetchone()
        if row is None:
            break
        blob.budget.check_time()
        texts = [cell if isinstance(cell, bytes) else str(cell).encode() for cell in row if cell is not None]
        # A short text cell names its row: mypy's cache has the path of a file in one, and its content in another.
        label = next((t.decode("utf-8", "replace") for t in texts if 0 < len(t) < 200 and b"\0" not in t), str(number))
        for text in texts:
            if len(text) >= _CELL_CHARS:
                yield blob.child(f"{table}/{label}", text)
        joined += b"\t".join(t for t in texts if len(t) < _CELL_CHARS) + b"\n"
        if len(joined) > _JOINED_BYTES:
            yield blob.child(table, bytes(joined))
            joined.clear()
    if joined:
        yield blob.child(table, bytes(joined))
