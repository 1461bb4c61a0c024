"""ccache's files. The fixtures, by ccache 4.7.5: ``ccache gcc -g -c x.c`` (ccache-zstd-R and -M: result and manifest),
with CCACHE_NOCOMPRESS=1 (ccache-plain-R)."""

from __future__ import annotations

import struct

import pytest
import zstandard
from compiled_helpers import blob, everything, fixture, is_told, lengths, mutations, symbols, text
from hypothesis import given, settings
from hypothesis import strategies as st

from taskgen.leaks.blob import Blob
from taskgen.leaks.decoders import ccache_entry, elf_debug, elf_file, elf_symbols

PACKED = fixture("ccache-zstd-R")
ALL = (ccache_entry, elf_file, elf_symbols, elf_debug)


@pytest.mark.parametrize("name", ["ccache-zstd-R", "ccache-plain-R"])
def test_the_object_file_in_a_result(name: str) -> None:
    data = fixture(name)
    assert "frobnicate_widget" in symbols(blob(data), *ALL)
    assert not is_told(data, *ALL)


def test_the_files_that_a_manifest_names() -> None:
    assert b"/usr/include/" in text(blob(fixture("ccache-zstd-M")), ccache_entry)
    assert not is_told(fixture("ccache-zstd-M"), ccache_entry)


@pytest.mark.parametrize("is_packed", [True, False])
def test_results_of_ccache_4_0(is_packed: bool) -> None:
    files = {0: b"the object", 2: b"a warning"}
    payload = bytes([len(files)]) + b"".join(struct.pack(">BBQ", 0, k, len(v)) + v for k, v in files.items())
    body = zstandard.ZstdCompressor().compress(payload) if is_packed else payload + bytes(8)
    data = b"cCrS" + bytes((1, is_packed, 1)) + struct.pack(">Q", 15 + len(payload)) + body
    found = {item.name: item.read() for item in everything(blob(data), ccache_entry) if isinstance(item, Blob)}
    assert found["(object)"] == b"the object" and found["(stderr)"] == b"a warning"


def test_what_follows_the_files_is_given_too() -> None:
    data = fixture("ccache-plain-R") + b"more than a checksum, and hidden"
    assert b"and hidden" in text(blob(data), ccache_entry)


@pytest.mark.parametrize("head", [b"\xcc\xac\xff\xff" + bytes(40), b"cCrS", b"cCrS\xff\xff" + bytes(20), b"\xcc\xac"])
def test_other_formats_are_none(head: bytes) -> None:
    assert not ccache_entry.matches(head, "x")


def test_a_cut_file_is_told() -> None:
    for data in (PACKED, fixture("ccache-plain-R")):
        cut = [length for length in lengths(data) if 20 < length < len(data) - 20]
        assert all(is_told(data[:length], ccache_entry) for length in cut)


def test_what_is_left_of_a_cut_result_is_read() -> None:
    assert b"\x7fELF" in text(blob(fixture("ccache-plain-R")[:900]), ccache_entry)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_bytes_end_well(data: st.DataObject) -> None:
    source = data.draw(st.sampled_from([PACKED, fixture("ccache-plain-R"), fixture("ccache-zstd-M")]))
    is_told(data.draw(mutations(source)), *ALL)
