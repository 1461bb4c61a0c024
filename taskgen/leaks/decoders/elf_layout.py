"""The sections of ELF files. Layout: System V ABI, chapter 4."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import zstandard

from taskgen.leaks.blob import MAX_WHOLE_BYTES, Unreadable, parsing

MAGIC = b"\x7fELF"
_COMPRESSED, _ZLIB, _ZSTD = 0x800, 1, 2
_NO_BITS = 8
_MAX_NAME_BYTES = 1 << 16
_MAX_SECTIONS = 1 << 20
_MAX_SECTION_NAME_BYTES = 512
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_WINDOW_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section's header. ``offset`` and ``size`` in bytes, as they lie in the file."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    entry_bytes: int

    @property
    def is_packed(self) -> bool:
        """Whether its bytes are compressed: in the standard way, the older one, or gcc's for link-time work."""
        packed = bool(self.flags & _COMPRESSED) or self.name.startswith((".zdebug", ".gnu.lto_", ".gnu.debuglto_"))
        return packed and self.kind != _NO_BITS


class Elf:
    """A file in memory. Making one raises struct.error, IndexError and the like if it is broken."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        if data[4] not in (1, 2) or data[5] not in (1, 2):
            raise Unreadable("broken elf file: neither 32 nor 64 bits, or no order of bytes")
        self.is_64 = data[4] == 2
        self.order = "<" if data[5] == 1 else ">"
        at = self._word(0x28 if self.is_64 else 0x20)
        size, count, names = struct.unpack_from(self.order + "HHH", data, 0x3A if self.is_64 else 0x2E)
        if at and not count:
            # too many for two bytes: the first header has their number
            count, names = self._raw(at)[5:7]
        if at and (count > _MAX_SECTIONS or count * size > len(data)):
            raise Unreadable("broken elf file: more sections than it has room for")
        raw = [self._raw(at + size * n) for n in range(count)] if at else []
        table = raw[names] if names < len(raw) else None
        self.sections = [self._section(entry, table) for entry in raw]

    def _word(self, at: int) -> int:
        value: int = struct.unpack_from(self.order + ("Q" if self.is_64 else "I"), self.data, at)[0]
        return value

    def _raw(self, at: int) -> tuple[int, ...]:
        layout = "IIQQQQIIQQ" if self.is_64 else "IIIIIIIIII"
        return struct.unpack_from(self.order + layout, self.data, at)

    def _section(self, raw: tuple[int, ...], table: tuple[int, ...] | None) -> Section:
        name = self.string(table[4], table[5], raw[0], _MAX_SECTION_NAME_BYTES) if table else ""
        return Section(
            name=name, kind=raw[1], flags=raw[2], offset=raw[4], size=raw[5], link=raw[6], entry_bytes=raw[9]
        )

    def string(self, start: int, size: int, at: int, limit: int = _MAX_NAME_BYTES) -> str:
        """The text at ``at`` in a table of strings; of one longer than ``limit`` bytes its begin."""
        begin, last = start + at, min(start + size, start + at + limit)
        end = self.data.find(b"\0", begin, last)
        return self.data[begin : end if end >= 0 else last].decode("utf-8", "replace")

    def content(self, section: Section) -> bytes:
        """The bytes of a section, unpacked.

        Raises:
            Unreadable: they are broken, cut short, or unpack to too much.
        """
        if section.kind == _NO_BITS:
            return b""
        raw = self.data[section.offset : section.offset + section.size]
        if len(raw) < section.size:
            raise Unreadable(f"section {section.name[:80]!r} is cut short")
        if not section.is_packed:
            return raw
        with parsing(f"section {section.name[:80]!r}", struct.error, zstandard.ZstdError, MemoryError):
            return self._unpacked(section, raw)

    def _unpacked(self, section: Section, raw: bytes) -> bytes:
        if section.flags & _COMPRESSED:
            kind = struct.unpack_from(self.order + "I", raw)[0]
            if kind not in (_ZLIB, _ZSTD):
                raise ValueError(f"packed in an unknown way ({kind})")
            return _inflated(raw[24 if self.is_64 else 12 :], is_zstd=kind == _ZSTD)
        if section.name.startswith(".zdebug"):
            return _inflated(raw[12:], is_zstd=False) if raw.startswith(b"ZLIB") else raw
        is_zstd = raw.startswith(_ZSTD_MAGIC)
        return _inflated(raw, is_zstd=is_zstd) if is_zstd or raw.startswith(b"\x78") else raw


def _inflated(raw: bytes, *, is_zstd: bool) -> bytes:
    if is_zstd:
        engine = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        with engine.stream_reader(raw, read_across_frames=True) as reader:
            plain = reader.read(MAX_WHOLE_BYTES + 1)
    else:
        inflating = zlib.decompressobj()
        plain = inflating.decompress(raw, MAX_WHOLE_BYTES + 1)
        if not inflating.eof and len(plain) <= MAX_WHOLE_BYTES:
            raise EOFError("it is cut short")
    if len(plain) > MAX_WHOLE_BYTES:
        raise ValueError(f"unpacks to more than {MAX_WHOLE_BYTES:,} bytes")
    return plain
