"""Compiled Python modules (.pyc) of CPython 2.3 to 3.15, and marshalled code without a header.

Other interpreters write the same container, with numbers of their own: their files are unreadable, and said to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from taskgen.leaks.blob import Blob, Unreadable, parsing
from taskgen.leaks.decoders.python_marshal import Code, Reader
from taskgen.leaks.records import CodeForm, Symbol

NAME = "python bytecode"
RAW_STRINGS = True
#: Values take up to some twenty times their bytes in memory.
MAX_BYTES = 16 << 20
Version = tuple[int, int]
# The first magic number of each version (CPython, Include/internal/pycore_magic_number.h).
_FIRST_MAGIC: tuple[tuple[int, Version], ...] = (
    (3650, (3, 15)), (3600, (3, 14)), (3550, (3, 13)), (3500, (3, 12)), (3450, (3, 11)), (3430, (3, 10)),
    (3420, (3, 9)), (3400, (3, 8)), (3390, (3, 7)), (3360, (3, 6)), (3320, (3, 5)), (3250, (3, 4)), (3190, (3, 3)),
    (3000, (3, 0)),
)  # fmt: skip
_LAST_MAGIC = 3700
_PYTHON_2 = range(62011, 62212)
_HEADER_BYTES = (8, 12, 16)
#: Of a header since 3.7: dated, hashed, hashed and checked.
_FLAGS = (b"\0\0\0\0", b"\1\0\0\0", b"\3\0\0\0")
#: Where the bytecode's own tag stands in marshalled code, and which layouts have it there, the likeliest first.
_BARE: dict[int, tuple[Version, ...]] = {21: ((3, 12), (3, 7)), 25: ((3, 10),), 17: ((2, 7),)}
_OPTIMISED, _VARARGS, _VARKEYWORDS = 0x01 | 0x02, 0x04, 0x08
_HAS_DOCSTRING = 0x4000000
#: No more bytecode than this: it does nothing but return.
_TRIVIAL_BYTES, _TRIVIAL_BYTES_311 = 4, 8
_CHECK_EVERY = 256
_LONG_BITS = 4096
#: Codes may share constants; looking at more of them than this, a byte of the file, is a bomb.
_STEPS_A_BYTE = 4
_NO_HEADER = b"\0" * 16


def matches(head: bytes, name: str) -> bool:
    """A magic number and its mark; or the tag of code, small numbers, and the tag of bytes behind them."""
    if head[2:4] == b"\r\n":
        return b"\0" in head[4:20] and (_version(head) is not None or _is_foreign(head))
    return head[:1] in (b"\xe3", b"c") and bool(_bare_versions(head))


def _version(head: bytes) -> Version | None:
    magic = int.from_bytes(head[:2], "little")
    if magic in _PYTHON_2:
        return (2, 7)
    if magic >= _LAST_MAGIC:
        return None
    return next((version for first, version in _FIRST_MAGIC if magic >= first), None)


def _is_foreign(head: bytes) -> bool:
    """Whether an unknown magic number is followed by a header's flags, or by code, all the same."""
    return head[4:8] in _FLAGS or any(
        head[size : size + 1] in (b"\xe3", b"c") and _bare_versions(head[size:]) for size in _HEADER_BYTES
    )


def _bare_versions(head: bytes) -> tuple[Version, ...]:
    """The layouts that marshalled code may have, by its first numbers (arguments, stack, flags)."""
    if head[2:5] != b"\0\0\0" or head[6:9] != b"\0\0\0":
        return ()
    return next((v for at, v in _BARE.items() if head[at : at + 1] in (b"s", b"\xf3")), ())


def _header_bytes(version: Version) -> int:
    return 16 if version >= (3, 7) else 12 if version >= (3, 3) else 8


def decode(blob: Blob) -> Iterator[Symbol | Blob]:
    """Each code object: modules, classes, functions, lambdas and comprehensions; and what stands behind the module."""
    data = blob.read(MAX_BYTES)
    if blob.head[2:4] != b"\r\n":
        yield from _bare(blob, data)
        return
    version = _version(blob.head)
    if version is None:
        raise Unreadable("not bytecode of CPython: another interpreter's magic number (PyPy, GraalPy)")
    module, rest = _module(blob, data, version, _header_bytes(version))
    yield from code_symbols(blob, [module], version, n_bytes=len(data), payload=data)
    if rest:
        yield blob.child("(rest)", rest)


def _bare(blob: Blob, data: bytes) -> Iterator[Symbol | Blob]:
    fault: Unreadable | None = None
    for version in _bare_versions(data[:32]):
        try:
            module, rest = _module(blob, data, version, 0)
        except Unreadable as error:
            fault = fault or error
            continue
        payload = _NO_HEADER + data
        yield from code_symbols(blob, [module], version, n_bytes=len(data), payload=payload)
        if rest:
            yield blob.child("(rest)", rest)
        return
    raise fault or Unreadable("broken python bytecode: no known layout")


def _module(blob: Blob, data: bytes, version: Version, start: int) -> tuple[Code, bytes]:
    """The code that begins at a byte, and the bytes behind it."""
    reader = Reader(data=data, version=version, at=start, budget=blob.budget)
    with parsing("python bytecode"):
        found = reader.value()
    if not isinstance(found, Code):
        raise Unreadable("broken python bytecode: it holds no code")
    return found, data[reader.at :]


def code_symbols(
    blob: Blob, roots: Sequence[Code], version: Version, *, n_bytes: int, payload: bytes = b""
) -> Iterator[Symbol]:
    """Symbols of code objects and of those among their constants. ``payload``: of the first root. ``n_bytes``: of all
    the data, which bounds the work."""
    steps_left = [_STEPS_A_BYTE * n_bytes]
    seen: set[int] = set()
    stack: list[tuple[Code, str]] = [(root, "") for root in reversed(roots)]
    while stack:
        code, owner = stack.pop()
        if id(code) in seen:
            continue  # shared code, which only a made-up file has
        seen.add(id(code))
        if len(seen) % _CHECK_EVERY == 0:
            blob.budget.check_time()
        qualified = code.qualified_name.replace("<locals>.", "") or (f"{owner}.{code.name}" if owner else code.name)
        constants, inner = _flat(code.constants, steps_left)
        yield _symbol(code, qualified, version, constants, payload=payload if code is roots[0] else b"")
        stack += [(c, "" if code.name == "<module>" else qualified) for c in inner]


def _flat(constants: tuple[Any, ...], steps_left: list[int]) -> tuple[list[Any], list[Code]]:
    """Texts and numbers, those inside of tuples too, and codes. Each tuple is entered once: it can be shared a million
    times. ``steps_left`` bounds the same across the codes of a file."""
    found: list[Any] = []
    codes: list[Code] = []
    entered: set[int] = set()
    stack: list[Any] = [constants]
    while stack:
        value = stack.pop()
        if type(value) is tuple:
            steps_left[0] -= len(value)
            if steps_left[0] < 0:
                raise Unreadable("broken python bytecode: its codes refer to more constants than it holds")
            if id(value) not in entered:
                entered.add(id(value))
                stack += value[::-1]
        elif isinstance(value, Code):
            codes.append(value)
        elif isinstance(value, (str, bytes, int, float, complex)) and not isinstance(value, bool):
            found.append(value)
    return found, codes


def _symbol(code: Code, qualified: str, version: Version, constants: list[Any], *, payload: bytes) -> Symbol:
    docstring = _docstring(code, version)
    texts = [_text(value) for value in constants]
    is_function = code.flags & _OPTIMISED == _OPTIMISED
    return Symbol(
        name=code.name,
        qualified_name=qualified,
        parameters=_parameters(code) if is_function else None,
        docstring=docstring,
        constants=tuple(texts),
        # Newer versions keep the names of keyword arguments among the constants.
        identifiers=frozenset([*code.names, *code.variables, *code.closure, *filter(str.isidentifier, texts)]),
        code=CodeForm.BYTECODE if _does_something(code, version) else None,
        payload=payload,
    )


def _does_something(code: Code, version: Version) -> bool:
    return code.size_bytes > (_TRIVIAL_BYTES_311 if version >= (3, 11) else _TRIVIAL_BYTES)


def _parameters(code: Code) -> tuple[str, ...]:
    n_named = code.n_arguments + code.n_keyword_only
    named, rest = list(code.variables[:n_named]), list(code.variables[n_named : n_named + 2])
    if code.flags & _VARARGS and rest:
        named.insert(code.n_arguments, rest.pop(0))
    if code.flags & _VARKEYWORDS and rest:
        named.append(rest.pop(0))
    return tuple(named)


def _docstring(code: Code, version: Version) -> str:
    """A function's first constant, since 3.14 if a flag says so; a module's, if it is kept as __doc__; a class's stands
    behind its qualified name."""
    texts = code.constants
    if code.flags & _OPTIMISED == _OPTIMISED:
        if code.name.startswith("<") or (version >= (3, 14) and not code.flags & _HAS_DOCSTRING):
            return ""
        first = texts[0] if texts else None
    elif "__doc__" not in code.names:
        return ""
    else:
        is_class = "__module__" in code.names and code.name != "<module>" and version >= (3, 3)
        first = next((t for t in texts[is_class:] if isinstance(t, (str, bytes))), None)
    if isinstance(first, bytes) and version < (3, 0):
        return _text(first)
    return first if isinstance(first, str) else ""


def _text(value: str | bytes | int | float | complex) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    # Python refuses to write long numbers as decimals, since that takes quadratic time.
    return hex(value) if isinstance(value, int) and value.bit_length() > _LONG_BITS else repr(value)
