"""Python's marshal format, read without running or building anything: plain values and code records come out.

Layouts of code objects: CPython's Python/marshal.c, from 2.7 to 3.14.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskgen.leaks.blob import Unreadable

MAX_DEPTH = 150
_FLAG_REF = 0x80
_FAST_LOCAL, _FAST_CELL, _FAST_FREE = 0x20, 0x40, 0x80


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
    """Reads one marshalled value.

    Attributes:
        version: of Python, (3, 11); it decides how code objects are laid out.
    """

    data: bytes
    version: tuple[int, int]
    at: int = 0
    refs: list[Any] = field(default_factory=list)
    interned: list[Any] = field(default_factory=list)
    depth: int = 0

    def value(self) -> Any:  # noqa: ANN401 - any value
        """The next value. Raises Unreadable, and IndexError or struct.error for data that are cut short."""
        if self.depth > MAX_DEPTH:
            raise Unreadable("broken marshal data: nested too deeply")
        tag = self.data[self.at]
        self.at += 1
        kind, is_ref = chr(tag & 0x7F), bool(tag & _FLAG_REF) and self.version >= (3, 4)
        read = _READERS.get(kind)
        if read is None:
            raise Unreadable(f"broken marshal data: type {kind!r} at byte {self.at - 1:,}")
        place = len(self.refs)
        if is_ref:
            self.refs.append(None)
        self.depth += 1
        found = read(self)
        self.depth -= 1
        if is_ref:
            self.refs[place] = found
        return found

    def int32(self) -> int:
        value: int = struct.unpack_from("<i", self.data, self.at)[0]
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
        return tuple([self.value() for _ in range(length)])


def _text(reader: Reader, length: int) -> str:
    return reader.raw(length).decode("utf-8", "surrogatepass" if reader.version >= (3, 0) else "replace")


def _unicode(reader: Reader) -> str:
    return reader.raw(reader.size()).decode("utf-8", "replace")


def _ascii(reader: Reader) -> str:
    return reader.raw(reader.size()).decode("latin-1")


def _short(reader: Reader) -> str:
    return reader.raw(reader.byte_size()).decode("latin-1")


def _bytes(reader: Reader) -> bytes:
    return reader.raw(reader.size())


def _interned(reader: Reader) -> Any:  # noqa: ANN401
    if reader.version < (3, 0):
        found = reader.raw(reader.size())
        reader.interned.append(found)
        return found
    return _unicode(reader)


def _reference(reader: Reader) -> Any:  # noqa: ANN401
    index = reader.int32()
    table = reader.refs
    if not 0 <= index < len(table):
        raise Unreadable("broken marshal data: a reference to nothing")
    return table[index]


def _interned_reference(reader: Reader) -> Any:  # noqa: ANN401
    index = reader.int32()
    if not 0 <= index < len(reader.interned):
        raise Unreadable("broken marshal data: a reference to nothing")
    return reader.interned[index]


def _long(reader: Reader) -> int:
    count = reader.int32()
    if 2 * abs(count) > len(reader.data) - reader.at:
        raise Unreadable("broken marshal data: a number that is cut short")
    digits = struct.unpack_from(f"<{abs(count)}H", reader.data, reader.at)
    reader.at += 2 * abs(count)
    # Enough of a number to recognise it; multiplying out a million digits takes minutes.
    value = sum(digit << 15 * place for place, digit in enumerate(digits[:64]))
    return int(-value if count < 0 else value)


def _int64(reader: Reader) -> int:
    value: int = struct.unpack_from("<q", reader.data, reader.at)[0]
    reader.at += 8
    return value


def _float_text(reader: Reader) -> float:
    try:
        return float(reader.raw(reader.byte_size()))
    except ValueError as error:
        raise Unreadable("broken marshal data: a number that is none") from error


def _double(reader: Reader) -> float:
    value: float = struct.unpack_from("<d", reader.data, reader.at)[0]
    reader.at += 8
    return value


def _dictionary(reader: Reader) -> tuple[Any, ...]:
    pairs: list[Any] = []
    while (key := reader.value()) is not Null:
        pairs += [key, reader.value()]
    return tuple(pairs)


def _strings(found: Any) -> tuple[str, ...]:  # noqa: ANN401
    if not isinstance(found, tuple):
        return ()
    return tuple(n if isinstance(n, str) else n.decode("latin-1") if isinstance(n, bytes) else "" for n in found)


def _string(found: Any) -> str:  # noqa: ANN401
    return _strings((found,))[0]


def _code(reader: Reader) -> Code:
    if reader.version >= (3, 11):
        return _code_311(reader)
    version = reader.version
    n_arguments = reader.int32()
    if version >= (3, 8):
        reader.int32()  # positional-only, counted among the arguments too
    n_keyword_only = reader.int32() if version >= (3, 0) else 0
    reader.int32()
    reader.int32()
    flags = reader.int32()
    code = reader.value()
    constants, names, variables, free, cells = (reader.value() for _ in range(5))
    reader.value()
    name = _string(reader.value())
    reader.int32()
    reader.value()
    return Code(
        name=name, qualified_name="", n_arguments=n_arguments, n_keyword_only=n_keyword_only, flags=flags,
        names=_strings(names), variables=_strings(variables), closure=_strings(free) + _strings(cells),
        constants=constants if isinstance(constants, tuple) else (),
        size_bytes=len(code) if isinstance(code, bytes) else 0,
    )  # fmt: skip


def _code_311(reader: Reader) -> Code:
    n_arguments, _, n_keyword_only, _, flags = (reader.int32() for _ in range(5))
    code = reader.value()
    constants, names, locals_plus, kinds = (reader.value() for _ in range(4))
    reader.value()
    name, qualified_name = _string(reader.value()), _string(reader.value())
    reader.int32()
    reader.value()
    reader.value()
    every = _strings(locals_plus)
    marks = kinds if isinstance(kinds, bytes) else b""
    return Code(
        name=name, qualified_name=qualified_name, n_arguments=n_arguments, n_keyword_only=n_keyword_only, flags=flags,
        names=_strings(names),
        variables=tuple(n for n, kind in zip(every, marks, strict=False) if kind & _FAST_LOCAL),
        closure=tuple(n for n, kind in zip(every, marks, strict=False) if kind & (_FAST_CELL | _FAST_FREE)),
        constants=constants if isinstance(constants, tuple) else (),
        size_bytes=len(code) if isinstance(code, bytes) else 0,
    )  # fmt: skip


_READERS: dict[str, Callable[[Reader], Any]] = {
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
    "u": lambda reader: _text(reader, reader.size()),
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
    "r": _reference,
    "c": _code,
}
