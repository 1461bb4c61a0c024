"""Pickles. The fixtures: function.txt's function as ``cloudpickle.dumps(outer, N)`` (cloudpickle 3.1.3) and
``dill.dumps(outer)`` (dill 0.4.1) write it when it is defined in __main__; and the file that parso 0.8.7 keeps of
function.txt: ``parso.load_grammar().parse(path="function.py", cache=True)``.
"""

from __future__ import annotations

import pickle
import pickletools
import random
import shelve
import time
import zlib
from pathlib import Path

import pytest
from compiled_helpers import blob, is_told, lengths, mutations
from hypothesis import given, settings
from hypothesis import strategies as st
from python_helpers import fixture

from taskgen.leaks.blob import Blob, Unreadable
from taskgen.leaks.decoders import python_pickle
from taskgen.leaks.records import CodeForm, Problem, Symbol

PROTOCOLS = range(6)
SOURCE = fixture("function.txt")
LINES = SOURCE.decode().splitlines(keepends=True)
#: Blank lines are one and the same object, which a pickle holds once.
FULL_LINES = b"".join(line.encode() for line in LINES if line.strip())
FUNCTIONS = ("function-cloudpickle-2.bin", "function-cloudpickle-5.bin", "function-dill.bin")
VALUE = {
    "lines": LINES,
    "number": -(10**50),
    "float": 0.5,
    "bytes": bytes(range(256)),
    "text": "quotes ' \" and \\ and \n and \t, \u20ac and \U0001f40d",
    "nested": [{"one": ("two", {"three"})}, None, True, 70000, b"", "", 1 << 4000],
    "type": Path,
}


def found_in(data: bytes, name: str = "a.pkl") -> list[Blob | Symbol | Problem]:
    root = blob(data, name)
    assert python_pickle.matches(root.head, root.name)
    return list(python_pickle.decode(root))


def texts(data: bytes, name: str = "a.pkl") -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for item in found_in(data, name):
        assert not isinstance(item, Problem), item
        if isinstance(item, Blob):
            found.setdefault(item.trail[-1], []).append(item.read())
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_lines_become_the_source_again(protocol: int) -> None:
    assert full_lines(texts(pickle.dumps(VALUE, protocol))["(lines)"][0]).startswith(FULL_LINES)


def full_lines(text: bytes) -> bytes:
    return b"".join(line for line in text.splitlines(keepends=True) if line.strip())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_strings_are_there(protocol: int) -> None:
    data = pickle.dumps(VALUE, protocol)
    everything = b"\n".join(text for found in texts(data).values() for text in found)
    for opcode, argument, _ in pickletools.genops(data):
        if isinstance(argument, str) and opcode.name not in ("GLOBAL", "INST"):
            assert argument.encode().rstrip(b"\n") in everything
        elif isinstance(argument, bytes):
            assert argument in everything
    assert b"Path" in everything and b"pathlib" in everything


@pytest.mark.parametrize("protocol", PROTOCOLS[2:])
def test_the_mark_of_newer_protocols_is_enough(protocol: int) -> None:
    for value in (None, 1, "", "x", b"x" * 100_000, "x" * 100_000, VALUE, [], {}, {"a": 1}):
        assert python_pickle.matches(pickle.dumps(value, protocol)[:4096], "environment")


def test_lines_without_ends() -> None:
    assert FULL_LINES.rstrip() in full_lines(texts(pickle.dumps(SOURCE.decode().splitlines()))["(strings)"][0])


def test_what_parso_keeps() -> None:
    assert any(FULL_LINES in full_lines(text) for text in texts(fixture("lines-parso.bin"), "5d5c.pkl")["(lines)"])


def test_strings_of_python_2() -> None:
    data = b"(dp0\nS'text'\np1\nS'    return \"\\x01\\xe9\\'\"\\n'\np2\nsS'last'\np3\nVb\\u20acx\np4\ns."
    assert texts(data)["(strings)"] == [b'text\n    return "\x01\xe9\'"\nlast\nb\xe2\x82\xacx']


def test_one_long_line_of_protocol_0() -> None:
    assert (SOURCE * 20).rstrip() in texts(pickle.dumps(SOURCE.decode() * 20, 0))["(strings)"][0]


def test_bytes_may_be_of_any_format() -> None:
    packed = zlib.compress(SOURCE)
    assert packed in texts(pickle.dumps({"source": packed}))["(string)"]


def test_pickles_one_behind_the_other() -> None:
    data = b"".join(pickle.dumps(text, 4) + bytes(5) for text in ("the first", "the second"))
    assert texts(data)["(strings)"] == [b"the first\nthe second"]


def test_what_stands_behind_a_pickle() -> None:
    assert texts(pickle.dumps("the first") + b"other data")["(rest)"] == [b"other data"]


def test_the_records_of_a_shelf(tmp_path: Path) -> None:
    import dbm.dumb

    with shelve.Shelf(dbm.dumb.open(str(tmp_path / "shelf"), "n")) as shelf:  # type: ignore[arg-type]
        shelf["one"], shelf["two"] = SOURCE.decode(), "a second text"
    (found,) = texts((tmp_path / "shelf.dat").read_bytes(), "shelf.dat")["(strings)"]
    assert SOURCE in found and b"a second text" in found


def test_bytes_of_arrays_between_the_opcodes() -> None:
    made = pickle.dumps({"joblib.numpy_pickle": "NumpyArrayWrapper", "text": "before"}, 4)[:-1]
    found = texts(made + b"\x10\x11\x12\x13" + pickle.dumps("a text behind it", 4)[2:])
    assert b"before" in found["(strings)"][0] and b"a text behind it" in found["(rest)"][0]


# -- functions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_pickled_functions(name: str) -> None:
    found = {s.qualified_name: s for s in found_in(fixture(name)) if isinstance(s, Symbol)}
    outer, inner = found["outer"], found["outer.inner"]
    assert outer.parameters == ("amount", "rest", "key", "more") and outer.code is CodeForm.BYTECODE
    assert outer.docstring == "Docstring of a function that was pickled."
    assert "a constant of the function" in outer.constants
    assert {"partition", "rest", "amount", "inner"} <= outer.identifiers
    assert inner.parameters == ("other",) and "12345678" in inner.constants
    assert "attribute_of_other" in inner.identifiers and "casefold" in found["outer.<listcomp>"].identifiers


def test_what_only_looks_like_a_function() -> None:
    for value in ("CodeType", ["CodeType", "_create_code", (1, 2, 3)], {"CodeType": (1, 2, 3, 4, b"", ())}):
        assert not [s for s in found_in(pickle.dumps(value, 4)) if not isinstance(s, Blob)]


# -- no pickles, and broken ones --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("a.pkl", b""), ("a.pkl", b"."), ("a.pkl", b"plain text, and more of it than opcodes\n"), ("a", b"(lp0\n."),
        ("a.p", b"class A:\n    pass\n"), ("a", b"\x80\x04 no opcodes"), ("a", b"\x80\x06\x95" + bytes(30)),
        ("a", b"\x80\x02X\xff\xff\xff\xff"), ("a", b"\x80\x02" + bytes(range(40))), ("a.pkl", b"\x89PNG\r\n\x1a\n" * 9),
    ],
)  # fmt: skip
def test_other_bytes_are_no_pickles(name: str, head: bytes) -> None:
    assert not python_pickle.matches(head, name)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_cut_pickle_is_told(protocol: int) -> None:
    data = pickle.dumps(VALUE, protocol)
    assert not is_told(data, python_pickle)
    for length in [*lengths(data)[30:], len(data) - 1]:
        items = list(python_pickle.decode(blob(data[:length])))
        assert any(isinstance(item, Problem) for item in items), length


def test_what_cannot_be_read_is_looked_at_as_it_is() -> None:
    data = bytearray(pickle.dumps(["before", "at", "behind it"], 4))
    data[data.index(b"\x8c\x02at")] = 0xFF
    found = found_in(bytes(data))
    assert any(isinstance(item, Problem) for item in found)
    assert any(isinstance(item, Blob) and b"behind it" in item.read() for item in found)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_bytes_end_well(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([pickle.dumps(VALUE, n) for n in PROTOCOLS] + [fixture(n) for n in FUNCTIONS]))
    is_told(data.draw(mutations(whole)), python_pickle)


def test_many_random_faults_end_well() -> None:
    rng = random.Random(5)
    wholes = [fixture(name) for name in FUNCTIONS]
    for number in range(1500):
        data = bytearray(wholes[number % len(wholes)])
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(2, len(data))] = rng.choice(b"()[]{}tlduR0123.ahjrqe\x85\x86\x87\x93\x94\x91\x81\xff")
        try:
            list(python_pickle.decode(blob(bytes(data))))
        except Unreadable as error:
            assert str(error)


@pytest.mark.parametrize("opcodes", [b"(", b"\x94", b"(t", b"2222t", b"K\1\x85", b"\x95\0\0\0\0\0\0\0\0"], ids=repr)
def test_a_million_values_end_soon(opcodes: bytes) -> None:
    start = time.monotonic()
    found_in(b"\x80\4\x8c\x08CodeType(" + opcodes * (1_500_000 // len(opcodes)) + b".")
    assert time.monotonic() - start < 20


def test_nothing_is_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (Path(tmp_path / "touched"),)  # type: ignore[return-value]

    found_in(pickle.dumps([Trap(), "CodeType"]))
    assert not (tmp_path / "touched").exists()
