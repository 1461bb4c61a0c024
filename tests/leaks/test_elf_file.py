"""ELF files. The fixtures, by gcc 12 on x86-64: ``gcc -g -c x.c`` (dwarf5.o), with ``-gdwarf-4`` (dwarf4.o),
``-gz=zlib`` (zlib.o), ``-gz=zlib-gnu`` (zdebug.o); ``gcc -O2 -flto -c x.c`` (lto.o)."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import zstandard
from compiled_helpers import blob, everything, fixture, is_told, lengths, mutations, symbols, text
from hypothesis import given, settings
from hypothesis import strategies as st

from taskgen.leaks.blob import Blob
from taskgen.leaks.decoders import elf_debug, elf_file, elf_symbols, go_functions
from taskgen.leaks.decoders.mangled_names import plain_name
from taskgen.leaks.records import CodeForm, Problem, Symbol

ALL = (elf_file, elf_symbols, elf_debug, go_functions)
PLAIN = fixture("dwarf5.o")


@pytest.mark.parametrize("name", ["dwarf4.o", "dwarf5.o", "zlib.o", "zdebug.o"])
def test_functions_with_their_parameters(name: str) -> None:
    found = symbols(blob(fixture(name)), *ALL)
    assert found["frobnicate_widget"].parameters == ("widget_count", "label_text")
    assert found["inner_helper"].parameters == ("the_gadget",)
    assert "partial_result" in found["frobnicate_widget"].identifiers
    assert found["frobnicate_widget"].code is CodeForm.MACHINE


@pytest.mark.parametrize("name", ["dwarf4.o", "dwarf5.o", "zlib.o", "zdebug.o", "lto.o"])
def test_nothing_is_wrong_with_whole_files(name: str) -> None:
    assert not is_told(fixture(name), *ALL)


def test_sections_that_gcc_packs_for_link_time_optimization() -> None:
    assert b"unusual constant" not in fixture("lto.o")
    assert b"unusual constant" in text(blob(fixture("lto.o")), *ALL)


def _elf(sections: dict[str, tuple[int, bytes]], *, order: str = "<", is_64: bool = True) -> bytes:
    """A file of these sections: name -> (flags, content)."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in sections) + b".shstrtab\0"
    head = 64 if is_64 else 52
    body, headers, at = b"", [bytes(64 if is_64 else 40)], head
    layout = order + ("IIQQQQIIQQ" if is_64 else "IIIIIIIIII")
    for name, (flags, content) in {**sections, ".shstrtab": (0, names)}.items():
        headers.append(struct.pack(layout, names.index(name.encode()), 1, flags, 0, at, len(content), 0, 0, 1, 0))
        body, at = body + content, at + len(content)
    ident = b"\x7fELF" + bytes((2 if is_64 else 1, 1 if order == "<" else 2, 1)) + bytes(9)
    fixed = struct.pack(order + "HHI", 1, 62, 1) + struct.pack(order + ("QQQ" if is_64 else "III"), 0, 0, at)
    rest = struct.pack(order + "IHHHHHH", 0, head, 0, 0, len(headers[0]), len(headers), len(headers) - 1)
    return ident + fixed + rest + body + b"".join(headers)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("is_64", [True, False])
def test_sections_packed_with_zstandard_in_all_kinds_of_files(order: str, is_64: bool) -> None:
    secret = b"def a_secret_name(): pass\n" * 20
    head = struct.pack(order + ("IIQQ" if is_64 else "III"), 2, *((0,) if is_64 else ()), len(secret), 1)
    packed = head + zstandard.ZstdCompressor().compress(secret)
    data = _elf({".debug_macro": (0x800, packed), ".data": (0, b"x")}, order=order, is_64=is_64)
    assert secret in text(blob(data), *ALL)


def test_a_packed_section_that_is_broken_is_told_and_the_others_are_read() -> None:
    head = struct.pack("<IIQQ", 1, 0, 9, 1)
    data = _elf({".debug_macro": (0x800, head + b"broken"), ".rmeta": (0, b"rust\0\0\0\x0a and more")})
    found = list(everything(blob(data), *ALL))
    assert [item.trail[-1] for item in found if isinstance(item, Blob)] == ["(file)", ".rmeta"]
    assert any(isinstance(item, Problem) and ".debug_macro" in item.reason for item in found)


def test_names_of_go_functions_in_a_stripped_program() -> None:
    names = b"main.main\0example.com/x/gadget.(*Holder).TwiddleKnob.func1\0gadget.Frob[go.shape.int]\0"
    start = 8 + 9 * 8
    table = struct.pack("<IBBBB", 0xFFFFFFF1, 0, 0, 1, 8) + struct.pack(
        "<9Q", 3, 1, 0, start, start + len(names), 0, 0, 0, 0
    )
    found = symbols(blob(_elf({".gopclntab": (2, table + names + b"\1\2\3")})), *ALL)
    assert set(found) == {"main.main", "gadget.Holder.TwiddleKnob", "gadget.Frob"}
    assert found["gadget.Holder.TwiddleKnob"].name == "TwiddleKnob"


@pytest.mark.parametrize(
    ("mangled", "plain"),
    [
        ("_ZN7mycrate17frobnicate_widget17h0123456789abcdefE", "mycrate.frobnicate_widget"),
        ("_ZN4core3ptr42drop_in_place$LT$alloc..string..String$GT$17h0123456789abcdefE", "core.ptr.drop_in_place"),
        ("_ZN37_$LT$a..Holder$u20$as$u20$b..Turn$GT$4turn17h0123456789abcdefE", "a.Holder.b.Turn.turn"),
        ("_RNvCs1234_7mycrate3foo", "mycrate.foo"),
        ("_RNvMs_Cs4fqI2P2rA04_7mycrateNtB4_12GadgetHolder12twiddle_knob", "mycrate.GadgetHolder.twiddle_knob"),
        ("_RINvNtC3std3mem8align_ofNtNtC3std3mem12DiscriminantE", "std.mem.align_of"),
        ("_ZN2ns6Widget4frobERKNS_6StringE", "ns.Widget.frob"),
        ("_ZN2ns6WidgetIiLi5EE4frobEv", "ns.Widget.frob"),
        ("_ZN2ns6WidgetC2Ev", "ns.Widget.Widget"),
        ("_ZL12inner_helperPK3Foo", "inner_helper"),
        ("_ZNSt6vectorIiSaIiEE9push_backERKi", "vector.push_back"),
        ("frobnicate_widget.isra.0", "frobnicate_widget"),
        ("memcpy@GLIBC_2.2.5", "memcpy"),
        ("example.com/x/gadget.(*Holder).TwiddleKnob", "gadget.Holder.TwiddleKnob"),
        ("main", "main"), ("_Z", "_Z"), ("_R", "_R"), ("_ZN", "_ZN"), ("", ""),
    ],
)  # fmt: skip
def test_plain_names(mangled: str, plain: str) -> None:
    assert plain_name(mangled) == plain


def test_back_references_in_circles_end() -> None:
    assert plain_name("_RNvB_3foo") == "foo"
    assert plain_name("_R" + "INvB_" * 500)


@settings(max_examples=300, deadline=None)
@given(st.text("_ZRNIEBSTLMXYCsuvti0123459$.abc", max_size=60))
def test_any_name_has_a_plain_one(name: str) -> None:
    assert plain_name("_Z" + name) and plain_name("_R" + name)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("flags", [(), ("-O2",), ("-gdwarf-4", "-gdwarf64"), ("-gsplit-dwarf",)])
def test_a_method_that_is_defined_outside_its_class(tmp_path: Path, flags: tuple[str, ...]) -> None:
    source = tmp_path / "x.cc"
    source.write_text(
        "namespace outer { template<class T> struct Widget { int frob_it(int widget_count, T label); };\n"
        "template<class T> int Widget<T>::frob_it(int widget_count, T label) { int part = 1; return part + label; }\n"
        "template struct Widget<int>; }\n"
    )
    subprocess.run(["g++", "-g", *flags, "-c", source, "-o", tmp_path / "x.o"], check=True)
    made = next((path for path in tmp_path.iterdir() if path.suffix == ".dwo"), tmp_path / "x.o")
    found = symbols(blob(made.read_bytes()), *ALL)["outer.Widget.frob_it"]
    assert found.parameters == ("widget_count", "label")


def test_a_cut_file_is_told() -> None:
    assert all(is_told(PLAIN[:length], *ALL) for length in lengths(PLAIN) if length >= 52)


def test_names_without_end_take_no_memory() -> None:
    strings = b"a" * (1 << 22)
    table = struct.pack("<IBBHQQ", 0, 2, 0, 1, 0, 9) + b"".join(
        struct.pack("<IBBHQQ", n, 2, 0, 1, 0, 9) for n in range(300)
    )
    data = _elf({".symtab": (0, table), ".strtab": (0, strings)})
    # the first section's kind and link: a symbol table, whose names are in the second
    at = len(data) - 3 * 64
    data = data[: at + 4] + struct.pack("<I", 2) + data[at + 8 : at + 40] + struct.pack("<I", 2) + data[at + 44 :]
    found = [item for item in everything(blob(data), *ALL) if isinstance(item, Symbol)]
    assert len(found) == 300 and max(len(item.name) for item in found) <= 4096


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_bytes_end_well(data: st.DataObject) -> None:
    source = data.draw(st.sampled_from([PLAIN, fixture("zlib.o"), fixture("lto.o"), fixture("dwarf4.o")]))
    is_told(data.draw(mutations(source)), *ALL)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_debug_information_ends_well(data: st.DataObject) -> None:
    inner = next(item for item in elf_file.decode(blob(PLAIN)) if isinstance(item, Blob) and "debug" in item.name)
    is_told(data.draw(mutations(inner.read())), *ALL)
