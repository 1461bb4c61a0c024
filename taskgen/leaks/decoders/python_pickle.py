"""Pickles, read as opcodes and never loaded: their strings, and the source lines that jedi and parso keep in them."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

from taskgen.leaks.blob import HEAD_BYTES, MAX_WHOLE_BYTES, Blob
from taskgen.leaks.decoders import pickled_code
from taskgen.leaks.records import Problem, Symbol

NAME = "pickle"
RAW_STRINGS = False
_PROTOCOLS = (b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5")
#: Of protocols 0 and 1, which have no mark.
_SUFFIXES = (".pkl", ".pickle", ".p", ".pck", ".joblib")
#: So many bytes of opcodes are no coincidence.
_SURE_BYTES = 24
#: From these lengths on a text, or bytes, may be a file of their own.
_LONG_TEXT_BYTES, _LONG_BYTES = 200, 40
#: So many lines in a row are the lines of one text.
_MIN_LINES = 3
_JOINED_BYTES = 4 << 20
_CHECK_EVERY = 1024
_STOP = ord(".")
#: Opcodes with a count before their content: the count's length. Texts, bytes, and long numbers, which say nothing.
_COUNTED = {ord(c): width for width, codes in ((1, "\x8cUC\x8a"), (4, "XTB\x8b"), (8, "\x8d\x8e\x96")) for c in codes}
_NUMBERS = frozenset(b"\x8a\x8b")
_BYTES = frozenset(b"UCTB\x8e\x96")
#: Opcodes with a text up to the end of the line, or of two lines.
_QUOTED, _ESCAPED = ord("S"), ord("V")
_IN_LINES = {_QUOTED: re.compile(rb"['\"][^\n]*+\n"), _ESCAPED: re.compile(rb"[^\n]*+\n")}
_IN_LINES |= dict.fromkeys(b"ci", re.compile(rb"\S++\n\S++\n"))
#: All other opcodes, one behind the other: a run of them is passed in one step.
_OTHERS = re.compile(
    rb"(?:[NRabdelostu0-2()\]}\x81\x85-\x89\x8f-\x94\x97\x98Q]++|[Khq\x80\x82][\x00-\xff]|[M\x83][\x00-\xff]{2}"
    rb"|[Jjr\x84][\x00-\xff]{4}|[G\x95][\x00-\xff]{8}|[ILgp]-?[0-9]++L?\n|F[0-9a-z.+-]++\n|P\S*+\n)*+"
)
_PADDING = re.compile(rb"\0*+")
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([\x00-\xff]))")
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}
#: joblib puts the bytes of its arrays between the opcodes.
_ARRAYS = b"NumpyArrayWrapper"


def matches(head: bytes, name: str) -> bool:
    """Protocols from 2 on begin with their number; older ones have no mark but the name. Opcodes follow."""
    return (head[:2] in _PROTOCOLS or name.endswith(_SUFFIXES)) and len(head) > 1 and _has_opcodes(head)


def _has_opcodes(head: bytes) -> bool:
    if head[2:3] == b"\x95" and head[8:11] == b"\0\0\0":
        return True  # a frame, of less than a terabyte
    at = 0
    while at < min(len(head), _SURE_BYTES):
        at = _pass(head, at)
        if at == len(head) or head[at] == _STOP:
            return True
        span = _span(head, at)
        if span is None:
            is_long_line = head[at] in (_QUOTED, _ESCAPED) and len(head) == HEAD_BYTES and b"\n" not in head[at:]
            return at >= _SURE_BYTES or is_long_line
        if span[1] - span[0] > MAX_WHOLE_BYTES:
            return False
        at = span[1]
    return True


def _pass(data: bytes, at: int) -> int:
    """Behind the opcodes without a text."""
    found = _OTHERS.match(data, at)
    return found.end() if found else at


def _span(data: bytes, at: int) -> tuple[int, int] | None:
    """Where the content of a text's opcode is; it may end behind the data. None: there is no such opcode."""
    code = data[at]
    if width := _COUNTED.get(code):
        start = at + 1 + width
        return start, start + int.from_bytes(data[at + 1 : start], "little")
    line = _IN_LINES.get(code)
    found = line.match(data, at + 1) if line else None
    return found.span() if found else None


def decode(blob: Blob) -> Iterator[Blob | Problem | Symbol]:
    """All texts in order, a line each; runs of lines by themselves, and whatever is long. Code becomes symbols.

    An object that a pickle holds more than once is in it once: of a source, all blank lines but the first are missing.
    """
    data = blob.read()
    yield from pickled_code.symbols(blob, data)
    texts = _Texts(blob)
    at = number = 0
    is_ended = False
    while (at := _pass(data, at)) < len(data):
        number += 1
        if number % _CHECK_EVERY == 0:
            blob.budget.check_time()
        if data[at] == _STOP:
            is_ended = True
            at = _behind(data, at + 1)
            if data[at : at + 2] not in _PROTOCOLS:
                break
            continue
        span = _span(data, at)
        if span is None or span[1] > len(data):
            break
        start, end = span
        if data[at] not in _NUMBERS:
            yield from texts.take(_content(data[at], data[start:end]), is_bytes=data[at] in _BYTES)
        at = end
        is_ended = False
    yield from texts.end()
    if not is_ended and _ARRAYS not in data:
        yield Problem(reason=f"pickle: no opcode at byte {at:,}" if at < len(data) else "pickle: it is cut short")
    if at < len(data):
        yield blob.child("(rest)", data[at:])


def _behind(data: bytes, at: int) -> int:
    """Behind the zeros that fill up a record."""
    found = _PADDING.match(data, at)
    return found.end() if found else at


def _content(code: int, raw: bytes) -> bytes:
    if code in _COUNTED:
        return raw
    raw = raw.rstrip(b"\r\n")
    if code == _QUOTED:
        return _ESCAPE.sub(_unescaped, raw[1:-1])
    if code == _ESCAPED:
        return codecs.raw_unicode_escape_decode(raw, "replace")[0].encode("utf-8", "replace")
    return raw.replace(b"\n", b".")


def _unescaped(found: re.Match[bytes]) -> bytes:
    number, letter = found.groups()
    return bytes([int(number, 16)]) if number else _ESCAPES.get(letter, letter)


class _Texts:
    """The texts of a pickle, put together. Lines in a row are a text; whatever is long may be a file."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._joined: list[bytes] = []
        self._lines: list[bytes] = []
        self._n_bytes = 0

    def take(self, text: bytes, *, is_bytes: bool) -> list[Blob]:
        """Add the next text; what is complete with it is returned."""
        found: list[Blob] = []
        if len(text) >= (_LONG_BYTES if is_bytes else _LONG_TEXT_BYTES):
            found.append(self._blob.child("(string)", text))
        self._n_bytes += len(text) + 1
        if text.endswith(b"\n"):
            self._lines.append(text)
        else:
            if self._lines:
                found += self._end_of_lines(text)
            self._joined.append(text)
        return found + self.end() if self._n_bytes > _JOINED_BYTES else found

    def _end_of_lines(self, last: bytes) -> list[Blob]:
        """A run of lines is over; the text behind it may be its last line."""
        lines, self._lines = self._lines, []
        if len(lines) >= _MIN_LINES:
            return [self._blob.child("(lines)", b"".join([*lines, last]))]
        self._joined += [line.rstrip(b"\n") for line in lines]
        return []

    def end(self) -> list[Blob]:
        """What is left."""
        found = self._end_of_lines(b"")
        if self._joined:
            found.append(self._blob.child("(strings)", b"\n".join(self._joined)))
        self._joined, self._n_bytes = [], 0
        return found
