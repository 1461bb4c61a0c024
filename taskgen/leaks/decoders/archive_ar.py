"""Unix ar: static libraries, Debian packages, Rust's rlibs, Go's package archives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from taskgen.leaks.blob import Blob, Unreadable
from taskgen.leaks.records import Problem

NAME = "ar"
RAW_STRINGS = False
_MAGIC, _THIN = b"!<arch>\n", b"!<thin>\n"
_HEADER_BYTES = 60
_MAX_NAMES_BYTES = 16 << 20


def matches(head: bytes, name: str) -> bool:
    """The magic line."""
    return head.startswith((_MAGIC, _THIN))


def decode(blob: Blob) -> Iterator[Blob | Problem]:
    """Every member. A thin archive has names alone, and its members lie elsewhere."""
    thin = blob.head.startswith(_THIN)
    long_names = b""
    with blob.open() as stream:
        stream.seek(len(_MAGIC))
        while header := stream.read(_HEADER_BYTES):
            blob.budget.check_time()
            if len(header) < _HEADER_BYTES or header[58:] != b"`\n" or not header[48:58].strip().isdigit():
                yield Problem(reason=f"ar: broken header at byte {stream.tell() - len(header):,}")
                return
            raw, size = header[:16].rstrip(), int(header[48:58])
            start = stream.tell()
            if raw == b"//":
                long_names = stream.read(min(size, _MAX_NAMES_BYTES))
            elif raw not in (b"/", b"/SYM64/") and not thin:
                name, skipped = _name(raw, long_names, stream, size)
                child = blob.child(name, _Part(stream, size - skipped))  # type: ignore[arg-type]
                if child.size_bytes < size - skipped:
                    yield Problem(reason=f"ar: {name!r} is cut short")
                yield child
            if not thin or raw in (b"/", b"//"):
                stream.seek(start + size + size % 2)


def _name(raw: bytes, long_names: bytes, stream: IO[bytes], size: int) -> tuple[str, int]:
    """A member's name, and how many bytes of its content the name takes up (BSD)."""
    if raw.startswith(b"/") and raw[1:].isdigit():
        raw = long_names[int(raw[1:]) :].partition(b"/\n")[0]
    elif raw.startswith(b"#1/") and raw[3:].isdigit():
        length = min(int(raw[3:]), size, 4096)
        return stream.read(length).rstrip(b"\0").decode("utf-8", "surrogateescape"), length
    return raw.rstrip(b"/").decode("utf-8", "surrogateescape") or "(member)", 0


class _Part:
    """The next ``size`` bytes of a stream."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        if size < 0:
            raise Unreadable("broken ar file: a name is longer than its member")
        self._stream, self._left = stream, size

    def read(self, size: int) -> bytes:
        data = self._stream.read(min(size, self._left))
        self._left -= len(data)
        return data
