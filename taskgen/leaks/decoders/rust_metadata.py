"""Rust's crate metadata: ``.rmeta`` files, and what libraries and macros hold of it.

Names, documentation and the names of arguments stand in it, each behind its length and (since Rust 1.49) before a byte
that no text contains. Where that byte is missing, or the length looks like a letter, a name runs into what is beside
it, so they are given again, a line each. In dynamic libraries before Rust 1.8x all of it is packed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from taskgen.leaks.blob import MAX_WHOLE_BYTES, Blob, Unreadable, parsing

if TYPE_CHECKING:
    from pyarrow import Codec

NAME = "rust metadata"
RAW_STRINGS = False
_MAGIC = b"rust\0\0\0"
_END = b"\xc1"
_TEXT = frozenset((9, 10, 13, *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF5)))
_NO_TEXT = bytes(0 if byte not in _TEXT else 0x61 for byte in range(256))
_COUNTED = re.compile(rb"[\x03-\x7f](?=[A-Za-z_][A-Za-z0-9_]{2})")
_WORD = re.compile(rb"[A-Za-z0-9_]+")
#: The framing format of snappy: a mark, then parts with a kind and a length of three bytes.
_SNAPPY = b"\xff\x06\0\0sNaPpY"
_PACKED, _PLAIN, _CHECKSUM_BYTES = 0, 1, 4
_MAX_PART_BYTES = 1 << 16


def matches(head: bytes, name: str) -> bool:
    """The magic; in front of it there may be the whole length, and the magic once more."""
    return head.startswith(_MAGIC) or head[8:15] == _MAGIC


def decode(blob: Blob) -> Iterator[Blob]:
    """The texts, a line each; of packed metadata the metadata."""
    data = blob.read()
    packed_at = data.find(_SNAPPY, 0, 64)
    if packed_at >= 0:
        with parsing("rust metadata"):
            yield blob.child("(unpacked)", _unpacked(data, packed_at + len(_SNAPPY), blob))
        return
    texts = _ended(data, blob) if _END in data[:4096] else _counted(data, blob)
    yield blob.child("(texts)", b"\n".join(texts))


def _ended(data: bytes, blob: Blob) -> Iterator[bytes]:
    """Texts with a mark at the end. Each begins behind the last byte that is in no text."""
    blob.budget.check_time()
    shape = data.translate(_NO_TEXT)
    last = 0
    while (end := data.find(_END, last)) >= 0:
        text = data[shape.rfind(b"\0", last, end) + 1 or last : end]
        last = end + 1
        if len(text) > 1:
            # The length may look like a letter in front of the text.
            yield text[1:] if text[0] == len(text) - 1 else text


def _counted(data: bytes, blob: Blob) -> Iterator[bytes]:
    """Names whose length is right before them, in one byte."""
    for n, found in enumerate(_COUNTED.finditer(data)):
        if n % 10_000 == 0:
            blob.budget.check_time()
        end = found.end() + data[found.start()]
        if _WORD.fullmatch(data, found.end(), end):
            yield data[found.end() : end]


def _unpacked(data: bytes, at: int, blob: Blob) -> bytes:
    from pyarrow import Codec  # it is large, and seldom needed

    codec, parts, total = Codec("snappy"), [], 0
    while at + 4 <= len(data):
        blob.budget.check_time()
        kind, size = data[at], int.from_bytes(data[at + 1 : at + 4], "little")
        part = data[at + 4 + _CHECKSUM_BYTES : at + 4 + size]
        at += 4 + size
        if at > len(data):
            raise Unreadable("broken rust metadata: it is cut short")
        if kind == _PACKED:
            part = _part(codec, part)
        elif kind != _PLAIN:
            continue
        total += len(part)
        if total > MAX_WHOLE_BYTES:
            raise Unreadable(f"unpacks to more than {MAX_WHOLE_BYTES:,} bytes")
        parts.append(part)
    return b"".join(parts)


def _part(codec: Codec, packed: bytes) -> bytes:
    """One part of a stream. It begins with the length that it unpacks to."""
    length = shift = 0
    for byte in packed[:4]:
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if length > _MAX_PART_BYTES:
        raise Unreadable("broken rust metadata: a part is too long")
    return bytes(codec.decompress(packed, decompressed_size=length, asbytes=True))
