"""Packs and bundles of git, without their index: every object is inflated, and deltas are applied.

Format: Documentation/gitformat-pack.adoc of git. Bases are kept within bounds and inflated anew when they were let go.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from taskgen.leaks.blob import MAX_WHOLE_BYTES, Blob, Unreadable, parsing
from taskgen.leaks.records import Problem

NAME = "git pack"
RAW_STRINGS = False
_MAGIC = b"PACK"
_BUNDLES = (b"# v2 git bundle\n", b"# v3 git bundle\n")
_KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_OFFSET_DELTA, _REFERENCE_DELTA = 6, 7
_KEPT_BYTES = 64 << 20
_READ_BYTES = 16 << 10
_MAX_CHAIN = 4096
_TRAILER_BYTES = 20


def matches(head: bytes, name: str) -> bool:
    """``PACK`` and a version, or a bundle's first line."""
    return (head.startswith(_MAGIC) and head[4:8] in (b"\0\0\0\x02", b"\0\0\0\x03")) or head.startswith(_BUNDLES)


def decode(blob: Blob) -> Iterator[Blob | Problem]:
    """Every commit, tag and file; of trees nothing, since paths stand in the commits' trees only as names."""
    with blob.open() as stream:
        start = 0
        if blob.head.startswith(_BUNDLES):
            refs, start = _bundle_refs(blob, stream)
            yield blob.child("refs", refs)
        yield from _Pack(blob, stream, start).objects()


def _bundle_refs(blob: Blob, stream: IO[bytes]) -> tuple[bytes, int]:
    lines: list[bytes] = []
    for line in iter(lambda: stream.readline(1 << 16), b""):
        if line == b"\n":
            return b"".join(lines), stream.tell()
        lines.append(line)
        blob.budget.check_time()
    raise Unreadable("broken git bundle: no pack in it")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An object as it lies in the pack. ``base``: offset or oid of what a delta applies to."""

    kind: int
    size: int
    data_at: int
    base: int | bytes | None


class _Pack:
    def __init__(self, blob: Blob, stream: IO[bytes], start: int) -> None:
        self._blob, self._stream, self._start = blob, stream, start
        self._oids: dict[bytes, int] = {}
        self._kept: OrderedDict[int, tuple[str, bytes]] = OrderedDict()
        self._kept_bytes = 0

    def objects(self) -> Iterator[Blob | Problem]:
        """The objects in the order of the file; deltas whose base comes later, at the end."""
        self._stream.seek(self._start)
        header = self._stream.read(12)
        if len(header) < 12 or not header.startswith(_MAGIC):
            raise Unreadable("broken git pack: no header")
        count, at = int.from_bytes(header[8:12], "big"), self._start + 12
        waiting: list[int] = []
        for number in range(count):
            self._blob.budget.check_time()
            try:
                entry = self._entry(at)
                after = self._skip(entry)
            except Unreadable as error:
                yield Problem(reason=f"git pack: object {number + 1} of {count}: {error}; the rest was not read")
                break
            if isinstance(entry.base, bytes) and entry.base not in self._oids:
                waiting.append(at)
            else:
                yield from self._yielded(at)
            at = after
        yield from self._late(waiting)

    def _late(self, waiting: list[int]) -> Iterator[Blob | Problem]:
        while waiting:
            left = []
            for at in waiting:
                base = self._entry(at).base
                if isinstance(base, bytes) and base not in self._oids:
                    left.append(at)
                else:
                    yield from self._yielded(at)
            if len(left) == len(waiting):
                yield Problem(reason=f"git pack: {len(left)} objects need bases that are not in the pack")
                return
            waiting = left

    def _yielded(self, at: int) -> Iterator[Blob | Problem]:
        try:
            kind, data = self._object(at)
            oid = hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)) + data, usedforsecurity=False).digest()
            self._oids[oid] = at
            if kind != "tree":
                yield self._blob.child(f"{kind} {oid.hex()}", data)
        except Unreadable as error:
            self._blob.budget.check_time()
            if "unpacks to" in str(error) or "nested" in str(error):
                raise
            yield Problem(reason=f"git pack: object at byte {at:,}: {error}")

    def _entry(self, at: int) -> _Entry:
        self._stream.seek(at)
        head = self._stream.read(64)
        with parsing("git pack"):
            byte, position = head[0], 1
            kind, size, shift = byte >> 4 & 7, byte & 15, 4
            while byte & 128:
                byte = head[position]
                size |= (byte & 127) << shift
                shift, position = shift + 7, position + 1
            base: int | bytes | None = None
            if kind == _OFFSET_DELTA:
                byte = head[position]
                distance, position = byte & 127, position + 1
                while byte & 128:
                    byte = head[position]
                    distance, position = (distance + 1 << 7) | byte & 127, position + 1
                base = at - distance
                if not self._start < base < at:
                    raise ValueError("a delta's base lies outside")
            elif kind == _REFERENCE_DELTA:
                base, position = head[position : position + 20], position + 20
            elif kind not in _KINDS:
                raise ValueError(f"object type {kind}")
        return _Entry(kind=kind, size=size, data_at=at + position, base=base)

    def _skip(self, entry: _Entry) -> int:
        """Where the next object begins: behind the zlib stream, which has no length of its own."""
        engine, at = zlib.decompressobj(), entry.data_at
        self._stream.seek(at)
        with parsing("git pack"):
            while not engine.eof:
                data = self._stream.read(_READ_BYTES)
                if not data:
                    raise EOFError("it is cut short")
                at += len(data)
                while data and not engine.eof:
                    engine.decompress(data, 1 << 20)
                    data = engine.unconsumed_tail
                self._blob.budget.check_time()
        return at - len(engine.unused_data)

    def _inflate(self, entry: _Entry) -> bytes:
        if entry.size > MAX_WHOLE_BYTES:
            raise Unreadable(f"larger than {MAX_WHOLE_BYTES:,} bytes")
        engine, out = zlib.decompressobj(), bytearray()
        self._stream.seek(entry.data_at)
        with parsing("git pack"):
            while not engine.eof and len(out) <= entry.size:
                data = engine.unconsumed_tail or self._stream.read(_READ_BYTES)
                if not data:
                    raise EOFError("it is cut short")
                out += engine.decompress(data, entry.size + 1 - len(out))
        if len(out) != entry.size:
            raise Unreadable("its length is not the one that it states")
        return bytes(out)

    def _object(self, at: int) -> tuple[str, bytes]:
        """Kind and content of the object at an offset, deltas applied; chains are walked without recursion."""
        chain: list[_Entry] = []
        place: int | None = at
        kind = ""
        content = b""
        while place is not None:
            if place in self._kept:
                kind, content = self._kept[place]
                self._kept.move_to_end(place)
                break
            entry = self._entry(place)
            if entry.base is None:
                kind, content = _KINDS[entry.kind], self._inflate(entry)
                break
            chain.append(entry)
            if len(chain) > _MAX_CHAIN:
                raise Unreadable("a chain of deltas without end")
            place = entry.base if isinstance(entry.base, int) else self._oids.get(entry.base)
            if place is None:
                raise Unreadable("its base is not in the pack")
        for entry in reversed(chain):
            content = apply_delta(content, self._inflate(entry))
        self._keep(at, kind, content)
        return kind, content

    def _keep(self, at: int, kind: str, content: bytes) -> None:
        self._kept[at] = (kind, content)
        self._kept_bytes += len(content)
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)


def apply_delta(base: bytes, delta: bytes) -> bytes:
    """The object that a delta makes of its base. Raises Unreadable if it does not fit."""
    with parsing("git delta"):
        base_size, at = _varint(delta, 0)
        size, at = _varint(delta, at)
        if base_size != len(base) or size > MAX_WHOLE_BYTES:
            raise ValueError("sizes do not fit")
        out = bytearray()
        while at < len(delta):
            op, at = delta[at], at + 1
            if op & 128:
                offset = length = 0
                for bit in range(4):
                    if op & 1 << bit:
                        offset, at = offset | delta[at] << 8 * bit, at + 1
                for bit in range(3):
                    if op & 16 << bit:
                        length, at = length | delta[at] << 8 * bit, at + 1
                length = length or 0x10000
                if offset + length > len(base):
                    raise ValueError("it copies from behind the base's end")
                out += base[offset : offset + length]
            elif op:
                out += delta[at : at + op]
                at += op
            else:
                raise ValueError("instruction 0")
            if len(out) > size:
                raise ValueError("it makes more than it states")
        if len(out) != size:
            raise ValueError("it makes less than it states")
    return bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            return value, at
        if shift > 63:
            raise ValueError("a number without end")
