"""Single compressed files: gzip, bzip2, xz, lzma, zstandard and bare zlib."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Protocol, cast

import zstandard

from taskgen.leaks.blob import Blob, Unreadable, parsing
from taskgen.leaks.records import Problem

NAME = "compressed"
RAW_STRINGS = False
_XZ_MEMORY_BYTES = 256 << 20
_ZSTD_WINDOW_BYTES = 128 << 20
_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = tuple(bytes([0x50 + n]) + b"\x2a\x4d\x18" for n in range(16))
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_SUFFIXES = (".gz", ".bz2", ".xz", ".lzma", ".zst", ".tgz", ".tbz2", ".txz", ".z")


def matches(head: bytes, name: str) -> bool:
    """The magics; two bytes are too little for zlib, so its first bytes are inflated."""
    if head.startswith((b"\x1f\x8b\x08", b"BZh", b"\xfd7zXZ\x00", _ZSTD, *_SKIPPABLE)):
        return not head.startswith(b"BZh") or head[4:10] in (b"1AY&SY", b"\x17rE8P\x90")
    if head.startswith(b"]\x00\x00") and head[5:13] == b"\xff" * 8:
        return True
    return head.startswith(_ZLIB) and _inflates(head)


def _inflates(head: bytes) -> bool:
    try:
        return len(zlib.decompressobj().decompress(head, 256)) > 0
    except zlib.error:
        return False


def decode(blob: Blob) -> Iterator[Blob | Problem]:
    """What was compressed; of a file that is cut short, what there is, and a Problem."""
    name = blob.name
    for suffix in _SUFFIXES:
        if name.lower().endswith(suffix):
            name = name[: -len(suffix)]
            break
    with blob.open() as stream:
        plain = _Forgiving(_opened(blob.head, stream))
        yield blob.child(name or "(content)", cast(IO[bytes], plain))
        if plain.fault:
            yield Problem(reason=f"{NAME}: {plain.fault}")


def _opened(head: bytes, stream: IO[bytes]) -> IO[bytes]:
    with parsing("compressed file", zstandard.ZstdError):
        if head.startswith(b"\x1f\x8b"):
            return cast(IO[bytes], gzip.GzipFile(fileobj=stream))
        if head.startswith(b"BZh"):
            return cast(IO[bytes], bz2.BZ2File(stream))
        if head.startswith((b"\xfd7zXZ", b"]")):
            return cast(IO[bytes], _Inflating(stream, lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES)))
        if head.startswith(_ZLIB):
            return cast(IO[bytes], _Inflating(stream, _Zlib))
        engine = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        return cast(IO[bytes], engine.stream_reader(stream, read_across_frames=True))


class _Forgiving:
    """A stream that ends where it is broken, and remembers why."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.fault = ""

    def read(self, size: int) -> bytes:
        if self.fault:
            return b""
        try:
            with parsing("compressed file", zstandard.ZstdError, MemoryError):
                return self._stream.read(size)
        except Unreadable as error:
            self.fault = str(error)
            return b""


class _Engine(Protocol):
    """What lzma's decompressor has."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Zlib:
    """zlib's decompressor with the shape of lzma's."""

    def __init__(self) -> None:
        self._engine = zlib.decompressobj()

    @property
    def eof(self) -> bool:
        return self._engine.eof

    @property
    def needs_input(self) -> bool:
        return not self._engine.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._engine.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._engine.decompress(self._engine.unconsumed_tail + data, max_length)


class _Inflating:
    """A stream over a decompressor that is asked for bounded pieces; one stream behind another is read on."""

    def __init__(self, stream: IO[bytes], make: Callable[[], _Engine]) -> None:
        self._stream, self._make = stream, make
        self._engine = make()

    def read(self, size: int) -> bytes:
        while True:
            if self._engine.eof:
                # Streams may follow one another, with zeros between them; what is no stream is padding.
                rest = self._engine.unused_data.lstrip(b"\0")
                while not rest and (data := self._stream.read(io.DEFAULT_BUFFER_SIZE)):
                    rest = data.lstrip(b"\0")
                if not rest:
                    return b""
                self._engine, data = self._make(), rest
            else:
                data = self._stream.read(io.DEFAULT_BUFFER_SIZE) if self._engine.needs_input else b""
                if not data and self._engine.needs_input:
                    raise EOFError("it is cut short")
            plain = self._engine.decompress(data, size)
            if plain:
                return plain
