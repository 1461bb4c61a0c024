"""LLVM bitcode. The fixture: ``llvm-as a.ll`` of LLVM 14, with two functions and a string."""

from __future__ import annotations

from compiled_helpers import blob, fixture, is_told, lengths, mutations, symbols, text
from hypothesis import given, settings
from hypothesis import strategies as st

from taskgen.leaks.decoders import llvm_bitcode

GADGET = fixture("gadget.bc")


def test_functions_with_a_body() -> None:
    assert set(symbols(blob(GADGET), llvm_bitcode)) == {"frobnicate_widget", "other_function_here"}


def test_names_and_strings_stand_alone() -> None:
    assert b"unusual constant" not in GADGET
    lines = text(blob(GADGET), llvm_bitcode).split(b"\n")
    assert {b"frobnicate_widget", b"other_function_here", b"external_thing", b"unusual constant"} <= set(lines)


def test_the_wrapper() -> None:
    wrapped = b"\xde\xc0\x17\x0b\0\0\0\0" + (20).to_bytes(4, "little") + len(GADGET).to_bytes(4, "little") + bytes(4)
    assert "frobnicate_widget" in symbols(blob(wrapped + GADGET), llvm_bitcode)
    assert is_told(wrapped + bytes(20), llvm_bitcode)


def test_nothing_is_wrong_with_a_whole_file() -> None:
    assert not is_told(GADGET, llvm_bitcode)


def test_other_formats_are_none() -> None:
    assert not llvm_bitcode.matches(b"BC is a text that goes on", "x.bc")


def test_a_cut_file_is_told() -> None:
    told = [is_told(GADGET[:length], llvm_bitcode) for length in lengths(GADGET) if length > 16]
    # between two blocks, which begin at words, nothing is missing
    assert sum(told) > 0.9 * len(told)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_bytes_end_well(data: st.DataObject) -> None:
    is_told(data.draw(mutations(GADGET)), llvm_bitcode)
