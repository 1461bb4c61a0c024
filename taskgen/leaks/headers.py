"""Headers of definitions in plain text of any language: is this the deleted one's?"""

from __future__ import annotations

import re

from taskgen.leaks.fingerprints import Fingerprint

MAX_PARAMETERS_BYTES = 2000
_MAX_PLACES = 200
_BEFORE = re.compile(rb"(?:\b(?:def|function|fn|func|sub|async|class)|::|\bpy:function:|\bpy:method:)\s*\*?$")
_TYPED = re.compile(rb"[\w>\]*&]\s+[*&]?$")
_AFTER = re.compile(rb"\s*(?:\{|->|:|=>|throws\b|$|\[source\]|\xc2\xb6)")
_ENDS = re.compile(rb"\s*(?:;|$|throws\b)")
_DOTTED = re.compile(rb"\s*(?:[A-Za-z_]\w*\.)+")
_TYPES_FIRST = (".java", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp")
_WORD = re.compile(rb"[A-Za-z_$][\w$]*")
_RECEIVERS = (b"self", b"cls", b"this", b"void")
_NOT_TYPES = frozenset((b"return", b"await", b"yield", b"new", b"in", b"not", b"and", b"or", b"else", b"if", b"assert"))


def defines(data: bytes, wanted: Fingerprint, start: int) -> bytes | None:
    """The header in ``data`` (from ``start`` on) that gives the wanted definition's name and parameters, or None.

    A mere call does not count, even with the same names: a header stands behind a word that defines, before a body,
    or spells defaults or types just as the deleted one did.
    """
    if wanted.parameters is None:
        return None
    name = wanted.name.encode()
    pattern = re.compile(rb"(?<![\w$])" + re.escape(name) + rb"\s*(?:=\s*(?:async\s*)?)?\(")
    for number, found in enumerate(pattern.finditer(data, max(0, start - 1))):
        if number >= _MAX_PLACES:
            return None
        end = _closing(data, found.end())
        if end is None:
            continue
        inside = data[found.end() : end]
        if _is_header(data, found.start(), end, inside, wanted) and _wanted_names(wanted) in _names(inside):
            return data[found.start() : end + 1]
    return None


def _closing(data: bytes, start: int) -> int | None:
    depth = 1
    for offset, byte in enumerate(data[start : start + MAX_PARAMETERS_BYTES]):
        if byte in b"([{":
            depth += 1
        elif byte in b")]}":
            depth -= 1
            if not depth:
                return start + offset
    return None


def _is_header(data: bytes, start: int, end: int, inside: bytes, wanted: Fingerprint) -> bool:
    line = data[max(0, start - 80) : start].rpartition(b"\n")[2]
    if _BEFORE.search(line):
        return True
    after = data[end + 1 : end + 80].partition(b"\n")[0]
    words = _WORD.findall(line)
    typed = bool(_TYPED.search(line)) and bool(words) and words[-1] not in _NOT_TYPES
    if (typed or not line.strip()) and _AFTER.match(after) and (b"{" in after or b":" in after or b"->" in after):
        return True
    if typed and wanted.path.endswith(_TYPES_FIRST) and _ENDS.match(after):
        return True  # a page about it, a declaration
    if _DOTTED.fullmatch(line) and (b":" in inside or b"=" in inside):
        return True  # a manual's entry: module.name(a: int, b=1)
    spelt = re.sub(rb"\s+", b"", wanted.header.encode())
    given = b"(" + re.sub(rb"\s+", b"", inside) + b")"
    return any(mark in inside for mark in (b"=", b":")) and given in spelt


def _wanted_names(wanted: Fingerprint) -> list[bytes]:
    return [name.encode() for name in wanted.parameters or () if name not in ("self", "cls", "this")]


def _names(inside: bytes) -> tuple[list[bytes], list[bytes]]:
    """The parameters' names, read in both ways: the first word of each (``a: int``, ``a int``), and the last
    (``final int a``)."""
    first, last = [], []
    for part in _split(inside):
        bare = part.partition(b"=")[0]
        words = _WORD.findall(bare.partition(b":")[0] if b":" in bare else bare)
        if words and words[-1] not in _RECEIVERS:
            first.append(words[0] if b":" not in bare else words[-1])
            last.append(words[-1])
    return first, last


def _split(inside: bytes) -> list[bytes]:
    parts, depth, first = [], 0, 0
    for offset, byte in enumerate(inside):
        if byte in b"([{<":
            depth += 1
        elif byte in b")]}>":
            depth -= 1
        elif byte == 44 and depth <= 0:
            parts.append(inside[first:offset])
            first = offset + 1
    return [*parts, inside[first:]]
