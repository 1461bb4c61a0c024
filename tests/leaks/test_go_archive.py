"""Go's compiled packages. The fixtures: the members of the archive that ``go build ./cmd/app`` of Go 1.25 left in its
cache for a program that calls a library's function."""

from __future__ import annotations

from compiled_helpers import blob, fixture, is_told, lengths, mutations, symbols, text
from hypothesis import given, settings
from hypothesis import strategies as st

from taskgen.leaks.decoders import go_archive
from taskgen.leaks.records import CodeForm

EXPORT, OBJECT = fixture("go-export"), fixture("go-object")


def test_strings_of_the_export_data_stand_alone() -> None:
    assert b"FrobnicateWidget" in EXPORT
    lines = text(blob(EXPORT), go_archive).split(b"\n")
    assert {b"example.com/gadget", b"FrobnicateWidget", b"TwiddleKnob", b"knobValue"} <= set(lines)


def test_functions_and_names_of_an_object() -> None:
    found = symbols(blob(OBJECT), go_archive)
    assert found["main.main"].code is CodeForm.MACHINE
    assert b"example.com/gadget.FrobnicateWidget" in text(blob(OBJECT), go_archive)


def test_nothing_is_wrong_with_whole_files() -> None:
    assert not is_told(EXPORT, go_archive) and not is_told(OBJECT, go_archive)


def test_other_formats_are_none() -> None:
    assert not go_archive.matches(b"go objects are text\n", "x.a")


def test_a_cut_table_is_told() -> None:
    end = EXPORT.index(b"FrobnicateWidget")
    start = EXPORT.index(b"$$B\nu") + 9
    assert all(is_told(EXPORT[:length], go_archive) for length in lengths(EXPORT) if start < length < end)
    start = OBJECT.index(b"go120ld") + 20
    assert all(is_told(OBJECT[:length], go_archive) for length in range(start, start + 400, 7))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_bytes_end_well(data: st.DataObject) -> None:
    is_told(data.draw(mutations(data.draw(st.sampled_from([EXPORT, OBJECT])))), go_archive)
