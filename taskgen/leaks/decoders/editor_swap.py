"""Vim's swap files: the text of their data blocks.

Layout: vim's src/memline.c. A data block has the lines at its end, the last one first, and an index of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from taskgen.leaks.blob import Blob, Unreadable

NAME = "vim swap"
RAW_STRINGS = False
_DATA_BLOCK = b"ad"
_MARKED = 1 << 31
_INDEX_AT = 24


def matches(head: bytes, name: str) -> bool:
    """The first block's magic."""
    return head.startswith(b"b0VIM ")


def decode(blob: Blob) -> Iterator[Blob]:
    """All lines, block by block as they lie in the file."""
    data = blob.read()
    page = int.from_bytes(data[12:16], "little")
    if not 512 <= page <= 1 << 20:
        raise Unreadable("broken vim swap file: no page size")
    lines: list[bytes] = []
    for start in range(page, len(data), page):
        blob.budget.check_time()
        if data[start : start + 2] == _DATA_BLOCK:
            lines += _lines(data, start)
    yield blob.child(blob.name.removesuffix(".swp").lstrip("."), b"\n".join(lines))


def _lines(data: bytes, start: int) -> list[bytes]:
    if len(data) < start + _INDEX_AT:
        return []
    _, _, end, count = struct.unpack_from("<IIII", data, start + 4)
    if count > (len(data) - start) // 4 or len(data) < start + _INDEX_AT + 4 * count:
        return []
    found, stop = [], end
    for offset in struct.unpack_from(f"<{count}I", data, start + _INDEX_AT):
        offset &= ~_MARKED
        found.append(data[start + offset : start + stop].rstrip(b"\0"))
        stop = offset
    return found
