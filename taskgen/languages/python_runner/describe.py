"""Describes a value so that two implementations can be compared by text: no addresses, no private names.

What is compared is what a caller can see. Iterators are read out; an object is its type and those attributes whose
names stand in code that both implementations share; numbers are compared by value; order counts where it does for
``==``.
"""

from __future__ import annotations

import itertools
import math
import re
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_DEPTH, MAX_ITEMS, MAX_NODES, MAX_TEXT = 7, 200, 3000, 4000
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|0x[0-9a-f]{6,}")
_PLAIN_MODULES = ("datetime", "decimal", "fractions", "pathlib", "uuid", "ipaddress", "re", "zoneinfo", "enum", "array")


class Describer:
    """``visible``: names of attributes that the solution did not choose itself. ``opaque``: classes it wrote."""

    def __init__(self, visible: frozenset[str], workspace_modules: Callable[[str], bool]) -> None:
        self.visible = visible
        self.is_own = workspace_modules
        self.nodes = 0
        self.above: list[int] = []
        self.shown: set[str] = set()

    def describe(self, value: Any) -> str:
        self.nodes = 0
        self.above = []
        return self._text(value, 0)[:MAX_TEXT]

    def _text(self, value: Any, depth: int) -> str:
        self.nodes += 1
        if depth > MAX_DEPTH or self.nodes > MAX_NODES:
            return "..."
        if id(value) in self.above:
            return "cycle"
        self.above.append(id(value))
        try:
            return self._kind(value, depth)
        except RecursionError:
            return "too deep"
        finally:
            self.above.pop()

    def _kind(self, value: Any, depth: int) -> str:
        kind = type(value)
        if value is None or kind in (bool, str, bytes, bytearray) or value is NotImplemented or value is Ellipsis:
            return f"{kind.__name__}:{value!r}"
        if kind in (int, float, complex):
            return number(value)
        name = public_name(kind)
        if isinstance(value, (str, bytes, int, float)):
            base = next(b for b in (str, bytes, int, float) if isinstance(value, b))
            return f"{name}({base.__repr__(value) if base is not float else number(float(value))})"
        if isinstance(value, type):
            return f"class:{public_name(value)}"
        if isinstance(value, types.ModuleType):
            return f"module:{value.__name__}"
        if isinstance(value, BaseException):
            return f"exception:{name}"
        if isinstance(value, (list, tuple, deque)):
            return f"{name}[{self._join(iter(value), depth)}]{self._attributes(value, depth)}"
        if isinstance(value, (set, frozenset)):
            return (
                f"{name}{{{', '.join(sorted(self._text(v, depth + 1) for v in itertools.islice(value, MAX_ITEMS)))}}}"
            )
        if isinstance(value, dict) or (isinstance(value, Mapping) and self._is_sized(value)):
            return f"{name}{{{self._pairs(value, depth)}}}{self._attributes(value, depth)}"
        if isinstance(value, Iterator):
            return f"iterator[{self._read_out(value, depth)}]"
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
            return "callable"
        return self._object(value, kind, name, depth)

    @staticmethod
    def _is_sized(value: Any) -> bool:
        return hasattr(type(value), "__len__")

    def _join(self, items: Iterator[Any], depth: int) -> str:
        return ", ".join(self._text(item, depth + 1) for item in itertools.islice(items, MAX_ITEMS))

    def _pairs(self, value: Any, depth: int) -> str:
        pairs = [
            f"{self._text(k, depth + 1)}: {self._text(v, depth + 1)}"
            for k, v in itertools.islice(value.items(), MAX_ITEMS)
        ]
        return ", ".join(pairs if type(value).__name__ == "OrderedDict" else sorted(pairs))

    def _read_out(self, value: Iterator[Any], depth: int) -> str:
        found = []
        for _ in range(MAX_ITEMS):
            try:
                found.append(self._text(next(value), depth + 1))
            except StopIteration:
                break
            except Exception as error:
                found.append(f"raises {public_name(type(error))}")
                break
        else:
            found.append("...")
        return ", ".join(found)

    def _object(self, value: Any, kind: type, name: str, depth: int) -> str:
        module = getattr(kind, "__module__", "")
        if module.split(".")[0] in _PLAIN_MODULES or kind in (range, slice):
            return f"{name}:{_ADDRESS.sub('', repr(value))}"
        if self.is_own(module):
            return f"{name}{self._attributes(value, depth)}"
        if getattr(kind, "__repr__", None) is not object.__repr__:
            return f"{name}:{_ADDRESS.sub('', repr(value))}"
        return name

    def _attributes(self, value: Any, depth: int) -> str:
        """The state of an object of the project, as far as others know its names."""
        if not self.is_own(getattr(type(value), "__module__", "")):
            return ""
        found = dict(getattr(value, "__dict__", {}))
        for base in type(value).__mro__:
            slots = base.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, slot):
                    found.setdefault(slot, getattr(value, slot))
        shown = sorted(key for key in found if isinstance(key, str) and key in self.visible)
        self.shown.update(shown)
        return "(" + ", ".join(f"{key}={self._text(found[key], depth + 1)}" for key in shown) + ")"


def number(value: Any) -> str:
    """Numbers that are equal read alike; floats to 12 digits."""
    if isinstance(value, complex):
        return f"complex:{number(value.real)},{number(value.imag)}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"number:{value!r}"
        if value.is_integer() and abs(value) < 1e15:
            return f"number:{int(value)}"
        return f"number:{value:.12g}"
    return f"number:{value}"


def public_name(kind: type) -> str:
    """A type's name; for one that a solution may name as it likes (private, local) that of its nearest public base."""
    for base in kind.__mro__:
        name = str(getattr(base, "__qualname__", base.__name__))
        if "<locals>" not in name and not any(part.startswith("_") for part in name.split(".")):
            return name
    return "object"
