"""Responses that pip (CacheControl) keeps: a serialised header, and in older versions the body behind it."""

from __future__ import annotations

from collections.abc import Iterator

from taskgen.leaks.blob import Blob

NAME = "http cache"
RAW_STRINGS = False
_BODIES = (b"PK\x03\x04", b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0")
_SEARCHED_BYTES = 1 << 20


def matches(head: bytes, name: str) -> bool:
    """CacheControl's version mark."""
    return head[:3] == b"cc=" and head[4:5] == b","


def decode(blob: Blob) -> Iterator[Blob]:
    """The body, from the first archive's mark on; or the text that the response was."""
    with blob.open() as stream:
        begin = stream.read(_SEARCHED_BYTES)
        places = [at for mark in _BODIES if (at := begin.find(mark)) >= 0]
        stream.seek(min(places, default=0))
        if places:
            yield blob.child("(body)", stream)
        else:
            stream.seek(5)
            yield blob.child("(response)", stream)
