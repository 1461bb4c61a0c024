"""What an ELF file says for debuggers: its DWARF sections, collected from it and unpacked."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from taskgen.leaks.blob import Blob, Unreadable, parsing
from taskgen.leaks.decoders.dwarf_functions import Sections, functions
from taskgen.leaks.records import Problem, Symbol

NAME = "debug information"
#: The names that are looked for stand in it, so it is only decoded where one of them does.
RAW_STRINGS = True
_MARK = b"\0taskgen debug\n"
_WANTED = frozenset((
    ".debug_info", ".debug_abbrev", ".debug_str", ".debug_line_str", ".debug_str_offsets", ".rela.debug_info",
    ".rela.debug_str_offsets",
))  # fmt: skip
_MAX_BYTES = 128 << 20
_ENTRY = struct.Struct("<BQ")


def _plain(name: str) -> str:
    """``.debug_info`` of ``.zdebug_info`` and of ``.debug_info.dwo``."""
    return name.replace(".zdebug", ".debug").removesuffix(".dwo")


class Collected:
    """The sections of one file, while they are collected. Of several that share a name the first is kept."""

    def __init__(self, *, is_little: bool, is_64: bool) -> None:
        self._flags = bytes((is_little, is_64))
        self._sections: dict[str, bytes] = {}

    def wants(self, name: str) -> bool:
        """Whether a section of this name is of use."""
        plain = _plain(name)
        return plain in _WANTED and plain not in self._sections

    def add(self, name: str, content: bytes) -> None:
        """Keep a section. Raises Unreadable if all of them are too much."""
        if len(content) + sum(map(len, self._sections.values())) > _MAX_BYTES:
            raise Unreadable(f"more than {_MAX_BYTES:,} bytes for debuggers")
        self._sections[_plain(name)] = content

    @property
    def is_of_use(self) -> bool:
        """Whether there is any."""
        return bool(self._sections)

    def packed(self) -> bytes:
        """All sections in one piece, which ``decode`` reads."""
        parts = [_MARK, self._flags]
        for name, content in self._sections.items():
            parts += (_ENTRY.pack(len(name), len(content)), name.encode(), content)
        return b"".join(parts)


def matches(head: bytes, name: str) -> bool:
    """The mark."""
    return head.startswith(_MARK)


def decode(blob: Blob) -> Iterator[Symbol | Problem]:
    """Functions with the names of their parameters and variables."""
    data = memoryview(blob.read(_MAX_BYTES + 4096))
    with parsing(NAME, struct.error):
        is_little, is_64, *_ = data[len(_MARK) : len(_MARK) + 2]
        sections, at = {}, len(_MARK) + 2
        while at < len(data):
            name_bytes, size = _ENTRY.unpack_from(data, at)
            at += _ENTRY.size + name_bytes
            sections[bytes(data[at - name_bytes : at]).decode("ascii")] = bytes(data[at : at + size])
            at += size
    yield from functions(Sections(sections, is_little=bool(is_little), is_64=bool(is_64)), blob.budget)
