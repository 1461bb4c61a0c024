"""ELF: object files, libraries and programs. What is compressed in them is unpacked; the rest stands as it is."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO, cast

from taskgen.leaks.blob import MAX_WHOLE_BYTES, Blob, Unreadable, parsing
from taskgen.leaks.decoders import elf_debug, elf_symbols, go_functions
from taskgen.leaks.decoders.elf_layout import MAGIC, Elf, Section
from taskgen.leaks.records import Problem

NAME = "elf"
RAW_STRINGS = False
#: Sections that are files of other formats: Rust's metadata (in libraries, and in macros), LLVM's bitcode.
_FILES = (".rmeta", ".rustc", ".note.rustc", ".llvmbc")


def matches(head: bytes, name: str) -> bool:
    """The magic."""
    return head.startswith(MAGIC) and len(head) >= 52


def decode(blob: Blob) -> Iterator[Blob | Problem]:
    """The file itself for its symbols, what it says for debuggers, and those of its sections that are packed."""
    with blob.open() as stream:
        stream.seek(len(MAGIC))
        yield blob.child("(file)", cast(IO[bytes], elf_symbols.Marked(stream)))
    if blob.size_bytes > MAX_WHOLE_BYTES:
        yield Problem(
            reason=f"elf: larger than {MAX_WHOLE_BYTES:,} bytes: its strings were read, its sections were not"
        )
        return
    with parsing("elf file", struct.error):
        elf = Elf(blob.read())
    debug = elf_debug.Collected(is_little=elf.order == "<", is_64=elf.is_64)
    for section in elf.sections:
        blob.budget.check_time()
        try:
            yield from _section(blob, elf, section, debug)
        except Unreadable as error:
            yield Problem(reason=f"elf: {error}")
    if debug.is_of_use:
        yield blob.child("(debug information)", debug.packed())


def _section(blob: Blob, elf: Elf, section: Section, debug: elf_debug.Collected) -> Iterator[Blob]:
    if debug.wants(section.name):
        debug.add(section.name, elf.content(section))
    elif section.is_packed or section.name in _FILES:
        yield blob.child(section.name, elf.content(section))
    elif section.name.endswith(".gopclntab"):
        yield blob.child(section.name, go_functions.MARK + elf.content(section))
