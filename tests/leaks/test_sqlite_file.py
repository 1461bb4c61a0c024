"""SQLite databases, made by SQLite itself."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from compiled_helpers import blob, is_told, mutations
from hypothesis import given, settings
from hypothesis import strategies as st

from taskgen.leaks.blob import Blob, Limits, Unreadable
from taskgen.leaks.decoders import sqlite_file
from taskgen.leaks.records import Problem, Symbol

LONG = "def rare_function(argument):\n    return argument.rare_attribute\n"


def made(path: Path, *statements: str | tuple[str, tuple[object, ...]], encoding: str = "UTF-8") -> bytes:
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA encoding = '{encoding}'")
    for statement in statements:
        database.execute(*((statement,) if isinstance(statement, str) else statement))
    database.commit()
    database.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return made(
        tmp_path_factory.mktemp("sqlite") / "a.db",
        "CREATE TABLE files (path TEXT, mtime REAL, data BLOB)",
        ("INSERT INTO files VALUES (?, ?, ?)", ("pkg/rare.py", 1.5, LONG.encode())),
        ("INSERT INTO files VALUES (?, ?, ?)", ("a short text", 7, None)),
        *[("INSERT INTO files VALUES (?, ?, ?)", (f"{n}.py", n, bytes([n]) * 300)) for n in range(60)],
    )


def found_in(data: bytes, limits: Limits | None = None) -> list[Blob | Symbol | Problem]:
    root = Blob.of_bytes("a.db", data, limits)
    assert sqlite_file.matches(root.head, root.name)
    return list(sqlite_file.decode(root))


def texts(data: bytes) -> dict[str, bytes]:
    found = found_in(data)
    assert not [item for item in found if not isinstance(item, Blob)]
    return {item.trail[-1]: item.read() for item in found if isinstance(item, Blob)}


def test_cells_and_rows(sample: bytes) -> None:
    found = texts(sample)
    assert found["files/pkg/rare.py"] == LONG.encode()
    assert b"pkg/rare.py" in found["files"] and b"a short text" in found["files"]


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_other_encodings(encoding: str, tmp_path: Path) -> None:
    data = made(tmp_path / "a.db", "CREATE TABLE t (a)", ("INSERT INTO t VALUES (?)", (LONG,)), encoding=encoding)
    assert texts(data)["t/row"] == LONG.encode()


def test_deleted_rows_are_in_the_pages(tmp_path: Path) -> None:
    data = made(
        tmp_path / "a.db", "PRAGMA secure_delete = OFF", "CREATE TABLE t (a)", ("INSERT INTO t VALUES (?)", (LONG,)),
        "DELETE FROM t",
    )  # fmt: skip
    found = texts(data)
    assert LONG.encode() in found["(pages)"] and found["(pages)"] == data[16:]


def test_odd_tables(tmp_path: Path) -> None:
    data = made(
        tmp_path / "a.db",
        'CREATE TABLE "odd ""name; --" (a)',
        (f'INSERT INTO "odd ""name; --" VALUES (?)', (LONG,)),  # noqa: F541
        "CREATE TABLE keyed (k TEXT PRIMARY KEY, v TEXT) WITHOUT ROWID",
        ("INSERT INTO keyed VALUES ('the key', ?)", (LONG,)),
        "CREATE TABLE made (a, b TEXT AS (a || ' and made') STORED, c AS (upper(a)))",
        "INSERT INTO made (a) VALUES ('written')",
    )
    found = texts(data)
    assert {'odd "name; --/row', "keyed/the key"} <= found.keys()
    assert found["made"] == b"written\twritten and made\tWRITTEN\n"


def test_views_and_triggers_are_not_run(tmp_path: Path) -> None:
    data = made(
        tmp_path / "a.db",
        "CREATE TABLE t (a)",
        "INSERT INTO t VALUES ('once')",
        "CREATE VIEW v AS SELECT a || ' from the view' FROM t",
        "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t; END",
    )
    assert texts(data).keys() == {"(pages)", "t"}


def forged(path: Path, old: str, new: str) -> bytes:
    """A database with another text in its schema, of the same length."""
    data = path.read_bytes()
    assert data.count(old.encode()) == 1 and len(old) == len(new)
    return data.replace(old.encode(), new.encode())


@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize(
    "sql", ["CREATE VIRTUAL TABLE v USING dbstat", "create /* ; */\n--x\n virtual table v USING dbstat"]
)
def test_virtual_tables_are_not_opened(sql: str, root: int, tmp_path: Path) -> None:
    data = made(
        tmp_path / "a.db",
        "CREATE TABLE t (a)",
        "INSERT INTO t VALUES ('text')",
        "PRAGMA writable_schema = ON",
        ("INSERT INTO sqlite_master VALUES ('table', 'v', 'v', ?, ?)", (root, sql)),
    )
    found = found_in(data)
    assert [item.trail[-1] for item in found if isinstance(item, Blob) and item.trail[-1] != "(pages)"] == ["t"]


def test_a_broken_schema_does_not_hide_the_rest(tmp_path: Path) -> None:
    made(tmp_path / "a.db", "CREATE TABLE broken (a)", "CREATE TABLE whole (a)", "INSERT INTO whole VALUES ('whole')")
    data = forged(tmp_path / "a.db", "CREATE TABLE broken (a)", "CREATE TABLE broken (,)")
    found = found_in(data)
    assert any(isinstance(item, Blob) and item.read() == b"whole\n" for item in found)


def test_a_column_that_is_too_long_is_told(tmp_path: Path) -> None:
    data = made(tmp_path / "a.db", "CREATE TABLE t (a, b AS (zeroblob(900000000)))", "INSERT INTO t (a) VALUES (1)")
    assert any(isinstance(item, Problem) and "too big" in item.reason for item in found_in(data))


def test_slow_queries_end(tmp_path: Path) -> None:
    rows = [("INSERT INTO t (a) VALUES (?)", ("a" * 3000,)) for _ in range(400)]
    slow = "replace(replace(replace(a, 'a', 'aaaa'), 'a', 'aaaa'), 'a', 'bbbb')"
    data = made(tmp_path / "a.db", f"CREATE TABLE t (a, b AS ({slow}))", *rows)
    start = time.monotonic()
    with pytest.raises(Unreadable, match="not decoded within"):
        found_in(data, Limits(seconds=0.01))
    assert time.monotonic() - start < 10


def test_no_copy_is_left_behind(sample: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    iterator = sqlite_file.decode(blob(sample))
    next(iterator)
    next(iterator)
    del iterator
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("head", [b"", b"SQLite format 3", b"SQLite format 2\0", b"\0SQLite format 3\0"], ids=repr)
def test_other_bytes_are_no_database(head: bytes) -> None:
    assert not sqlite_file.matches(head, "a.db")


def damage(data: bytes, how: Callable[[bytearray], None]) -> bytes:
    changed = bytearray(data)
    how(changed)
    return bytes(changed)


def test_a_cut_database_is_told(sample: bytes) -> None:
    assert not is_told(sample, sqlite_file)
    for length in (16, 50, 99, 100, 500, 4095, 4096, 4097, 8192, len(sample) - 4096, len(sample) // 2):
        assert is_told(sample[:length], sqlite_file), length


def test_pages_are_there_even_of_a_broken_database(sample: bytes) -> None:
    data = damage(sample, lambda d: d.__setitem__(slice(16, 100), b"\xff" * 84))
    root = blob(data)
    first = next(iter(sqlite_file.decode(root)))
    assert isinstance(first, Blob) and LONG.encode() in first.read()
    assert is_told(data, sqlite_file)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_bytes_end_well(sample: bytes, data: st.DataObject) -> None:
    is_told(b"SQLite format 3\0" + data.draw(mutations(sample[16:])), sqlite_file)
