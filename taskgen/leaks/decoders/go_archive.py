"""What Go's compiler writes for a package: the members of its archives, which begin with ``go object``.

One holds what other packages need to know, the other machine code. In both all strings stand in one piece, without
anything between them, so they are given apart. Layout: internal/pkgbits and cmd/internal/goobj of Go 1.20 on.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from taskgen.leaks.blob import MAX_WHOLE_BYTES, Blob, Unreadable, parsing
from taskgen.leaks.decoders.mangled_names import go_name
from taskgen.leaks.records import CodeForm, Problem, Symbol

NAME = "go package"
RAW_STRINGS = False
_MAGIC = b"go object "
_EXPORT, _OBJECT = b"\n$$B\nu", re.compile(rb"\0go1\d\dld")
_SECTIONS = 10
#: Blocks of an object: four tables of symbols that it defines, one of those that it refers to, and further names.
_BLOCKS, _DEFINED, _REFERRED, _NAMED = 19, range(3, 7), 7, 17
#: length and place of the name, and what kind it is
_ENTRY, _NAMED_ENTRY = struct.Struct("<IIxxB10x"), struct.Struct("<8xII0s")
_FUNCTION = 1
_RUN = re.compile(rb"[\x20-\x7e\x80-\xf4]{3,}")
_MAX_STRINGS = 1 << 20
_MAX_NAME_BYTES = 1 << 14


def matches(head: bytes, name: str) -> bool:
    """The first words."""
    return head.startswith(_MAGIC)


def decode(blob: Blob) -> Iterator[Blob | Symbol | Problem]:
    """The strings, a line each, and the functions."""
    data = blob.read()
    export, found = data.find(_EXPORT), _OBJECT.search(data)
    if export >= 0:
        try:
            with parsing("export data", struct.error):
                strings = _strings(data, export + len(_EXPORT))
        except Unreadable as error:
            yield Problem(reason=f"go package: {error}")
        else:
            yield blob.child("(strings)", b"\n".join(strings))
    if found:
        try:
            with parsing("object", struct.error):
                symbols = list(_symbols(blob, data, found.start()))
        except Unreadable as error:
            yield Problem(reason=f"go package: {error}")
        else:
            yield blob.child("(names)", "\n".join(dict.fromkeys(name for name, _ in symbols)).encode())
            for name, is_function in symbols:
                if is_function and (full := go_name(name)):
                    yield Symbol(name=full.rpartition(".")[2], qualified_name=full, code=CodeForm.MACHINE)
    # it begins with a line's end so as not to look like the whole once more
    yield blob.child("(text)", b"\n".join((b"", *_RUN.findall(data))))


def _strings(data: bytes, at: int) -> list[bytes]:
    """The first of the sections, whose elements are given by where each ends."""
    version = struct.unpack_from("<I", data, at)[0]
    if version > 100:
        raise Unreadable(f"export data of version {version}")
    at += 8 if version else 4
    ends = struct.unpack_from(f"<{_SECTIONS}I", data, at)
    at += 4 * _SECTIONS
    count, total = ends[0], ends[-1]
    if not count <= total or count > _MAX_STRINGS or 4 * total > len(data):
        raise Unreadable("broken export data: more elements than it has room for")
    begin = at + 4 * total
    found, last = [], 0
    for end in struct.unpack_from(f"<{count}I", data, at):
        if not last <= end <= len(data) - begin:
            raise Unreadable("broken export data: a string is cut short")
        found.append(data[begin + last : begin + end])
        last = end
    return found


def _symbols(blob: Blob, data: bytes, start: int) -> Iterator[tuple[str, bool]]:
    """The names in the tables of an object, and which are functions that it defines. Its offsets count from its own
    begin."""
    n_bytes = 0
    places = struct.unpack_from(f"<{_BLOCKS}I", data, start + 20)
    for block in (*_DEFINED, _REFERRED, _NAMED):
        blob.budget.check_time()
        layout = _NAMED_ENTRY if block == _NAMED else _ENTRY
        first, last = places[block], places[block + 1]
        if not first <= last <= len(data) - start:
            raise Unreadable("broken object: its tables are not inside it")
        table = memoryview(data)[start + first : start + last]
        for size, at, kind in layout.iter_unpack(table[: len(table) // layout.size * layout.size]):
            raw = data[start + at : start + at + min(size, _MAX_NAME_BYTES)]
            n_bytes += len(raw)
            if n_bytes > MAX_WHOLE_BYTES:
                raise Unreadable("broken object: its names are longer than all of it")
            yield raw.decode("utf-8", "replace"), block in _DEFINED and kind == _FUNCTION
