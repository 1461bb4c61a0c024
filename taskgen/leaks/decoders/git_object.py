"""Loose objects of git: zlib over ``kind size NUL content``."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from taskgen.leaks.blob import Blob, Unreadable, parsing

NAME = "git object"
RAW_STRINGS = False
_HEADER = re.compile(rb"(blob|tree|commit|tag) (\d+)\0")
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def matches(head: bytes, name: str) -> bool:
    """A zlib stream that begins with an object's header."""
    return head.startswith(_ZLIB) and _HEADER.match(_begin(head)) is not None


def _begin(head: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(head, 64)
    except zlib.error:
        return b""


def decode(blob: Blob) -> Iterator[Blob]:
    """The content of the object; of a tree, its names."""
    found = _HEADER.match(_begin(blob.head))
    if found is None:
        raise Unreadable("broken git object: no header")
    kind = found.group(1).decode()
    with blob.open() as stream, parsing("git object"):
        content = _Content(stream.read(), found.end())
        child = blob.child(kind, content)  # type: ignore[arg-type]
    if child.size_bytes != int(found.group(2)):
        raise Unreadable("broken git object: it is cut short")
    yield child


class _Content:
    """An inflated object without its header, in bounded pieces."""

    def __init__(self, packed: bytes, skip: int) -> None:
        self._engine = zlib.decompressobj()
        self._left = packed
        self._skip = skip

    def read(self, size: int) -> bytes:
        data = self._engine.decompress(self._left, size)
        self._left = self._engine.unconsumed_tail
        if self._skip:
            data, self._skip = data[self._skip :], 0
        return data
