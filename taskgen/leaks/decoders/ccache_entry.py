"""ccache's results and manifests: a header, then (most often packed) the object files and what else was made.

Layout: src/ccache/core/cacheentry.hpp and result.cpp of ccache 4.4 to 4.11, result.cpp and manifest.cpp of 4.0. What
ccache 3 keeps are the files themselves.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, cast

import zstandard

from taskgen.leaks.blob import Blob, Unreadable, parsing
from taskgen.leaks.records import Problem

NAME = "ccache"
RAW_STRINGS = False
_MAGIC = b"\xcc\xac"
_OLD_RESULT, _OLD_MANIFEST = b"cCrS", b"cCmF"
_OLD_HEADER_BYTES, _CHECKSUM_BYTES = 15, 16
_RESULT, _PLAIN, _ZSTD = 0, 0, 1
_REPEATED = 1  # a block of one byte over and over
_EMBEDDED, _ELSEWHERE = 0, 1
_WINDOW_BYTES = 128 << 20
_ENTRY = struct.Struct(">BBQ")
_KINDS = ("object", "dependencies", "stderr", "gcno", "su", "diagnostics", "dwo", "stdout", "assembly")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    is_result: bool
    is_old: bool
    packing: int
    size: int


def matches(head: bytes, name: str) -> bool:
    """The magics, and small numbers where there are numbers."""
    if head.startswith((_OLD_RESULT, _OLD_MANIFEST)):
        return head[4] < 16 and head[5] < 16 if len(head) > _OLD_HEADER_BYTES else False
    return head.startswith(_MAGIC) and len(head) > 20 and max(head[2], head[3], head[4]) < 16 and head[6] < 2


def decode(blob: Blob) -> Iterator[Blob | Problem]:
    """The files in a result; of a manifest, and of what cannot be taken apart, all that was packed."""
    header = _header(blob.head)
    packed = blob.read()[header.size :]
    if header.packing == _ZSTD:
        with parsing("ccache entry", zstandard.ZstdError, MemoryError):
            end = _frame_end(packed)
            engine = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
            payload = blob.child("(payload)", cast(IO[bytes], engine.stream_reader(packed[:end])))
        if end > len(packed):
            yield Problem(reason="ccache: it is cut short")
    else:
        payload = blob.child("(payload)", packed)
    if not header.is_result:
        yield payload
        return
    data, at = payload.read(), 0
    try:
        with parsing("ccache result", struct.error):
            at, count = (1, data[0]) if header.is_old else (2, data[1])
            for _ in range(count):
                marker, kind, size = _ENTRY.unpack_from(data, at)
                at += _ENTRY.size
                if marker == _ELSEWHERE:
                    continue
                if marker != _EMBEDDED or at + size > len(data):
                    raise Unreadable("broken ccache result: a file in it is cut short, or none")
                name = _KINDS[kind] if kind < len(_KINDS) else f"file of kind {kind}"
                yield payload.child(f"({name})", io.BytesIO(data[at : at + size]))
                at += size
    except Unreadable as error:
        yield Problem(reason=f"ccache: {error}")
        yield payload.child("(rest)", data[at:])
        return
    if len(data) - at > _CHECKSUM_BYTES:
        yield payload.child("(rest)", data[at:])


def _header(head: bytes) -> _Header:
    if not head.startswith(_MAGIC):
        if len(head) < _OLD_HEADER_BYTES or head[5] not in (_PLAIN, _ZSTD):
            raise Unreadable("broken ccache entry: its header is cut short, or packed in an unknown way")
        return _Header(is_result=head.startswith(_OLD_RESULT), is_old=True, packing=head[5], size=_OLD_HEADER_BYTES)
    with parsing("ccache entry", struct.error):
        at = 15  # behind the time it was made: the version of ccache, and a name for the user to choose
        for _ in range(2):
            at += 1 + head[at]
        at += 8
        if at > len(head) or head[4] not in (_PLAIN, _ZSTD):
            raise Unreadable("broken ccache entry: its header is cut short, or packed in an unknown way")
    return _Header(is_result=head[3] == _RESULT, is_old=False, packing=head[4], size=at)


def _frame_end(data: bytes) -> int:
    """Where a zstandard frame ends: a checksum of ccache's follows it. More than there is if it is cut short."""
    at = zstandard.frame_header_size(data)
    has_checksum = zstandard.get_frame_parameters(data).has_checksum
    is_last = False
    while not is_last and at + 3 <= len(data):
        word = int.from_bytes(data[at : at + 3], "little")
        is_last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
        at += 3 + (1 if kind == _REPEATED else size)
    return at + 4 * has_checksum if is_last else len(data) + 1
