"""LLVM's bitstream: nested blocks of records, which are numbers of so many bits.

Layout: https://llvm.org/docs/BitCodeFormat.html
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from taskgen.leaks.blob import Budget, Unreadable

_END, _ENTER, _DEFINE, _PLAIN = 0, 1, 2, 3
_FIXED, _VARIABLE, _ARRAY, _CHAR_6, _BLOB = 1, 2, 3, 4, 5
_CHARS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._"
_INFO_BLOCK, _SET_BLOCK = 0, 1
_MAX_DEPTH, _MAX_ABBREVIATIONS, _MAX_OPERATIONS = 32, 4096, 256
_MAX_ARRAY = 1 << 23
_BATCH = 2000

#: Encoding and its number of bits; a literal has the encoding 0 and its value.
_Operations = list[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record, and the number of the block that it is in. ``blob``: the bytes at its end, if it ends with such."""

    block: int
    code: int
    values: list[int]
    blob: bytes


class Bits:
    """Reads bits, low ones first."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at, self.end = data, 8 * at, 8 * len(data)

    def fixed(self, width: int) -> int:
        """A number of ``width`` bits."""
        at = self.at
        self.at += width
        if self.at > self.end or width > 64:
            raise Unreadable("broken bitcode: it is cut short")
        return int.from_bytes(self.data[at >> 3 : (self.at + 7) >> 3], "little") >> (at & 7) & ((1 << width) - 1)

    def variable(self, width: int) -> int:
        """A number in pieces of ``width`` bits, of which the highest says whether another follows."""
        if not 1 < width <= 32:
            raise Unreadable("broken bitcode: pieces of no bits")
        high = 1 << (width - 1)
        value = shift = 0
        while True:
            piece = self.fixed(width)
            value |= (piece & (high - 1)) << shift
            if not piece & high:
                return value
            shift += width - 1
            if shift > 70:
                raise Unreadable("broken bitcode: a number without end")

    def align(self) -> None:
        """Go on at the next word of 32 bits."""
        self.at = (self.at + 31) & ~31

    def blob(self) -> bytes:
        """Bytes behind their number."""
        size = self.variable(6)
        self.align()
        start = self.at >> 3
        self.at += 8 * size
        if self.at > self.end:
            raise Unreadable("broken bitcode: it is cut short")
        self.align()
        return self.data[start : start + size]


@dataclass(slots=True, kw_only=True)
class _Block:
    number: int
    width: int
    abbreviations: list[_Operations]


def records(data: bytes, start: int, blocks: Collection[int], budget: Budget) -> Iterator[Record]:
    """The records in blocks of these numbers; others are passed over.

    Raises:
        Unreadable: it is broken.
    """
    bits, known = Bits(data, start), dict[int, list[_Operations]]()
    stack, block, told, n_read = list[_Block](), _Block(number=-1, width=2, abbreviations=[]), -1, 0
    while stack or bits.at + 32 <= bits.end:
        n_read += 1
        if n_read % _BATCH == 0:
            budget.check_time()
        kind = bits.fixed(block.width)
        if kind == _END:
            if not stack:
                return  # padding
            bits.align()
            block = stack.pop()
        elif kind == _ENTER:
            number, width = bits.variable(8), bits.variable(4)
            bits.align()
            n_bits = 32 * bits.fixed(32)
            if number not in blocks and number != _INFO_BLOCK:
                bits.at += n_bits
                continue
            if len(stack) >= _MAX_DEPTH or not width:
                raise Unreadable("broken bitcode: nested too deeply")
            stack.append(block)
            block = _Block(number=number, width=width, abbreviations=list(known.get(number, ())))
        elif kind == _DEFINE:
            place = known.setdefault(told, []) if block.number == _INFO_BLOCK else block.abbreviations
            if len(place) >= _MAX_ABBREVIATIONS:
                raise Unreadable("broken bitcode: too many abbreviations")
            place.append(_definition(bits))
        else:
            if kind - _PLAIN > len(block.abbreviations):
                raise Unreadable("broken bitcode: an abbreviation that was not told")
            record = _record(bits, block, None if kind == _PLAIN else block.abbreviations[kind - _PLAIN - 1])
            if block.number != _INFO_BLOCK:
                yield record
            elif record.code == _SET_BLOCK and record.values:
                told = record.values[0]


def _definition(bits: Bits) -> _Operations:
    found: _Operations = []
    count = bits.variable(5)
    if not 0 < count <= _MAX_OPERATIONS:
        raise Unreadable("broken bitcode: an abbreviation without end")
    for _ in range(count):
        if bits.fixed(1):
            found.append((0, bits.variable(8)))
            continue
        encoding = bits.fixed(3)
        if encoding not in (_FIXED, _VARIABLE, _ARRAY, _CHAR_6, _BLOB):
            raise Unreadable("broken bitcode: an unknown encoding")
        found.append((encoding, bits.variable(5) if encoding in (_FIXED, _VARIABLE) else 0))
    return found


def _record(bits: Bits, block: _Block, abbreviation: _Operations | None) -> Record:
    blob = b""
    if abbreviation is None:
        code, count = bits.variable(6), bits.variable(6)
        _check_count(bits, count, 6)
        values = [code, *(bits.variable(6) for _ in range(count))]
    else:
        values = []
        for n, (encoding, width) in enumerate(abbreviation):
            if encoding == _ARRAY:
                values += _array(bits, *abbreviation[-1])
                break
            if encoding == _BLOB:
                blob = bits.blob()
            else:
                values.append(_value(bits, encoding, width))
            if n + 1 == len(abbreviation) and not values:
                raise Unreadable("broken bitcode: a record without a code")
    if not values:
        raise Unreadable("broken bitcode: a record without a code")
    return Record(block=block.number, code=values[0], values=values[1:], blob=blob)


def _array(bits: Bits, encoding: int, width: int) -> Iterator[int]:
    count = bits.variable(6)
    if not encoding or (encoding != _CHAR_6 and not width) or count > _MAX_ARRAY:
        raise Unreadable("broken bitcode: an array of no bits, or of too many")
    _check_count(bits, count, 6 if encoding == _CHAR_6 else width)
    return (_value(bits, encoding, width) for _ in range(count))


def _check_count(bits: Bits, count: int, width: int) -> None:
    if count * max(1, width) > bits.end - bits.at:
        raise Unreadable("broken bitcode: a record longer than all of it")


def _value(bits: Bits, encoding: int, width: int) -> int:
    if not encoding:
        return width
    if encoding == _FIXED:
        return bits.fixed(width)
    if encoding == _VARIABLE:
        return bits.variable(width) if width else 0
    if encoding == _CHAR_6:
        return _CHARS[bits.fixed(6)]
    raise Unreadable("broken bitcode: an array of no values")
