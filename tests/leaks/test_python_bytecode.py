"""Compiled Python. The fixtures: ``pythonX.Y -m py_compile sample.py`` (and sample3.py) of each version; sample.py
stands in sample.txt; those of 3.14 were made by Pyodide.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import py_compile
import random
import struct
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from compiled_helpers import blob, is_told, lengths, mutations
from hypothesis import given, settings
from hypothesis import strategies as st
from python_helpers import Definition, definitions, fixture

from taskgen.leaks.blob import Blob, Unreadable
from taskgen.leaks.decoders import python_bytecode
from taskgen.leaks.records import CodeForm, Symbol

VERSIONS = ("2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
SAMPLES = [f"sample-{v}.bin" for v in VERSIONS] + [f"sample3-{v}.bin" for v in VERSIONS[1:]]
HEADER = importlib.util.MAGIC_NUMBER + bytes(12)
SOURCES = [Path(os.__file__).with_name(name) for name in ("bisect.py", "dataclasses.py", "abc.py", "queue.py")]


def symbols(data: bytes) -> list[Symbol]:
    root = blob(data)
    assert python_bytecode.matches(root.head, root.name)
    return [found for found in python_bytecode.decode(root) if isinstance(found, Symbol)]


def source_of(name: str) -> str:
    return fixture(name.partition("-")[0] + ".txt").decode()


def pyc(code: types.CodeType | object) -> bytes:
    return HEADER + marshal.dumps(code)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_definition_of_every_version(name: str) -> None:
    found = symbols(fixture(name))
    for wanted in definitions(source_of(name)):
        there = [s for s in found if s.qualified_name == wanted.qualified_name]
        assert len(there) == 1, wanted.qualified_name
        assert_is(there[0], wanted)


def assert_is(found: Symbol, wanted: Definition) -> None:
    assert (found.name, found.parameters, found.docstring) == (wanted.name, wanted.parameters, wanted.docstring)
    told = found.identifiers | set(found.constants) | {found.docstring}
    parts = [word for word in wanted.words if word not in told]
    # the compiler joins the texts of an f-string's parts, and an old one adds up constants
    assert all(any(part in text for text in told) for part in parts), parts


@pytest.mark.parametrize("version", VERSIONS)
def test_constants_of_every_kind(version: str) -> None:
    by_name = {s.qualified_name: s for s in symbols(fixture(f"sample-{version}.bin"))}
    assert {"upper board", "lower board", "no such board on this shelf: "} <= set(by_name["Shelf.put"].constants)
    nested = set(by_name["Shelf.find.is_like"].constants)
    assert {"0.0625", "123456789012345678901234567890"} & nested
    assert "raw bytes constant" in by_name["Shelf.find"].constants
    assert {"4096"} <= set(by_name["Shelf"].constants) and "2.5j" in by_name["<module>"].constants
    assert {"in a tuple", "in a nested one", "31337"} <= set(by_name["accented"].constants)
    assert "\u00e9t\u00e9 \u20ac \U0001f40d" in by_name["accented"].constants
    assert any(len(text) > 255 for text in by_name["long_text"].constants)
    module = by_name["<module>"]
    assert module.docstring == "What the modules of every Python in this folder were compiled from."
    assert module.payload == fixture(f"sample-{version}.bin")
    assert all(not s.payload for s in by_name.values() if s is not module)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_body_that_does_nothing_is_no_code(version: str) -> None:
    by_name = {s.qualified_name: s.code for s in symbols(fixture(f"sample-{version}.bin"))}
    assert by_name["Shelf.Board.clear"] is None
    assert by_name["Shelf.put"] is CodeForm.BYTECODE and by_name["<lambda>"] is CodeForm.BYTECODE


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_a_first_constant_is_not_always_a_docstring(version: str) -> None:
    found = next(s for s in symbols(fixture(f"sample3-{version}.bin")) if s.name == "no_docstring")
    assert found.docstring == "" and "first constant" in found.constants


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_whole_modules_agree_with_the_compiler(source: Path) -> None:
    module = compile(source.read_bytes(), str(source), "exec", dont_inherit=True)
    codes = list(codes_in(module))
    found = symbols(pyc(module))
    assert len(found) == len(codes)
    by_name: dict[str, list[Symbol]] = {}
    for symbol in found:
        by_name.setdefault(symbol.qualified_name, []).append(symbol)
    for code in codes:
        there = by_name[code.co_qualname.replace("<locals>.", "")]
        names = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}
        texts = set(texts_in(code.co_consts))
        assert any(names <= s.identifiers and texts <= {*s.constants, s.docstring} for s in there)


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def texts_in(value: object) -> Iterator[str]:
    if isinstance(value, (tuple, frozenset)):
        for item in value:
            yield from texts_in(item)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, (int, float, complex)) and not isinstance(value, bool):
        yield repr(value)


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode), ids=lambda mode: mode.name)
def test_each_way_of_telling_that_it_is_stale(mode: py_compile.PycInvalidationMode, tmp_path: Path) -> None:
    source = tmp_path / "m.py"
    source.write_text("def rare_name(a, *, b): return a.rare_attribute\n")
    py_compile.compile(str(source), str(tmp_path / "m.pyc"), doraise=True, invalidation_mode=mode)
    assert symbols((tmp_path / "m.pyc").read_bytes())[-1].parameters == ("a", "b")


def test_a_module_that_pytest_rewrote(tmp_path: Path) -> None:
    (tmp_path / "test_m.py").write_text("def test_rare():\n    assert len('rare text') == 9, 'a rare message'\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir=.", "."]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHON"))}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=120)
    data = next(tmp_path.glob("__pycache__/test_m.*-pytest-*.pyc")).read_bytes()
    found = next(s for s in symbols(data) if s.name == "test_rare")
    assert "rare text" in found.constants and any("a rare message" in text for text in found.constants)


@pytest.mark.parametrize("version", VERSIONS)
def test_code_without_a_header(version: str) -> None:
    data = fixture(f"sample-{version}.bin")
    bare = data[8 if version == "2.7" else 12 if version == "3.6" else 16 :]
    found = symbols(bare)
    assert {s.qualified_name for s in found} == {s.qualified_name for s in symbols(data)}
    assert next(s for s in found if s.name == "put").parameters == ("self", "thing", "where", "more", "options")
    assert found[0].payload == bytes(16) + bare


def test_what_stands_behind_the_module() -> None:
    found = list(python_bytecode.decode(blob(fixture("sample-3.12.bin") + b"more of it")))
    assert isinstance(found[-1], Blob) and found[-1].read() == b"more of it"


@pytest.mark.parametrize("magic", [b"\x40\x01", b"\xa0\x01", b"\x2a\x53", b"\x0a\xf3"], ids=lambda magic: magic.hex())
def test_other_interpreters_are_said_to_be_unreadable(magic: bytes) -> None:
    data = magic + fixture("sample-3.9.bin")[2:]
    root = blob(data)
    assert python_bytecode.matches(root.head, root.name)
    with pytest.raises(Unreadable, match="another interpreter"):
        list(python_bytecode.decode(root))


@pytest.mark.parametrize(
    "head",
    [b"", b"\r\n", b"ab\r\n", b"#\r\r\nprint(1)\r\n" * 9, b"\xa7\x0d\r\n", b"c" * 64, b"call(x)\0\0\0", b"\xe3" * 40],
    ids=repr,
)
def test_other_bytes_are_no_bytecode(head: bytes) -> None:
    assert not python_bytecode.matches(head, "m.pyc")


@pytest.mark.parametrize("name", SAMPLES)
def test_a_cut_module_is_told(name: str) -> None:
    data = fixture(name)
    assert not is_told(data, python_bytecode)
    cuts = [n for n in [*lengths(data)[20:], len(data) - 1] if n > 20]
    assert all(is_told(data[:length], python_bytecode) for length in cuts)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_bytes_end_well(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(SAMPLES))
    is_told(data.draw(mutations(fixture(name))), python_bytecode)


def test_many_random_faults_end_well() -> None:
    rng = random.Random(3)
    for number in range(2000):
        data = bytearray(fixture(SAMPLES[number % len(SAMPLES)]))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(16, len(data))] = rng.choice(b"()[]{}<>cs0ziIlrRuat:\xa9\xe3\xff\x7f\x00")
        is_told(bytes(data), python_bytecode)


# -- made up to do harm ---------------------------------------------------------------------------


def code(constants: bytes, names: bytes = b")\0") -> bytes:
    """Code as Python 3.11 marshals it."""
    numbers = struct.pack("<5i", 0, 0, 0, 1, 3)
    texts = b"z\1f" * 3
    return b"c" + numbers + b"s\1\0\0\0a" + constants + names + b")\0s\0\0\0\0" + texts + b"\1\0\0\0" + b"s\0\0\0\0" * 2


HEADER_311 = b"\xa7\x0d\r\n" + bytes(12)


def count(number: int) -> bytes:
    return number.to_bytes(4, "little")


def test_tuples_that_share_their_parts_are_read_once() -> None:
    parts = [b"\xa9\x01z\4once"] + [b"\xa9\x02r" + count(n) + b"r" + count(n) for n in range(59)]
    found = symbols(HEADER_311 + code(b")" + bytes([60]) + b"".join(parts)))
    assert found[0].constants == ("once",)


@pytest.mark.parametrize("what", ["constants", "names"])
def test_a_thousand_codes_that_share_one_long_tuple(what: str) -> None:
    shared = b"\xa8" + count(100_000) + b"z\1a" * 100_000
    inner = code(b"r\0\0\0\0") if what == "constants" else code(b")\0", b"r\0\0\0\0")
    start = time.monotonic()
    with pytest.raises(Unreadable, match="than it holds"):
        symbols(HEADER_311 + code(b"(" + count(5001) + shared + inner * 5000))
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("part", [b"(\1\0\0\0", b"{", b"{N", b"\xa9\1", b"[\1\0\0\0", b":NN", b">\1\0\0\0"], ids=repr)
def test_deep_nesting_is_told(part: bytes) -> None:
    with pytest.raises(Unreadable):
        symbols(HEADER_311 + b"\xe3" + bytes(20) + part * 100_000)


def test_a_number_of_a_million_digits_is_cut_short() -> None:
    start = time.monotonic()
    digits = 1_000_000
    found = symbols(HEADER_311 + code(b")\1l" + count(digits) + b"\xff\x7f" * digits))
    assert len(found[0].constants[0]) < 400 and time.monotonic() - start < 5


def test_a_loop_of_references_is_told_or_empty() -> None:
    found = symbols(HEADER_311 + code(b"\xa9\2r\0\0\0\0z\5there"))
    assert found[0].constants == ("there",)
