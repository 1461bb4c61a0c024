"""Rust's crate metadata. The fixture: ``rustc --crate-type lib --emit=metadata lib.rs`` of Rust 1.95."""

from __future__ import annotations

import pyarrow
import pytest
from compiled_helpers import blob, fixture, is_told, lengths, mutations, text
from hypothesis import given, settings
from hypothesis import strategies as st

from taskgen.leaks.decoders import rust_metadata

GADGET = fixture("gadget.rmeta")


def lines(data: bytes) -> set[bytes]:
    return set(text(blob(data), rust_metadata).split(b"\n"))


def test_names_arguments_and_documentation() -> None:
    wanted = {b"frobnicate_widget", b"widget_count", b"label_text", b"argument_one", b" Frobs the widget carefully."}
    assert wanted <= lines(GADGET)
    assert not is_told(GADGET, rust_metadata)


def test_a_length_that_looks_like_a_letter_is_no_part_of_the_name() -> None:
    name = b"a_name_of_so_very_many_letters_that_the_number_of_them_looks_like_one"
    assert bytes([len(name)]).isalnum()
    assert name in lines(b"rust\0\0\0\x0a" + b"\1\2\xc1\0" + bytes([len(name)]) + name + b"\xc1\0\0")


def test_names_of_old_compilers_that_nothing_ends() -> None:
    assert {b"frobnicate_widget", b"other"} <= lines(b"rust\0\0\0\x05\0\0" + b"\x11frobnicate_widget\x05otherx\0")


def _framed(data: bytes) -> bytes:
    framed = b"rust\0\0\0\x08\xff\x06\0\0sNaPpY"
    for start in range(0, len(data), 1 << 16):
        part = data[start : start + (1 << 16)]
        packed = pyarrow.Codec("snappy").compress(part, asbytes=True)
        framed += b"\0" + (len(packed) + 4).to_bytes(3, "little") + bytes(4) + packed
    return framed


def test_the_packed_metadata_of_dynamic_libraries() -> None:
    assert b"frobnicate_widget" in lines(_framed(GADGET))
    assert b"frobnicate_widget" in lines(_framed(GADGET * 40))


@pytest.mark.parametrize("length", lengths(_framed(GADGET))[20::9])
def test_packed_metadata_that_is_cut_is_told(length: int) -> None:
    data = _framed(GADGET)[:length]
    # between two parts nothing is missing
    assert is_told(data, rust_metadata) or len(data) < 22


def test_a_part_that_says_it_is_huge_is_not_unpacked() -> None:
    part = bytes(4) + b"\xff\xff\xff\x7f" + b"x"
    assert is_told(b"rust\0\0\0\x08\xff\x06\0\0sNaPpY\0" + len(part).to_bytes(3, "little") + part, rust_metadata)


def test_long_texts_that_nothing_ends_take_no_time() -> None:
    assert not is_told(b"rust\0\0\0\x0a\xc1" + b"a" * (4 << 20) + b"\0ab\xc1", rust_metadata)


def test_other_formats_are_none() -> None:
    assert not rust_metadata.matches(b"rusty and old", "x.rmeta")


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_bytes_end_well(data: st.DataObject) -> None:
    is_told(data.draw(mutations(data.draw(st.sampled_from([GADGET, _framed(GADGET)])))), rust_metadata)
