"""The text in unknown bytes, as the program ``strings`` finds it: for what no decoder knows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

#: Shorter runs are noise.
MIN_CHARS: Final = 4
_PLAIN = frozenset((0x09, *range(0x20, 0x7F)))
_LONGER = frozenset((*range(0x80, 0xC0), *range(0xC2, 0xF5)))
# Tables are many times faster than classes of bytes in a pattern. Here all that is in no text becomes a line's end,
_LINES = bytes(byte if byte in _PLAIN or byte in _LONGER else 0x0A for byte in range(256))
_LINE = re.compile(rb"[^\n]{%d,}" % MIN_CHARS)
# and here all that is in a text the same letter.
_SHAPES = bytes(0x61 if byte in _PLAIN else 0 if byte == 0 else 0x0A for byte in range(256))
_WIDE = re.compile(rb"a\0" * MIN_CHARS + rb"(?:a\0)*")
_UTF_8 = re.compile(
    rb"(?:[\t\x20-\x7e]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}){%d,}" % MIN_CHARS
)


def strings(data: bytes) -> bytes:
    """Runs of at least MIN_CHARS printable characters in UTF-8, then those in UTF-16LE: a line each, in UTF-8."""
    return b"\n".join((*_narrow(data), *_wide(data)))


def _narrow(data: bytes) -> Iterator[bytes]:
    for run in _LINE.findall(data.translate(_LINES)):
        if run.isascii():
            yield run
        else:
            yield from _UTF_8.findall(run)


def _wide(data: bytes) -> Iterator[bytes]:
    for found in _WIDE.finditer(data.translate(_SHAPES)):
        yield data[found.start() : found.end() : 2]
