"""SQLite databases: every cell of every ordinary table. Views, triggers and virtual tables are not run."""

from __future__ import annotations

import io
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from taskgen.leaks.blob import MAX_WHOLE_BYTES, Blob, Unreadable, parsing
from taskgen.leaks.records import Problem

NAME = "sqlite"
RAW_STRINGS = False
MAX_BYTES = 1 << 30
_MAGIC = b"SQLite format 3\0"
#: Cells from this length on are files of their own; shorter texts are put together, a row a line.
_CELL_BYTES = 40
_JOINED_BYTES = 4 << 20
#: Steps of SQLite's machine between two looks at the clock.
_STEPS = 100_000
_VIRTUAL = re.compile(rb"(?:\s|/\*.*?\*/|--[^\n]*\n)*create(?:\s|/\*.*?\*/|--[^\n]*\n)+virtual\b", re.I | re.S)
_TABLES = "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
#: What Python's module raises; names and texts of a broken schema may be no UTF-8.
_FAULTS = (sqlite3.Error, UnicodeError, MemoryError, OverflowError, ValueError)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


def matches(head: bytes, name: str) -> bool:
    """The magic line."""
    return head.startswith(_MAGIC)


def decode(blob: Blob) -> Iterator[Blob | Problem]:
    """The file's own bytes, since deleted rows stay in its free pages; and the cells of its tables."""
    if blob.size_bytes > MAX_BYTES:
        raise Unreadable(f"larger than {MAX_BYTES:,} bytes")
    with blob.open() as source:
        yield blob.child("(pages)", io.BufferedReader(_Unmarked(source)))
    if reason := _missing(blob):
        yield Problem(reason=f"sqlite: {reason}")
    with tempfile.TemporaryDirectory(prefix="taskgen-audit-") as folder:
        copy = Path(folder, "copy.db")
        with blob.open() as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)
        with parsing("sqlite file", MemoryError):
            connection = sqlite3.connect(f"{copy.as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            yield from _tables(blob, connection)
        finally:
            connection.close()


def _missing(blob: Blob) -> str:
    """What of the file is not there, by its header. SQLite itself takes the beginning of a file for an empty one."""
    head = blob.head[:100]
    if len(head) < 100:
        return "its header is cut short"
    page_bytes = int.from_bytes(head[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    # The number of pages counts only if the version that wrote it knew of it.
    n_pages = int.from_bytes(head[28:32], "big") if head[24:28] == head[92:96] else 1
    return f"{n_pages:,} pages are not all there" if blob.size_bytes < page_bytes * n_pages else ""


class _Unmarked(io.RawIOBase):
    """A file without the line that says it is a database."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        stream.seek(len(_MAGIC))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _tables(blob: Blob, connection: sqlite3.Connection) -> Iterator[Blob | Problem]:
    deadline = blob.budget.deadline
    connection.set_progress_handler(lambda: int(time.monotonic() > deadline), _STEPS)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_WHOLE_BYTES)
    connection.text_factory = bytes
    with parsing("sqlite file", MemoryError):
        connection.execute("PRAGMA trusted_schema=OFF")
        try:
            listed = connection.execute(_TABLES).fetchall()
        except sqlite3.DatabaseError:
            # With this setting, what is broken in the schema does not hide the rest of it.
            connection.execute("PRAGMA writable_schema=ON")
            listed = connection.execute(_TABLES).fetchall()
    for name, sql in listed:
        if isinstance(name, bytes) and not (isinstance(sql, bytes) and _VIRTUAL.match(sql)):
            yield from _cells(blob, connection, name.decode("utf-8", "replace"))


def _cells(blob: Blob, connection: sqlite3.Connection, table: str) -> Iterator[Blob | Problem]:
    joined = bytearray()
    try:
        cursor = _select(connection, table)
        while (row := _next(cursor)) is not None:
            blob.budget.check_time()
            texts = [cell for cell in row if isinstance(cell, bytes)]
            for text in texts:
                if len(text) >= _CELL_BYTES:
                    yield blob.child(f"{table}/{_label(text, texts)}", text)
            joined += b"\t".join([text for text in texts if len(text) < _CELL_BYTES]) + b"\n"
            if len(joined) > _JOINED_BYTES:
                yield blob.child(table, bytes(joined))
                joined.clear()
    except _BrokenTable as error:
        blob.budget.check_time()
        yield Problem(reason=f"sqlite: table {table!r}: {error}")
    if joined.strip():
        yield blob.child(table, bytes(joined))


class _BrokenTable(Unreadable):
    """Why a table, or the rest of it, could not be read; other tables can."""


def _select(connection: sqlite3.Connection, table: str) -> sqlite3.Cursor:
    quoted = table.replace('"', '""')
    try:
        return connection.execute(f'SELECT * FROM "{quoted}"')
    except _FAULTS as error:
        raise _BrokenTable(str(error)) from error


def _next(cursor: sqlite3.Cursor) -> tuple[Any, ...] | None:
    try:
        return cast(tuple[Any, ...] | None, cursor.fetchone())
    except _FAULTS as error:
        raise _BrokenTable(str(error)) from error


def _label(text: bytes, texts: list[bytes]) -> str:
    """A short text names its row: in mypy's cache a file's path is in one cell, and its content in another."""
    name = next((t for t in texts if t is not text and 0 < len(t) < 200 and b"\0" not in t and b"\n" not in t), b"row")
    return _CONTROL.sub(" ", name.decode("utf-8", "replace"))
