"""Bytes with a place and a bounded way to read them: what decoders take, and what they give.

The bytes are hostile. Everything that unpacks goes through ``Blob.child``, which charges one budget per file of the
target (depth, bytes, time), so that a bomb ends as a reason and not as a full disk.
"""

from __future__ import annotations

import io
import lzma
import sqlite3
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

HEAD_BYTES = 4096
#: What ``Blob.read`` gives at most; a format that cannot be read in pieces is unreadable beyond it.
MAX_WHOLE_BYTES = 64 << 20
#: Children up to this size stay in memory, larger ones go to a temporary file.
SPOOL_BYTES = 8 << 20
CHUNK_BYTES = 1 << 20


class Unreadable(Exception):
    """Why some bytes could not be decoded. It becomes a finding: what was not read may hold anything."""


#: What the standard library's parsers raise on broken input. RecursionError is a RuntimeError.
_PARSER_FAULTS: tuple[type[Exception], ...] = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, NotImplementedError, OSError,
    RuntimeError, TypeError, ValueError, lzma.LZMAError, sqlite3.Error, struct.error, zlib.error,
)  # fmt: skip


@contextmanager
def parsing(what: str, *more: type[Exception]) -> Iterator[None]:
    """Turn what a parser raises on broken input (and the exceptions ``more``) into Unreadable."""
    try:
        yield
    except _PARSER_FAULTS + more as error:
        raise Unreadable(f"broken {what}: {type(error).__name__}: {str(error)[:200]}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far one file of the target is followed.

    Attributes:
        depth: files in files.
        unpacked_bytes: bytes of all that was unpacked from it, at all depths.
        ratio: bytes unpacked for each byte of the file, once more than ``free_bytes`` are unpacked.
        seconds: time for all of it.
    """

    depth: int = 12
    unpacked_bytes: int = 4 << 30
    ratio: int = 200
    free_bytes: int = 128 << 20
    seconds: float = 120.0


DEFAULT_LIMITS = Limits()


@dataclass(slots=True, kw_only=True)
class Budget:
    """What is left of the limits for one file of the target."""

    limits: Limits
    packed_bytes: int
    unpacked_bytes: int = 0
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.limits.seconds

    def charge(self, n_bytes: int) -> None:
        """Count bytes that were unpacked. Raises Unreadable once they are too many, or the time is up."""
        self.unpacked_bytes += n_bytes
        limits = self.limits
        if self.unpacked_bytes > limits.unpacked_bytes:
            raise Unreadable(f"unpacks to more than {limits.unpacked_bytes:,} bytes")
        if self.unpacked_bytes > max(limits.free_bytes, limits.ratio * self.packed_bytes):
            raise Unreadable(f"unpacks to more than {limits.ratio} times its {self.packed_bytes:,} bytes")
        self.check_time()

    def check_time(self) -> None:
        """Raises Unreadable once the time is up; for loops that unpack nothing."""
        if time.monotonic() > self.deadline:
            raise Unreadable(f"not decoded within {self.limits.seconds:g} s")


class Blob:
    """A file of the target, or a file in one.

    Attributes:
        trail: the names from the target's root to here: a path, then one name for each level of nesting.
        size_bytes: length of the content.
        head: its first HEAD_BYTES bytes.
        budget: shared by all that is unpacked from the same file of the target.
    """

    __slots__ = ("_open", "budget", "head", "size_bytes", "trail")

    def __init__(
        self, trail: tuple[str, ...], size_bytes: int, open_stream: Callable[[], IO[bytes]], budget: Budget
    ) -> None:
        self.trail, self.size_bytes, self.budget = trail, size_bytes, budget
        self._open = open_stream
        with open_stream() as stream:
            self.head = stream.read(HEAD_BYTES)

    @staticmethod
    def of_bytes(name: str, data: bytes, limits: Limits | None = None) -> Blob:
        """A file of the target that is in memory."""
        return _in_memory((name,), data, Budget(limits=limits or DEFAULT_LIMITS, packed_bytes=len(data)))

    @staticmethod
    def of_stream(name: str, content: IO[bytes], size_bytes: int, limits: Limits = DEFAULT_LIMITS) -> Blob:
        """A file of the target that comes as a stream, which is read to its end here."""
        budget = Budget(limits=limits, packed_bytes=size_bytes)
        return _in_memory((), b"", budget)._spooled((name,), content)

    def as_root(self, limits: Limits = DEFAULT_LIMITS) -> Blob:
        """The same bytes as a file of the target, with a budget of its own."""
        return Blob(self.trail[-1:], self.size_bytes, self._open, Budget(limits=limits, packed_bytes=self.size_bytes))

    @property
    def name(self) -> str:
        """The last part of the last name, without folders."""
        return self.trail[-1].rstrip("/").rpartition("/")[2]

    def open(self) -> IO[bytes]:
        """A new stream from the first byte; it can seek. Close it."""
        return self._open()

    def read(self, limit: int = MAX_WHOLE_BYTES) -> bytes:
        """The whole content. Raises Unreadable if it is longer than ``limit``."""
        if self.size_bytes > limit:
            raise Unreadable(f"larger than {limit:,} bytes, which this format is read up to")
        with self.open() as stream:
            return stream.read()

    def chunks(self) -> Iterator[bytes]:
        """The content, piece by piece."""
        with self.open() as stream:
            while data := stream.read(CHUNK_BYTES):
                yield data

    def child(self, name: str, content: bytes | IO[bytes]) -> Blob:
        """A file inside this one: its bytes, or a stream that is read to its end here.

        Raises:
            Unreadable: it is nested too deeply, or unpacks to too much.
            Whatever reading ``content`` raises.
        """
        if len(self.trail) > self.budget.limits.depth:
            raise Unreadable(f"nested more than {self.budget.limits.depth} deep")
        trail = (*self.trail, name)
        if isinstance(content, bytes):
            self.budget.charge(len(content))
            return _in_memory(trail, content, self.budget)
        return self._spooled(trail, content)

    def _spooled(self, trail: tuple[str, ...], content: IO[bytes]) -> Blob:
        small = bytearray()
        while len(small) <= SPOOL_BYTES:
            data = content.read(CHUNK_BYTES)
            self.budget.charge(len(data))
            small += data
            if not data:
                return _in_memory(trail, bytes(small), self.budget)
        return self._on_disk(trail, bytes(small), content)

    def _on_disk(self, trail: tuple[str, ...], begun: bytes, content: IO[bytes]) -> Blob:
        file = tempfile.TemporaryFile(prefix="taskgen-audit-")  # noqa: SIM115 - closed with the last blob that reads it
        file.write(begun)
        while data := content.read(CHUNK_BYTES):
            self.budget.charge(len(data))
            file.write(data)
        size = file.tell()
        file.flush()
        return Blob(trail, size, lambda: io.BufferedReader(_Window(file)), self.budget)


def _in_memory(trail: tuple[str, ...], data: bytes, budget: Budget) -> Blob:
    return Blob(trail, len(data), lambda: io.BytesIO(data), budget)


class _Window(io.RawIOBase):
    """An own position in a file that several streams share."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._position = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            offset += self._file.seek(0, io.SEEK_END)
        self._position = max(0, offset)
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        self._file.seek(self._position)
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
