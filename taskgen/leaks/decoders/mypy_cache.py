"""mypy's caches: the binary format of mypy 2 (rows of its SQLite shards, or files), and the older JSON.

Binary layout: a tag, then fields; strings and lists carry their length. Functions are found by their tag, wherever they
stand, so that a new version's fields around them do no harm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from taskgen.leaks.blob import Blob, parsing
from taskgen.leaks.records import Symbol

NAME = "mypy cache"
RAW_STRINGS = False
_FUNCTION, _VARIABLE, _CLASS = 0x34, 0x36, 0x3C
_STRING, _LIST, _NONE, _INTEGERS = 0x04, 0x14, 0x02, 0x15
_NAMED = re.compile(rb"[\x34\x36\x3c]\x04")
_QUALIFIED = re.compile(rb"\x04[\x00-\xff]{1,4}?([\w.<>]+\.[\w<>@]+)")
_TYPES = re.compile(rb"[PQRS][^\x00-\x1f]?((?:[A-Za-z_]\w*\.)+\w+)")
_JSON = re.compile(rb'\{\s*"\.class":\s*"MypyFile"')
_MAX_LIST = 1000


def matches(head: bytes, name: str) -> bool:
    """By the names that mypy gives, since the binary format has no mark; JSON by its first key."""
    return name.endswith((".data.ff", ".meta.ff")) or _JSON.match(head[:64]) is not None


def decode(blob: Blob) -> Iterator[Symbol | Blob]:
    """Functions with their parameters and types; classes and variables by name."""
    data = blob.read()
    if _JSON.match(data[:64]):
        with parsing("mypy cache"):
            tree = json.loads(data)
        yield from _from_json(blob, tree)
        return
    places = [found.start() for found in _NAMED.finditer(data)]
    for start, end in pairwise([*places, len(data)]):
        blob.budget.check_time()
        if symbol := _binary(data, start, end):
            yield symbol
    yield blob.child("(names)", re.sub(rb"[\x00-\x1f]+", b"\n", data))


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """A bare integer and where it ends: one, two or four bytes, told apart by the lowest bits."""
    first = data[at]
    if not first & 1:
        return (first >> 1) - 10, at + 1
    if not first & 2:
        return (int.from_bytes(data[at : at + 2], "little") >> 2) - 100, at + 2
    return (int.from_bytes(data[at : at + 4], "little") >> 3) - 10000, at + 4


def _string(data: bytes, at: int) -> tuple[str, int]:
    """A tagged string. Raises ValueError or IndexError where there is none."""
    if data[at] != _STRING:
        raise ValueError("no string")
    length, at = _integer(data, at + 1)
    if not 0 <= length <= len(data) - at:
        raise ValueError("no length")
    return data[at : at + length].decode("utf-8"), at + length


def _binary(data: bytes, start: int, end: int) -> Symbol | None:
    try:
        name, at = _string(data, start + 1)
    except (ValueError, IndexError):
        return None
    if not name or not name.replace("<", "").replace(">", "").isidentifier():
        return None
    part = data[at : end + 4096]
    qualified = _qualified(part, name)
    if data[start] != _FUNCTION:
        return Symbol(name=name, qualified_name=qualified[0])
    parameters = _parameters(part, qualified[1])
    types = [found.decode("utf-8", "replace") for found in _TYPES.findall(part[: qualified[1]])]
    shown = f"def {name}({', '.join(parameters or ())})" + (f"  # types: {', '.join(types)}" if types else "")
    return Symbol(name=name, qualified_name=qualified[0], parameters=parameters, signature=shown)


def _qualified(part: bytes, name: str) -> tuple[str, int]:
    """The full name behind a short one, and where it ends; ('', 0) if there is none."""
    wanted = b"." + name.encode()
    at = part.find(wanted)
    while at >= 0:
        begin = at
        while begin > 0 and (chr(part[begin - 1]).isalnum() or part[begin - 1] in b"_.<>@-"):
            begin -= 1
        # The length before the text may look like a letter, too: the right beginning states the right length.
        for start in range(begin, at + 1):
            for width in (1, 2, 4):
                try:
                    text, stop = _string(part, start - width - 1)
                except (ValueError, IndexError):
                    continue
                if start - width - 1 >= 0 and text.endswith("." + name):
                    return text, stop
        at = part.find(wanted, at + 1)
    return "", 0


def _parameters(part: bytes, start: int) -> tuple[str, ...] | None:
    """The first list of strings (or nothings) from ``start`` on that a list of integers follows."""
    at = part.find(_LIST, start)
    while 0 <= at < start + 256:
        try:
            count, place = _integer(part, at + 1)
            names = []
            if not 0 <= count <= _MAX_LIST:
                raise ValueError("no length")
            for _ in range(count):
                if part[place] == _NONE:
                    names.append("_")
                    place += 1
                else:
                    text, place = _string(part, place)
                    names.append(text)
            if part[place] == _INTEGERS:
                return tuple(names)
        except (ValueError, IndexError):
            pass
        at = part.find(_LIST, at + 1)
    return None


def _from_json(blob: Blob, tree: Any) -> Iterator[Symbol]:  # noqa: ANN401 - any JSON value
    stack = [tree]
    while stack:
        blob.budget.check_time()
        node = stack.pop()
        if isinstance(node, dict):
            stack += node.values()
            if isinstance(node.get("name"), str) and node.get(".class") in ("FuncDef", "Var", "TypeInfo", "Decorator"):
                yield _json_symbol(node)
        elif isinstance(node, list):
            stack += node


def _json_symbol(node: dict[str, Any]) -> Symbol:
    names = node.get("arg_names")
    parameters = tuple(str(n) for n in names) if isinstance(names, list) else None
    kind = node.get("type")
    types = kind.get("arg_types") if isinstance(kind, dict) else None
    returned = kind.get("ret_type") if isinstance(kind, dict) else None
    shown = f"def {node['name']}({', '.join(parameters)}): {types} -> {returned}" if parameters is not None else ""
    full = node.get("fullname")
    return Symbol(
        name=node["name"],
        qualified_name=full if isinstance(full, str) else "",
        parameters=parameters,
        signature=shown[:1000],
    )
