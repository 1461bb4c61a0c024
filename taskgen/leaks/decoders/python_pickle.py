"""Pickles, read as opcodes and never loaded: their strings, and the source lines that jedi and parso keep in them."""

from __future__ import annotations

import pickletools
from collections.abc import Iterator

from taskgen.leaks.blob import Blob, Unreadable, parsing
from taskgen.leaks.records import CodeForm, Problem, Symbol

NAME = "pickle"
RAW_STRINGS = False
_SUFFIXES = (".pkl", ".pickle", ".p", ".doctree", ".joblib")
_TEXTS = frozenset({
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "GLOBAL", "INST",
})  # fmt: skip
#: From this length on a string may be a file of its own.
_LONG_CHARS = 200
_JOINED_CHARS = 4 << 20
_MAX_STRINGS = 500


def matches(head: bytes, name: str) -> bool:
    """Protocols from 2 on begin with their number, and most with a frame; older ones have no mark but the name."""
    if head[:1] == b"\x80" and len(head) > 2 and head[1] in (2, 3, 4, 5):
        return head[1] < 4 or head[2:3] in b"\x95\x8c\x8e\x8d\x88\x89N}]()KJMGCB"
    return name.endswith(_SUFFIXES) and head[:1] in b"(cd]l}SVIFLN" and bool(head)


def decode(blob: Blob) -> Iterator[Blob | Problem | Symbol]:
    """All strings in order, a line each (a list of source lines becomes the source again); long ones by themselves."""
    data = blob.read()
    joined: list[str] = []
    size = 0
    code = _Code()
    opcodes = pickletools.genops(data)
    while True:
        try:
            with parsing("pickle"):
                opcode, argument, _ = next(opcodes, (None, None, None))
        except Unreadable as error:
            yield Problem(reason=f"pickle: {error}")
            break
        if opcode is None:
            break
        if opcode.name not in _TEXTS or not isinstance(argument, (str, bytes, bytearray)):
            continue
        text = argument if isinstance(argument, str) else bytes(argument).decode("utf-8", "replace")
        yield from code.take(text)
        if len(argument) >= _LONG_CHARS:
            raw = argument.encode("utf-8", "replace") if isinstance(argument, str) else bytes(argument)
            yield blob.child("(string)", raw)
        joined.append(text if text.endswith("\n") else text + "\n")
        size += len(text)
        blob.budget.check_time()
        if size > _JOINED_CHARS:
            yield blob.child("(strings)", "".join(joined).encode("utf-8", "replace"))
            joined, size = [], 0
    yield from code.symbols()
    if joined:
        yield blob.child("(strings)", "".join(joined).encode("utf-8", "replace"))


class _Code:
    """Code objects among the strings: what follows the name of their type, up to the next one's. Of the strings, one
    is the function's name; which one depends on the version, so each that could be is taken for it."""

    def __init__(self) -> None:
        self._strings: list[str] | None = None

    def take(self, text: str) -> Iterator[Symbol]:
        """Look at the next string of the pickle."""
        if text in ("CodeType", "code", "_make_function", "types CodeType"):
            yield from self.symbols()
            self._strings = []
        elif self._strings is not None and len(self._strings) < _MAX_STRINGS:
            self._strings.append(text)

    def symbols(self) -> Iterator[Symbol]:
        """The code object that was being read, under each of its possible names."""
        strings = self._strings or []
        self._strings = None
        names = [text for text in dict.fromkeys(strings) if text.isidentifier()]
        for name in names if len(strings) > 2 else ():
            yield Symbol(
                name=name, identifiers=frozenset(names), constants=tuple(strings[:200]), code=CodeForm.BYTECODE
            )
