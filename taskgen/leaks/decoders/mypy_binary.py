"""The binary form of mypy's caches ("fixed format", mypy 2), read into the tree that its JSON form has.

The format describes itself: each value has a tag, and objects of mypy's classes end with one. Only the names of their
fields are not in it; those that matter here are listed below by class. Fields that a version of mypy adds behind them
do no harm.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taskgen.leaks.blob import Budget, Unreadable

Tree = Any  # a value of JSON, or bytes

MAX_DEPTH = 100
#: An object takes some 250 bytes of memory, and but two of the data.
MAX_NODES = 2_000_000
MODULE_TAG, STRING_TAG = 50, 4
_INTEGERS_TAG, _STRINGS_TAG, _TABLE_TAG, _INSTANCE_TAG, _END_TAG = 21, 22, 30, 80, 255
_CHECK_EVERY = 4096
#: Class and first fields of what a tag begins.
_FIELDS: dict[int, tuple[str, tuple[str, ...]]] = {
    MODULE_TAG: ("MypyFile", ("_fullname", "names")),
    51: ("OverloadedFuncDef", ("items", "type", "fullname", "impl")),
    52: ("FuncDef", ("name", "type", "fullname", "flags", "arg_names", "arg_kinds")),
    53: ("Decorator", ("func", "var")),
    54: ("Var", ("name", "type", "setter_type", "fullname", "flags", "final_value")),
    55: ("TypeVarExpr", ("name", "fullname", "values", "upper_bound")),
    56: ("ParamSpecExpr", ("name", "fullname")),
    57: ("TypeVarTupleExpr", ("tuple_fallback", "name", "fullname")),
    58: ("TypeInfo", ("names", "defn", "module_name", "fullname", "abstract", "abstract_kinds", "type_vars", "has_spec",
                      "bases")),
    59: ("TypeAlias", ("fullname", "module", "target")),
    60: ("ClassDef", ("name", "type_vars", "fullname")),
    61: ("SymbolTableNode", ("kind", "hidden", "public", "implicit", "generated", "cross_ref", "node")),
    _INSTANCE_TAG: ("Instance", ("type_ref", "args")),
    100: ("TypeAliasType", ("args", "type_ref")),
    101: ("TypeVarType", ("name", "fullname")),
    102: ("ParamSpecType", ("prefix", "name", "fullname")),
    103: ("TypeVarTupleType", ("tuple_fallback", "name", "fullname")),
    104: ("UnboundType", ("name", "args")),
    105: ("UnpackType", ("type",)),
    106: ("AnyType", ()),
    107: ("UninhabitedType", ()),
    108: ("NoneType", ()),
    109: ("DeletedType", ()),
    110: ("CallableType", ("fallback", "instance_type", "flags", "arg_types", "arg_kinds", "arg_names", "ret_type")),
    111: ("Overloaded", ("items",)),
    112: ("TupleType", ("partial_fallback", "items")),
    113: ("TypedDictType", ("fallback", "items")),
    114: ("LiteralType", ("fallback", "value")),
    115: ("UnionType", ("items",)),
    116: ("TypeType", ("item",)),
    117: ("Parameters", ("arg_types", "arg_kinds", "arg_names")),
}  # fmt: skip
_SIMPLE_INSTANCE, _GENERIC_INSTANCE = 81, 82
_COMMON_INSTANCES = {83: "builtins.str", 84: "builtins.function", 85: "builtins.int", 86: "builtins.bool",
                     87: "builtins.object"}  # fmt: skip


def is_module(head: bytes) -> bool:
    """Whether these are the first bytes of a module: its tag, its name, and the tag of its table of names."""
    if head[:2] != bytes([MODULE_TAG, STRING_TAG]):
        return False
    try:
        length, at = integer(head, 2)
    except IndexError:
        return False
    return 0 < length < 1000 and (at + length >= len(head) or head[at + length] == _TABLE_TAG)


def integer(data: bytes, at: int) -> tuple[int, int]:
    """A bare number and where it ends: one, two or four bytes, as its lowest bits say; or more, with a length."""
    first = data[at]
    if not first & 1:
        return (first >> 1) - 10, at + 1
    if not first & 2:
        return (first >> 2) + (data[at + 1] << 6) - 100, at + 2
    if not first & 4:
        return (int.from_bytes(data[at : at + 4], "little") >> 3) - 10_000, at + 4
    size_and_sign, at = integer(data, at + 1)
    end = at + (size_and_sign >> 1)
    if not at <= end <= len(data):
        raise Unreadable(f"broken mypy cache: a number of {size_and_sign} bytes at byte {at:,}")
    return 0, end  # its value says nothing


@dataclass(slots=True, kw_only=True)
class Reader:
    """Reads one value after the other."""

    data: bytes
    budget: Budget
    at: int = 0
    depth: int = 0
    n_values: int = 0
    n_nodes: int = 0

    def value(self) -> Tree:
        """The next value. Raises Unreadable; IndexError or struct.error where the data are cut short."""
        tag = self.data[self.at]
        self.at += 1
        self.n_values += 1
        if self.n_values % _CHECK_EVERY == 0:
            self.budget.check_time()
        read = _READERS.get(tag)
        if read is not None:
            return read(self)
        if tag < MODULE_TAG or tag >= _END_TAG - 1:
            raise Unreadable(f"broken mypy cache: tag {tag} at byte {self.at - 1:,}")
        return self.node(tag)

    def node(self, tag: int) -> Tree:
        """An object of a class, up to its end."""
        self._deeper()
        self.n_nodes += 1
        if self.n_nodes > MAX_NODES:
            raise Unreadable(f"a mypy cache of more than {MAX_NODES:,} objects")
        kind, keys = _FIELDS.get(tag, (f"tag {tag}", ()))
        if tag == _INSTANCE_TAG and (known := self._instance()) is not None:
            self.depth -= 1
            return known
        found: dict[str, Tree] = {".class": kind}
        number = 0
        while self.data[self.at] != _END_TAG:
            key = keys[number] if number < len(keys) else str(number)
            found[key] = self.value()
            number += 1
        self.at += 1
        self.depth -= 1
        return found

    def _instance(self) -> str | None:
        kind = self.data[self.at]
        self.at += 1
        if kind == _SIMPLE_INSTANCE:
            return self.string()
        if kind == _GENERIC_INSTANCE:
            return None
        if kind not in _COMMON_INSTANCES:
            raise Unreadable(f"broken mypy cache: tag {kind} at byte {self.at - 1:,}")
        return _COMMON_INSTANCES[kind]

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("broken mypy cache: nested too deeply")

    def integer(self) -> int:
        value, self.at = integer(self.data, self.at)
        return value

    def size(self) -> int:
        """A count of bytes or of values, each of which takes a byte at least."""
        value = self.integer()
        if not 0 <= value <= len(self.data) - self.at:
            raise Unreadable(f"broken mypy cache: a length of {value:,} before byte {self.at:,}")
        return value

    def raw(self) -> bytes:
        size = self.size()
        self.at += size
        return self.data[self.at - size : self.at]

    def string(self) -> str:
        return self.raw().decode("utf-8", "replace")

    def many(self, read: Callable[[], Tree]) -> list[Tree]:
        """A count, and so many values."""
        self._deeper()
        found = [read() for _ in range(self.size())]
        self.depth -= 1
        return found

    def table(self, key: Callable[[], Tree]) -> dict[str, Tree]:
        """A count, and so many pairs."""
        self._deeper()
        found = {str(key()): self.value() for _ in range(self.size())}
        self.depth -= 1
        return found

    def floats(self, count: int) -> float:
        """So many doubles, of which the first is returned."""
        value: float = struct.unpack_from(f"<{count}d", self.data, self.at)[0]
        self.at += 8 * count
        return value


_READERS: dict[int, Callable[[Reader], Tree]] = {
    0: lambda reader: False,
    1: lambda reader: True,
    2: lambda reader: None,
    3: Reader.integer,
    STRING_TAG: Reader.string,
    5: Reader.raw,
    6: lambda reader: reader.floats(1),
    7: lambda reader: reader.floats(2),
    8: lambda reader: [reader.string(), reader.string()],
    20: lambda reader: reader.many(reader.value),
    _INTEGERS_TAG: lambda reader: reader.many(reader.integer),
    _STRINGS_TAG: lambda reader: reader.many(reader.string),
    23: lambda reader: reader.many(reader.raw),
    24: lambda reader: reader.many(reader.value),
    _TABLE_TAG: lambda reader: reader.table(reader.string),
    31: lambda reader: reader.table(reader.value),
}
