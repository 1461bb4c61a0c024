"""Java class files. The fixtures: ``javac -g Gadget.java`` (Gadget.class), ``javac -g -parameters`` (Knob.class)."""

from __future__ import annotations

import struct

import pytest
from compiled_helpers import blob, everything, fixture, is_told, lengths, mutations, symbols
from hypothesis import given, settings
from hypothesis import strategies as st

from taskgen.leaks.blob import Unreadable
from taskgen.leaks.decoders import java_class
from taskgen.leaks.decoders.java_pool import Pool
from taskgen.leaks.records import CodeForm, Problem

GADGET = fixture("Gadget.class")


def test_a_method_with_all_that_it_uses() -> None:
    method = symbols(blob(GADGET), java_class)["com.example.Gadget.frobnicateWidget"]
    assert method.name == "frobnicateWidget"
    assert method.parameters == ("widgetCount", "wideValue", "labelTexts", "lookup")
    assert method.signature == "List frobnicateWidget(int, long, String[], Map)"
    assert method.code is CodeForm.BYTECODE
    assert {"unusual constant \u20ac \U0001f600", " joined ", " end", "alpha-case"} <= set(method.constants)
    assert {"partialResult", "ArrayList", "add", "replaceAll", "parseInt"} <= method.identifiers


def test_a_method_has_what_its_lambda_expressions_use() -> None:
    method = symbols(blob(GADGET), java_class)["com.example.Gadget.frobnicateWidget"]
    assert {"helperInLambda", "toUpperCase", "ROOT"} <= method.identifiers
    assert {"12345", "2.5"} <= set(method.constants)


def test_fields_constructors_and_the_class() -> None:
    found = symbols(blob(GADGET), java_class)
    assert found["com.example.Gadget.RARE"].constants == ("rare needle",)
    assert found["com.example.Gadget.Gadget"].constants == ("31337",)
    assert found["com.example.Gadget"].code is None
    assert found["com.example.Gadget.helperInLambda"].parameters == ("sizeNow", "big", "ratio")


def test_names_of_parameters_where_there_is_no_code() -> None:
    turn = symbols(blob(fixture("Knob.class")), java_class)["com.example.Gadget.Knob.turn"]
    assert turn.parameters == ("degreesCount", "labelText")
    assert turn.code is None


def test_nothing_is_wrong_with_whole_files() -> None:
    assert not is_told(GADGET, java_class)
    assert not is_told(fixture("Knob.class"), java_class)


@pytest.mark.parametrize("magic", [b"\xca\xfe\xba\xbe\0\0\0\x02" + b"\0" * 40, b"\x7fELF" + b"\0" * 40, b"\xca\xfe"])
def test_other_formats_are_none(magic: bytes) -> None:
    assert not java_class.matches(magic, "x.class")


def test_a_cut_file_is_told() -> None:
    assert all(is_told(GADGET[:length], java_class) for length in lengths(GADGET) if length > 24)


def test_code_that_cannot_be_followed_counts_as_using_all() -> None:
    at = GADGET.index(b"\x12", GADGET.index(b"Code"))
    start = GADGET.index(bytes([0xBB, 0x00]), at)  # the first ``new``
    broken = GADGET[:start] + b"\xfe" + GADGET[start + 1 :]
    found = list(everything(blob(broken), java_class))
    assert any(isinstance(item, Problem) for item in found)
    assert "unusual constant \u20ac \U0001f600" in str(found)


def _class_with(pool: list[bytes], rest: bytes) -> bytes:
    return b"\xca\xfe\xba\xbe\0\0\0\x3d" + struct.pack(">H", len(pool) + 1) + b"".join(pool) + rest


def test_descriptors_without_end_take_no_time() -> None:
    pool = [b"\1\xff\xff(" + b"[" * 0xFFFE, b"\1\0\1x"]
    methods = struct.pack(">HHHH", 0, 2, 1, 0) * 0xFFFF
    data = _class_with(pool, struct.pack(">HHHHHH", 0, 0, 0, 0, 0, 0xFFFF) + methods + b"\0\0")
    problems = [item for item in everything(blob(data), java_class) if isinstance(item, Problem)]
    assert len(problems) == 0xFFFF


def test_a_field_whose_value_is_nowhere_is_told() -> None:
    pool = Pool(GADGET)
    number = next(n for n in range(1, 400) if pool.text(n) == "ConstantValue")
    at = GADGET.index(struct.pack(">HI", number, 2)) + 6
    broken = GADGET[:at] + b"\xff\xff" + GADGET[at + 2 :]
    found = list(everything(blob(broken), java_class))
    assert any(isinstance(item, Problem) and "RARE" in item.reason for item in found)


def test_a_large_file_is_not_read() -> None:
    with pytest.raises(Unreadable, match="larger"):
        list(java_class.decode(blob(GADGET + bytes(17 << 20))))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_bytes_end_well(data: st.DataObject) -> None:
    is_told(data.draw(mutations(GADGET)), java_class)
