"""mypy's caches. The fixture: what ``mypy --no-sqlite-cache gadgets.py`` of mypy 2.4.1 keeps of gadgets.txt."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from compiled_helpers import blob, is_told, lengths, mutations
from hypothesis import given, settings
from hypothesis import strategies as st
from python_helpers import definitions, fixture

from taskgen.leaks.blob import Unreadable
from taskgen.leaks.decoders import mypy_binary, mypy_cache
from taskgen.leaks.records import Problem, Symbol

GADGETS = fixture("gadgets.data.ff")
SOURCE = fixture("gadgets.txt").decode()


def found_in(data: bytes) -> list[Symbol]:
    root = blob(data)
    assert mypy_cache.matches(root.head, root.name)
    found = list(mypy_cache.decode(root))
    assert not [item for item in found if isinstance(item, Problem)]
    return [item for item in found if isinstance(item, Symbol)]


def as_json(data: bytes) -> bytes:
    """The older form, which has the same tree."""
    tree = mypy_binary.Reader(data=data, budget=blob(data).budget).value()
    return json.dumps(tree, separators=(",", ":"), default=bytes.hex).encode()


@pytest.mark.parametrize("data", [GADGETS, as_json(GADGETS)], ids=["binary", "json"])
def test_every_definition(data: bytes) -> None:
    found = found_in(data)
    names = {(s.qualified_name, s.parameters) for s in found}
    for wanted in definitions(SOURCE):
        if wanted.name != "nested":  # what is inside of functions, mypy does not keep
            assert (f"gadgets.{wanted.qualified_name}", wanted.parameters) in names


@pytest.mark.parametrize("data", [GADGETS, as_json(GADGETS)], ids=["binary", "json"])
def test_signatures(data: bytes) -> None:
    shown = {s.signature for s in found_in(data)}
    assert {
        "class Gadget(builtins.object)",
        "def weight(self: gadgets.Gadget) -> builtins.float",
        "def make(cls: type[gadgets.Gadget], *parts: builtins.str, glue: Literal['rare glue'] = ...,"
        " **more: builtins.int) -> gadgets.Gadget | None",
        "def turn(way: builtins.int) -> builtins.str",
        "def turn(way: builtins.str, times: builtins.bytes = ...) -> builtins.int",
        "def turn(way, times = ...)",
        "def walk(visit: (builtins.int, Key) -> None, kind: type[gadgets.Gadget], pair: tuple[builtins.int, Key],"
        " table: gadgets.Table) -> None",
        "def untyped(a, b = ..., *c, d, e = ..., **f)",
        "Table = builtins.dict[builtins.str, builtins.list[builtins.int]]",
    } <= shown


def test_constants() -> None:
    assert ("a rare greeting",) in {s.constants for s in found_in(GADGETS) if s.name == "GREETING"}


def test_names_stand_in_the_bytes_as_they_are() -> None:
    for symbol in found_in(GADGETS):
        assert all(text.encode() in GADGETS for text in (symbol.name, *(symbol.parameters or ())))


# -- the installed mypy -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, bytes]]:
    """What the installed mypy keeps, by file."""
    folder = tmp_path_factory.mktemp("mypy")
    (folder / "gadgets.py").write_text(SOURCE + "\nimport argparse\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", "kept", "--config-file=", "gadgets.py"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
    kept: dict[str, bytes] = {}
    for path in folder.glob("kept/*/*.db"):
        with sqlite3.connect(path) as database:
            kept |= dict(database.execute("SELECT path, data FROM files2").fetchall())
        database.close()
    yield kept


def test_agrees_with_mypy_on_all_modules(cache: dict[str, bytes]) -> None:
    exported = pytest.importorskip("mypy.exportjson")
    modules = {path: data for path, data in cache.items() if path.endswith(".data.ff")}
    assert {"gadgets.data.ff", "argparse.data.ff", "builtins.data.ff"} <= modules.keys()
    for path, data in modules.items():
        if path.partition(".")[0] in ("gadgets", "argparse", "enum", "abc", "collections/__init__"):
            found = Counter((s.name, s.qualified_name, s.parameters) for s in found_in(data))
            assert not wanted_of(exported.convert_binary_cache_to_json(data)) - found, path


def wanted_of(tree: object) -> Counter[tuple[str, str, tuple[str, ...] | None]]:
    found: Counter[tuple[str, str, tuple[str, ...] | None]] = Counter()
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            stack += node.values()
            kind = node.get(".class")
            if kind == "FuncDef":
                found[node["name"], node["fullname"], tuple(name or "_" for name in node["arg_names"])] += 1
            elif kind == "Var":
                found[node["name"], node["fullname"], None] += 1
            elif kind == "TypeInfo":
                found[node["fullname"].rpartition(".")[2], node["fullname"], None] += 1
        elif isinstance(node, list):
            stack += node
    return found


def test_other_files_of_the_cache_have_no_definitions(cache: dict[str, bytes]) -> None:
    others = [data for path, data in cache.items() if ".meta" in path]
    assert others and not any(mypy_cache.matches(data[:4096], "a.meta.ff") for data in others)


# -- broken and made-up ones ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head", [b"", b"2", b"2\x04", b"2\x04 text that goes on", b'{"a": 1}', b'{".class": "X"}', b"2\x04\x0f"], ids=repr
)
def test_other_bytes_are_no_cache(head: bytes) -> None:
    assert not mypy_cache.matches(head, "m.data.json")


@pytest.mark.parametrize("data", [GADGETS, as_json(GADGETS)], ids=["binary", "json"])
def test_a_cut_cache_is_told(data: bytes) -> None:
    for length in [n for n in lengths(data) if n > 30]:
        with pytest.raises(Unreadable):
            list(mypy_cache.decode(blob(data[:length])))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_bytes_end_well(data: st.DataObject) -> None:
    is_told(data.draw(mutations(data.draw(st.sampled_from([GADGETS, as_json(GADGETS)])))), mypy_cache)


def test_many_random_faults_end_well() -> None:
    rng = random.Random(2)
    for _ in range(400):
        data = bytearray(GADGETS)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(12, len(data))] = rng.choice((0, 1, 2, 3, 4, 20, 21, 22, 30, 50, 52, 80, 110, 254, 255))
        is_told(bytes(data), mypy_cache)


def four_bytes(number: int) -> bytes:
    return ((number + 10_000) << 3 | 3).to_bytes(4, "little")


BEGINNING = b"\x32\x04\x16a\x1e\x16\x16a"  # a module with one name


def test_numbers_of_every_length() -> None:
    for value in (-10, 0, 117, -100, 118, 16283, -10000, 16284, 536_860_911):
        data = (
            bytes([(value + 10) << 1]) if -10 <= value <= 117
            else ((value + 100) << 2 | 1).to_bytes(2, "little") if -100 <= value <= 16283
            else four_bytes(value)
        )  # fmt: skip
        assert mypy_binary.integer(data, 0) == (value, len(data))
    assert mypy_binary.integer(b"\x0f\x24" + b"\xff" * 9, 0)[1] == 2 + 4


@pytest.mark.parametrize(
    "data",
    [b"\x14\x16" * 200_000, b"\x6c" * 200_000, b"\x1e\x16\x16a" * 200_000, b"\x14" + four_bytes(1 << 28), b"\x0f" * 99],
    ids=["lists", "objects", "tables", "a long list", "long numbers"],
)
def test_what_is_made_to_do_harm_is_told(data: bytes) -> None:
    with pytest.raises(Unreadable):
        list(mypy_cache.decode(blob(BEGINNING + data)))


def test_more_objects_than_fit_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mypy_binary, "MAX_NODES", 1000)
    with pytest.raises(Unreadable, match="more than 1,000 objects"):
        list(mypy_cache.decode(blob(BEGINNING + b"\x14" + four_bytes(2000) + b"\x6c\xff" * 2000)))
    with pytest.raises(Unreadable, match="more than 1,000 objects"):
        list(mypy_cache.decode(blob(b'{".class":"MypyFile","names":[' + b"[]," * 2000 + b"[]]}")))


def test_a_definition_of_an_unknown_layout_is_told() -> None:
    tree = {".class": "MypyFile", "names": {"a": {".class": "FuncDef", "fullname": "m.a", "arguments": []}}}
    found = list(mypy_cache.decode(blob(json.dumps(tree).encode())))
    assert len(found) == 1 and isinstance(found[0], Problem)
