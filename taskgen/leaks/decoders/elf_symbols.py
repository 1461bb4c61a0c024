"""The functions in an ELF file's symbol tables: machine code with a name.

Rust's and C++'s mangled names are given by their plain parts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO

from taskgen.leaks.blob import Blob, Unreadable, parsing
from taskgen.leaks.decoders.elf_layout import MAGIC, Elf, Section
from taskgen.leaks.decoders.mangled_names import plain_name
from taskgen.leaks.records import CodeForm, Problem, Symbol

NAME = "elf symbols"
RAW_STRINGS = True
_MARK = b"\0ELS"
_TABLES = (2, 11)
#: plain functions, and those that are chosen when the program is loaded
_FUNCTIONS = (2, 10)
_MAX_SYMBOLS = 1_000_000
_BATCH = 1000


class Marked:
    """An ELF file whose magic is ours: its sections were looked after, its symbols are to be."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._begun = stream, False

    def read(self, size: int) -> bytes:
        """The next bytes; at first the mark."""
        if not self._begun:
            self._begun = True
            return _MARK + self._stream.read(size - len(_MARK))
        return self._stream.read(size)


def matches(head: bytes, name: str) -> bool:
    """The mark."""
    return head.startswith(_MARK)


def decode(blob: Blob) -> Iterator[Symbol | Problem]:
    """Each function of the symbol tables, once."""
    with parsing("elf file", struct.error):
        elf = Elf(MAGIC + blob.read()[len(MAGIC) :])
    seen: set[tuple[int, int]] = set()
    for section in elf.sections:
        if section.kind in _TABLES:
            try:
                with parsing("elf file", struct.error):
                    yield from _functions(blob, elf, section, seen)
            except Unreadable as error:
                yield Problem(reason=f"elf symbols: {error}")


def _functions(blob: Blob, elf: Elf, section: Section, seen: set[tuple[int, int]]) -> Iterator[Symbol | Problem]:
    layout = struct.Struct(elf.order + ("IBBHQQ" if elf.is_64 else "IIIBBH"))
    table = memoryview(elf.data)[section.offset : section.offset + section.size]
    if section.link >= len(elf.sections) or len(table) < section.size:
        raise Unreadable("broken elf file: a symbol table is cut short or has no names")
    names = elf.sections[section.link]
    count = len(table) // layout.size
    if count > _MAX_SYMBOLS:
        yield Problem(reason=f"elf symbols: only the first {_MAX_SYMBOLS:,} of {count:,} were read")
    for n, entry in enumerate(layout.iter_unpack(table[: min(count, _MAX_SYMBOLS) * layout.size])):
        if n % _BATCH == 0:
            blob.budget.check_time()
        at, info, size = (entry[0], entry[1], entry[5]) if elf.is_64 else (entry[0], entry[3], entry[2])
        if info & 15 not in _FUNCTIONS or not size or (names.offset, at) in seen:
            continue
        seen.add((names.offset, at))
        full = plain_name(elf.string(names.offset, names.size, at))
        if full:
            yield Symbol(name=full.rpartition(".")[2], qualified_name=full, code=CodeForm.MACHINE)
