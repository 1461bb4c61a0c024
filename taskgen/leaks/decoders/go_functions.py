"""The table of functions that every Go program has, stripped or not (``.gopclntab``).

Layout: debug/gosym and runtime/symtab.go of Go 1.18 on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from taskgen.leaks.blob import Blob, Unreadable, parsing
from taskgen.leaks.decoders.mangled_names import go_name
from taskgen.leaks.records import CodeForm, Symbol

NAME = "go functions"
RAW_STRINGS = True
#: Put before the section by who finds one.
MARK = b"\0taskgen go functions\n"
#: Go 1.18 and 1.20; in older programs the names stand with the rest, as they are.
_MAGICS = (0xFFFFFFF0, 0xFFFFFFF1)
_BATCH, _MAX_NAME_BYTES = 10_000, 4096


def matches(head: bytes, name: str) -> bool:
    """The mark."""
    return head.startswith(MARK)


def decode(blob: Blob) -> Iterator[Symbol]:
    """A function for each name."""
    with parsing(NAME, struct.error):
        names = _names(blob.read()[len(MARK) :])
    for n, raw in enumerate(names):
        if n % _BATCH == 0:
            blob.budget.check_time()
        full = go_name(raw[:_MAX_NAME_BYTES].decode("utf-8", "replace"))
        if full:
            yield Symbol(name=full.rpartition(".")[2], qualified_name=full, code=CodeForm.MACHINE)


def _names(table: bytes) -> list[bytes]:
    order = "<" if int.from_bytes(table[:4], "little") in _MAGICS else ">"
    magic, width = struct.unpack_from(order + "I3xB", table)
    if magic not in _MAGICS:
        return []
    if width not in (4, 8):
        raise Unreadable(f"addresses of {width} bytes")
    start, end = struct.unpack_from(order + ("QQ" if width == 8 else "II"), table, 8 + 3 * width)
    if not start <= end <= len(table):
        raise Unreadable("the names are not inside the table")
    return [name for name in dict.fromkeys(table[start:end].split(b"\0")) if name]
