"""The constants of a Java class file, and types as its descriptors write them.

Layout: The Java Virtual Machine Specification, 4.3 and 4.4.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

from taskgen.leaks.blob import Unreadable

_TEXT, _INTEGER, _FLOAT, _LONG, _DOUBLE, _CLASS, _STRING = 1, 3, 4, 5, 6, 7, 8
_HANDLE, _TYPE, _DYNAMIC, _CALL_SITE = 15, 16, 17, 18
_MEMBERS = (9, 10, 11)
#: What a class, a string, a name and type, a method type, a module and a package begin with: the index of a text.
_NAMED = (_CLASS, _STRING, 12, _TYPE, 19, 20)
# Bytes of a constant behind its tag. A text is as long as it says; a long and a double take two places.
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
_BASIC = {
    "B": "byte", "C": "char", "D": "double", "F": "float", "I": "int", "J": "long", "S": "short", "Z": "boolean",
    "V": "void",
}  # fmt: skip
_ONE_TYPE = re.compile(r"(\[{0,255})(?:L([^;]*);|([BCDFIJSZV]))")
_MAX_TYPES = 256
#: string concatenation marks the places of its arguments with these
_PLACES = re.compile("[\1\2]")


class Pool:
    """The constants, found by index. Its methods raise LookupError and struct.error where the file is broken."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._texts: dict[int, str] = {}
        at, places = 10, [0]
        count = int.from_bytes(data[8:10], "big")
        while len(places) < count:
            tag = data[at]
            places.append(at)
            at += 3 + int.from_bytes(data[at + 1 : at + 3], "big") if tag == _TEXT else 1 + _SIZES[tag]
            if tag in (_LONG, _DOUBLE):
                places.append(0)
        if at > len(data):
            raise Unreadable("broken java class: its constants are cut short")
        self._places, self.end = places, at

    def tag(self, index: int) -> int:
        """The kind of a constant; 0 where there is none."""
        at = self._places[index]
        return self.data[at] if at else 0

    def number(self, index: int, skip: int = 0) -> int:
        """Two bytes of a constant, ``skip`` bytes behind its tag: most often the index of another."""
        at = self._places[index] + 1 + skip
        return int.from_bytes(self.data[at : at + 2], "big")

    def text(self, index: int) -> str:
        """The text at ``index``; empty where there is none."""
        found = self._texts.get(index)
        if found is None:
            found = self._texts[index] = self._text(index) if self.tag(index) == _TEXT else ""
        return found

    def _text(self, index: int) -> str:
        at = self._places[index]
        raw = self.data[at + 3 : at + 3 + self.number(index)]
        if raw.isascii():
            return raw.decode()
        # Modified UTF-8: NUL takes two bytes, and what is beyond 16 bits two surrogates.
        text = raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass" if b"\xed" in raw else "replace")
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def named(self, index: int) -> str:
        """The text that a class, a string or a name and type refers to."""
        return self.text(self.number(index)) if self.tag(index) in _NAMED else ""

    def class_name(self, index: int) -> str:
        """``Inner`` of the class ``a/Outer$Inner``."""
        return self.named(index).rstrip(";").rpartition("/")[2].rpartition("$")[2]

    def value(self, index: int) -> str:
        """A number or a string as text; empty for other constants."""
        tag, at = self.tag(index), self._places[index] + 1
        if tag == _STRING:
            return self.named(index)
        if tag in (_INTEGER, _LONG):
            return str(int.from_bytes(self.data[at : at + _SIZES[tag]], "big", signed=True))
        if tag in (_FLOAT, _DOUBLE):
            return repr(struct.unpack_from(">f" if tag == _FLOAT else ">d", self.data, at)[0])
        return ""

    def names(self, index: int) -> tuple[str, ...]:
        """The names that a reference to a class, a field, a method or a method's handle holds."""
        tag = self.tag(index)
        if tag == _HANDLE:
            index = self.number(index, 1)
            tag = self.tag(index)
        if tag in _MEMBERS:
            return self.named(self.number(index, 2)), self.class_name(self.number(index))
        if tag in (_DYNAMIC, _CALL_SITE):
            return (self.named(self.number(index, 2)),)
        return (self.class_name(index),) if tag == _CLASS else ()

    def dynamic(self, index: int) -> int | None:
        """Which bootstrap method a constant that is computed at run time names."""
        return self.number(index) if self.tag(index) in (_DYNAMIC, _CALL_SITE) else None

    def pieces(self, index: int) -> list[str]:
        """The pieces of a string that is joined with others at run time."""
        return [piece for piece in _PLACES.split(self.named(index)) if piece] if self.tag(index) == _STRING else []

    def everything(self) -> tuple[frozenset[str], tuple[str, ...]]:
        """All names and all values, for code that cannot be followed."""
        indices = range(1, len(self._places))
        names = frozenset(name for index in indices for name in self.names(index) if name)
        return names, tuple(value for index in indices if (value := self.value(index)))


@lru_cache(maxsize=256)
def method_types(descriptor: str) -> tuple[tuple[str, ...], str] | None:
    """Parameter types and return type: ``(ILjava/lang/String;)V`` -> ``("int", "String"), "void"``; None if it is
    none (which is remembered, too: a hostile file has the same one for each of its methods)."""
    inside, closed, returned = descriptor[1:].partition(")")
    types, result = _types(inside), _types(returned)
    if not closed or descriptor[0] != "(" or types is None or result is None:
        return None
    return tuple(types), "".join(result[:1])


def _types(text: str) -> list[str] | None:
    found: list[str] = []
    at = 0
    while at < len(text) and len(found) < _MAX_TYPES:
        one = _ONE_TYPE.match(text, at)
        if one is None:
            return None
        base = _BASIC[one[3]] if one[3] else one[2].rpartition("/")[2].replace("$", ".")
        found.append(base + "[]" * len(one[1]))
        at = one.end()
    return found if at == len(text) else None
