"""Python's marshal format, read without running or building anything: plain values and code records come out.

Layouts of code objects: CPython's Python/marshal.c, from 2.3 to 3.15.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskgen.leaks.blob import Budget, Unreadable

#: Code in code takes two levels, and Python's own compiler nests neither code nor constants deeper than this.
MAX_DEPTH = 150
#: Of a longer number only so many 15-bit digits are read: enough to recognise it, and no quadratic arithmetic.
MAX_DIGITS = 64
_FLAG_REF = 0x80
_FAST_LOCAL, _FAST_CELL, _FAST_FREE = 0x20, 0x40, 0x80
_SHORT_TEXT = frozenset(b"zZ")
_INT32 = struct.Struct("<i")
_INT32_5 = struct.Struct("<5i")
_CHECK_EVERY = 256
_NAMES_A_BYTE = 4


@dataclass(slots=True, kw_only=True)
class Code:
    """A code object.

    Attributes:
        n_arguments: positional ones, those without keyword included.
        names: of globals and attributes; variables: arguments first, then locals; closure: cells and free ones.
        size_bytes: length of the bytecode.
    """

    name: str
    qualified_name: str
    n_arguments: int
    n_keyword_only: int
    flags: int
    names: tuple[str, ...]
    variables: tuple[str, ...]
    closure: tuple[str, ...]
    constants: tuple[Any, ...]
    size_bytes: int


class Null:
    """What ends a dictionary."""


@dataclass(slots=True, kw_only=True)
class Reader:
    """Reads one marshalled value. Sets, lists, slices and dictionaries come as tuples, too.

    Attributes:
        version: of Python, (3, 11); it decides how code objects are laid out.
    """

    data: bytes
    version: tuple[int, int]
    budget: Budget
    at: int = 0
    refs: list[Any] = field(default_factory=list)
    interned: list[Any] = field(default_factory=list)
    depth: int = 0
    n_codes: int = 0
    n_names: int = 0

    def value(self) -> Any:  # noqa: ANN401 - any value
        """The next value. Raises Unreadable, and IndexError or struct.error for data that are cut short."""
        tag = self.data[self.at]
        self.at += 1
        read = _READERS.get(tag & 0x7F)
        if read is None:
            raise Unreadable(f"broken marshal data: type {chr(tag & 0x7F)!r} at byte {self.at - 1:,}")
        if not tag & _FLAG_REF:
            return read(self)
        # The number is given before what is inside: a reference to it from there finds nothing.
        place = len(self.refs)
        self.refs.append(None)
        found = self.refs[place] = read(self)
        return found

    def int32(self) -> int:
        value: int = _INT32.unpack_from(self.data, self.at)[0]
        self.at += 4
        return value

    def size(self) -> int:
        """A length: of bytes or of items, of which each takes a byte at least."""
        value = self.int32()
        if not 0 <= value <= len(self.data) - self.at:
            raise Unreadable(f"broken marshal data: a length of {value:,} at byte {self.at - 4:,}")
        return value

    def byte_size(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def raw(self, length: int) -> bytes:
        data = self.data[self.at : self.at + length]
        if len(data) < length:
            raise Unreadable("broken marshal data: it is cut short")
        self.at += length
        return data

    def items(self, length: int) -> tuple[Any, ...]:
        """So many values. References and short texts, of which there are most, are read right here."""
        if self.depth > MAX_DEPTH:
            raise Unreadable("broken marshal data: nested too deeply")
        self.depth += 1
        data, refs, found = self.data, self.refs, []
        for _ in range(length):
            tag = data[self.at]
            if tag == 0x72:  # r
                found.append(refs[_place(self, refs, 1)])
                self.at += 5
            elif tag & 0x7F in _SHORT_TEXT:
                end = self.at + 2 + data[self.at + 1]
                text = data[self.at + 2 : end].decode("latin-1")
                self.at = end
                if tag & _FLAG_REF:
                    refs.append(text)
                found.append(text)
            else:
                found.append(self.value())
        self.depth -= 1
        return tuple(found)


def _place(reader: Reader, table: list[Any], offset: int) -> int:
    index: int = _INT32.unpack_from(reader.data, reader.at + offset)[0]
    if not 0 <= index < len(table):
        raise Unreadable(f"broken marshal data: a reference to nothing at byte {reader.at:,}")
    return index


def _reference(reader: Reader) -> Any:  # noqa: ANN401
    found = reader.refs[_place(reader, reader.refs, 0)]
    reader.at += 4
    return found


def _interned_reference(reader: Reader) -> Any:  # noqa: ANN401
    found = reader.interned[_place(reader, reader.interned, 0)]
    reader.at += 4
    return found


def _unicode(reader: Reader) -> str:
    return reader.raw(reader.size()).decode("utf-8", "replace")  # lone surrogates, too, that nobody could print


def _ascii(reader: Reader) -> str:
    return reader.raw(reader.size()).decode("latin-1")


def _short(reader: Reader) -> str:
    return reader.raw(reader.byte_size()).decode("latin-1")


def _bytes(reader: Reader) -> bytes:
    return reader.raw(reader.size())


def _interned(reader: Reader) -> Any:  # noqa: ANN401
    if reader.version >= (3, 0):
        return _unicode(reader)
    found = reader.raw(reader.size())
    reader.interned.append(found)
    return found


def _long(reader: Reader) -> int:
    count = reader.int32()
    digits = reader.raw(2 * abs(count))[: 2 * MAX_DIGITS]
    value: int = sum(digit << 15 * place for place, (digit,) in enumerate(struct.iter_unpack("<H", digits)))
    return -value if count < 0 else value


def _int64(reader: Reader) -> int:
    return int.from_bytes(reader.raw(8), "little", signed=True)


def _float_text(reader: Reader) -> float:
    text = reader.raw(reader.byte_size())
    try:
        return float(text)
    except ValueError as error:
        raise Unreadable(f"broken marshal data: {text[:40]!r} is no number") from error


def _double(reader: Reader) -> float:
    value: float = struct.unpack("<d", reader.raw(8))[0]
    return value


def _dictionary(reader: Reader) -> tuple[Any, ...]:
    if reader.depth > MAX_DEPTH:
        raise Unreadable("broken marshal data: nested too deeply")
    reader.depth += 1
    pairs: list[Any] = []
    while (key := reader.value()) is not Null:
        pairs += (key, reader.value())
    reader.depth -= 1
    return tuple(pairs)


def _names(reader: Reader) -> tuple[str, ...]:
    """A tuple of texts. Many codes may refer to the same one, which only broken data do with a large one."""
    found = reader.value()
    if type(found) is not tuple:
        raise Unreadable(f"broken marshal data: no names before byte {reader.at:,}")
    reader.n_names += len(found)
    if reader.n_names > _NAMES_A_BYTE * len(reader.data):
        raise Unreadable("broken marshal data: its codes refer to more names than it holds")
    return tuple([name if type(name) is str else _text(name) for name in found])


def _text(found: Any) -> str:  # noqa: ANN401
    if isinstance(found, str):
        return found
    if isinstance(found, bytes):  # Python 2
        return found.decode("utf-8", "replace")
    raise Unreadable("broken marshal data: a name that is no text")


def _constants(reader: Reader) -> tuple[Any, ...]:
    found = reader.value()
    if type(found) is not tuple:
        raise Unreadable(f"broken marshal data: no constants before byte {reader.at:,}")
    return found


def _size_of_code(reader: Reader) -> int:
    found = reader.value()
    if not isinstance(found, bytes):
        raise Unreadable(f"broken marshal data: no bytecode before byte {reader.at:,}")
    return len(found)


def _code(reader: Reader) -> Code:
    reader.n_codes += 1
    if reader.n_codes % _CHECK_EVERY == 0:
        reader.budget.check_time()
    if reader.depth > MAX_DEPTH:
        raise Unreadable("broken marshal data: nested too deeply")
    reader.depth += 1
    found = _code_311(reader) if reader.version >= (3, 11) else _code_23(reader)
    reader.depth -= 1
    return found


def _code_23(reader: Reader) -> Code:
    version = reader.version
    n_arguments = reader.int32()
    if version >= (3, 8):
        reader.int32()  # positional-only, counted among the arguments too
    n_keyword_only = reader.int32() if version >= (3, 0) else 0
    reader.int32()
    reader.int32()
    flags = reader.int32()
    size = _size_of_code(reader)
    constants = _constants(reader)
    names, variables, free, cells = (_names(reader) for _ in range(4))
    reader.value()
    name = _text(reader.value())
    reader.int32()
    reader.value()
    return Code(
        name=name, qualified_name="", n_arguments=n_arguments, n_keyword_only=n_keyword_only, flags=flags,
        names=names, variables=variables, closure=free + cells, constants=constants, size_bytes=size,
    )  # fmt: skip


def _code_311(reader: Reader) -> Code:
    n_arguments, _, n_keyword_only, _, flags = _INT32_5.unpack_from(reader.data, reader.at)
    reader.at += 20
    size = _size_of_code(reader)
    constants = _constants(reader)
    names, every = _names(reader), _names(reader)
    kinds = reader.value()
    if not isinstance(kinds, bytes) or len(kinds) != len(every):
        raise Unreadable(f"broken marshal data: no kinds of variables before byte {reader.at:,}")
    reader.value()
    name, qualified_name = _text(reader.value()), _text(reader.value())
    reader.int32()
    reader.value()
    reader.value()
    return Code(
        name=name, qualified_name=qualified_name, n_arguments=n_arguments, n_keyword_only=n_keyword_only, flags=flags,
        names=names,
        variables=tuple([n for n, kind in zip(every, kinds, strict=True) if kind & _FAST_LOCAL]),
        closure=tuple([n for n, kind in zip(every, kinds, strict=True) if kind & (_FAST_CELL | _FAST_FREE)]),
        constants=constants, size_bytes=size,
    )  # fmt: skip


_BY_LETTER: dict[str, Callable[[Reader], Any]] = {
    "0": lambda reader: Null,
    "N": lambda reader: None,
    "F": lambda reader: False,
    "T": lambda reader: True,
    "S": lambda reader: StopIteration,
    ".": lambda reader: Ellipsis,
    "i": Reader.int32,
    "I": _int64,
    "l": _long,
    "f": _float_text,
    "g": _double,
    "x": lambda reader: complex(_float_text(reader), _float_text(reader)),
    "y": lambda reader: complex(_double(reader), _double(reader)),
    "s": _bytes,
    "t": _interned,
    "R": _interned_reference,
    "u": _unicode,
    "a": _ascii,
    "A": _ascii,
    "z": _short,
    "Z": _short,
    "(": lambda reader: reader.items(reader.size()),
    ")": lambda reader: reader.items(reader.byte_size()),
    "[": lambda reader: reader.items(reader.size()),
    "<": lambda reader: reader.items(reader.size()),
    ">": lambda reader: reader.items(reader.size()),
    ":": lambda reader: reader.items(3),
    "{": _dictionary,
    "}": _dictionary,
    "r": _reference,
    "c": _code,
}
_READERS = {ord(letter): read for letter, read in _BY_LETTER.items()}
