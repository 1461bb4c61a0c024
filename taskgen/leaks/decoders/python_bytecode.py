"""Compiled Python modules (.pyc) of CPython 2.7 and 3.4 to 3.14."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from taskgen.leaks.blob import Blob, Unreadable, parsing
from taskgen.leaks.decoders.python_marshal import Code, Reader
from taskgen.leaks.records import CodeForm, Symbol

NAME = "python bytecode"
RAW_STRINGS = True
# The first magic number of each version (CPython, Include/internal/pycore_magic_number.h).
_FIRST_MAGIC = (
    (3600, (3, 14)), (3550, (3, 13)), (3500, (3, 12)), (3450, (3, 11)), (3430, (3, 10)), (3420, (3, 9)), (3400, (3, 8)),
    (3390, (3, 7)), (3360, (3, 6)), (3320, (3, 5)), (3250, (3, 4)),
)  # fmt: skip
_LAST_MAGIC = 3700
_PYTHON_2_7 = range(62171, 62212)
_VARARGS, _VARKEYWORDS = 0x04, 0x08
_HAS_DOCSTRING = 0x4000000
_MAX_CONSTANTS = 2000
#: Less bytecode than this does nothing but return.
_TRIVIAL_BYTES = {True: 8, False: 4}


def matches(head: bytes, name: str) -> bool:
    """A magic number that a CPython has, and its mark."""
    return head[2:4] == b"\r\n" and len(head) >= 8 and _version(head) is not None


def _version(head: bytes) -> tuple[int, int] | None:
    magic = int.from_bytes(head[:2], "little")
    if magic in _PYTHON_2_7:
        return (2, 7)
    if magic >= _LAST_MAGIC:
        return None
    return next((version for first, version in _FIRST_MAGIC if magic >= first), None)


def decode(blob: Blob) -> Iterator[Symbol]:
    """Each code object: modules, classes, functions, lambdas and comprehensions."""
    version = _version(blob.head)
    if version is None:
        raise Unreadable("broken python bytecode: an unknown magic number")
    header = 16 if version >= (3, 7) else 12 if version >= (3, 3) else 8
    data = blob.read()
    with parsing("python bytecode", struct.error):
        found = Reader(data=data, version=version, at=header).value()
    if not isinstance(found, Code):
        raise Unreadable("broken python bytecode: it holds no code")
    yield from _symbols(found, version, data)


def _symbols(module: Code, version: tuple[int, int], data: bytes) -> Iterator[Symbol]:
    seen: set[int] = set()
    stack: list[tuple[Code, str, bytes]] = [(module, "", data)]
    while stack:
        code, owner, payload = stack.pop()
        if id(code) in seen:
            continue
        seen.add(id(code))
        qualified = code.qualified_name.replace("<locals>.", "") or (f"{owner}.{code.name}" if owner else code.name)
        yield _symbol(code, qualified, version, payload)
        inner = "" if code is module else qualified
        stack += [(c, inner, b"") for c in code.constants if isinstance(c, Code)]


def _symbol(code: Code, qualified: str, version: tuple[int, int], payload: bytes) -> Symbol:
    n_named = code.n_arguments + code.n_keyword_only
    n_all = n_named + bool(code.flags & _VARARGS) + bool(code.flags & _VARKEYWORDS)
    parameters = list(code.variables[:n_named])
    if code.flags & _VARARGS:
        parameters[code.n_arguments : code.n_arguments] = code.variables[n_named : n_named + 1]
    parameters += code.variables[len(parameters) : n_all]
    first = code.constants[0] if code.constants else None
    has_doc = isinstance(first, str) and (
        version < (3, 13) or bool(code.flags & _HAS_DOCSTRING) or code.name == "<module>"
    )
    constants, keywords = _flat(code.constants[1:] if has_doc and version >= (3, 13) else code.constants)
    does_something = code.size_bytes > _TRIVIAL_BYTES[version >= (3, 11)]
    is_function = bool(code.flags & 0x2)
    return Symbol(
        name=code.name,
        qualified_name=qualified,
        parameters=tuple(parameters) if is_function else None,
        docstring=first if has_doc and isinstance(first, str) else "",
        constants=constants,
        identifiers=frozenset((*code.names, *code.variables, *code.closure, *keywords)),
        code=CodeForm.BYTECODE if does_something else None,
        payload=payload,
    )


def _flat(constants: tuple[Any, ...]) -> tuple[tuple[str, ...], list[str]]:
    """Constants as text, those in tuples too; and the words among them that may be names of keyword arguments."""
    found: list[str] = []
    stack = list(reversed(constants))
    while stack and len(found) < _MAX_CONSTANTS:
        value = stack.pop()
        if isinstance(value, tuple):
            stack += reversed(value[:_MAX_CONSTANTS])
        elif isinstance(value, bytes):
            found.append(value.decode("utf-8", "replace"))
        elif isinstance(value, str):
            found.append(value)
        elif isinstance(value, (int, float, complex)) and not isinstance(value, bool):
            found.append(_number(value))
    return tuple(found), [text for text in found if text.isidentifier()]


def _number(value: int | float | complex) -> str:
    # Turning a huge number into decimal text takes quadratic time, and Python refuses it.
    return repr(value) if not isinstance(value, int) or value.bit_length() < 2000 else hex(value)
