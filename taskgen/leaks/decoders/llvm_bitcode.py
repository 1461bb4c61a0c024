"""LLVM's bitcode: names of functions, names for debuggers and strings, which stand in it without anything between
them, or bit by bit. Record numbers: llvm/Bitcode/LLVMBitCodes.h of LLVM 5 on."""

from __future__ import annotations

from collections.abc import Iterator

from taskgen.leaks.blob import MAX_WHOLE_BYTES, Blob, Unreadable, parsing
from taskgen.leaks.decoders.llvm_bits import Bits, Record, records
from taskgen.leaks.decoders.mangled_names import plain_name
from taskgen.leaks.records import CodeForm, Problem, Symbol

NAME = "llvm bitcode"
RAW_STRINGS = False
_MAGIC, _WRAPPED = b"BC\xc0\xde", b"\xde\xc0\x17\x0b"
_MODULE, _CONSTANTS, _BODY, _METADATA, _STRINGS = 8, 11, 12, 15, 23
_READ = (_MODULE, _CONSTANTS, _BODY, _METADATA, _STRINGS)
_GLOBAL, _FUNCTION, _ALIAS, _INDIRECT = 7, 8, 14, 15
_TEXT, _TEXT_WITH_NUL, _DATA = 8, 9, 22
_OLD_NAME, _NAMES = 1, 35
_MAX_NAME_BYTES = 4096


def matches(head: bytes, name: str) -> bool:
    """The magic, or the magic of the wrapper that Apple's tools put around it."""
    return head.startswith((_MAGIC, _WRAPPED)) and len(head) > 16


def decode(blob: Blob) -> Iterator[Blob | Symbol | Problem]:
    """The functions; then names and strings, a line each."""
    data = blob.read()
    start = int.from_bytes(data[8:12], "little") if data.startswith(_WRAPPED) else 0
    if not data.startswith(_MAGIC, start):
        raise Unreadable("broken bitcode: nothing in the wrapper")
    named: list[tuple[int, int, bool]] = []
    lines: list[bytes] = []
    table = b""
    try:
        with parsing("bitcode"):
            for record in records(data, start + len(_MAGIC), _READ, blob.budget):
                if record.block == _STRINGS:
                    table = record.blob or table
                elif record.block == _MODULE and record.code in (_GLOBAL, _FUNCTION, _ALIAS, _INDIRECT):
                    has_body = record.code == _FUNCTION and record.values[4:5] == [0]
                    named.append((*_first_two(record), has_body))
                else:
                    lines += _texts(record)
    except Unreadable as error:
        yield Problem(reason=f"llvm bitcode: {error}")
    n_bytes = 0
    for at, size, has_body in named:
        name = table[at : at + min(size, _MAX_NAME_BYTES)]
        n_bytes += len(name)
        if n_bytes > MAX_WHOLE_BYTES // 4:
            yield Problem(reason="llvm bitcode: its names are longer than all of it")
            break
        lines.append(name)
        full = plain_name(name.decode("utf-8", "replace").lstrip("\1"))
        lines.append(full.encode())
        if has_body and full:
            yield Symbol(name=full.rpartition(".")[2], qualified_name=full, code=CodeForm.MACHINE)
    yield blob.child("(texts)", b"\n".join(lines) if lines else data)


def _first_two(record: Record) -> tuple[int, int]:
    at, size = (*record.values[:2], 0, 0)[:2]
    return at, size


def _texts(record: Record) -> Iterator[bytes]:
    if record.block == _CONSTANTS and record.code in (_TEXT, _TEXT_WITH_NUL, _DATA):
        if len(record.values) >= 3 and max(record.values) < 256:
            yield bytes(record.values)
    elif record.block == _METADATA and record.code == _NAMES and record.blob:
        count, offset = _first_two(record)
        lengths, at = Bits(record.blob[:offset]), offset
        for _ in range(min(count, len(record.blob))):
            size = lengths.variable(6)
            yield record.blob[at : at + size]
            at += size
    elif record.block == _METADATA and record.code == _OLD_NAME and max(record.values, default=256) < 256:
        yield bytes(record.values)
