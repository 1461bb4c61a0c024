"""What JavaScript and CSS files carry besides their own text: inline source maps, and modules in strings."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

from taskgen.leaks.blob import Blob, parsing
from taskgen.leaks.records import Problem

NAME = "javascript"
RAW_STRINGS = False
_SUFFIXES = (".js", ".mjs", ".cjs", ".jsx", ".css", ".ts", ".mts", ".cts", ".tsx")
_INLINE = re.compile(rb"sourceMappingURL=data:application/json[^,\s]{0,100}?(;base64)?,([^\s*'\"\\]+)")
# A module as one string: what webpack's eval modes and Jest's caches write.
_STRING = re.compile(rb"eval\(\s*(?:\w+(?:\.\w+)*\(\s*)?(\"(?:[^\"\\]|\\.){80,}\"|'(?:[^'\\]|\\.){80,}')", re.S)
_SEARCH = re.compile(
    rb"^(?:Search\.setIndex\(|(?:var |const )?[\w.]+\s*=\s*(?:JSON\.parse\()?)\s*['\"]?(?=[\[{])", re.M
)


def matches(head: bytes, name: str) -> bool:
    """By name: a program has no mark. Caches of transformed files have names like ``module_0a1b2c``."""
    return name.endswith(_SUFFIXES) or head.startswith((b"Search.setIndex(", b"/******/ (", b'"use strict"'))


def decode(blob: Blob) -> Iterator[Blob | Problem]:
    """The maps and the modules; search data as the JSON that they are."""
    data = blob.read()
    for found in _INLINE.finditer(data):
        raw = found.group(2)
        try:
            packed = base64.b64decode(raw + b"==", validate=False) if found.group(1) else unquote_to_bytes(raw)
        except (binascii.Error, ValueError) as error:
            yield Problem(reason=f"javascript: an inline source map is broken: {error}")
            continue
        yield blob.child("(inline).map", packed)
    for number, found in enumerate(_STRING.finditer(data)):
        blob.budget.check_time()
        yield blob.child(f"(module {number}).js", _unescaped(found.group(1)))
    if (begin := _SEARCH.match(data)) and begin.end() < len(data):
        body = data[begin.end() :].rstrip().rstrip(b");'\"\n")
        yield blob.child("(data).json", body)


def _unescaped(literal: bytes) -> bytes:
    text = literal[1:-1].decode("utf-8", "replace")
    if literal[:1] == b"'":
        text = text.replace("\\'", "'").replace('"', '\\"')
    with parsing("javascript string"):
        try:
            return str(json.loads(f'"{text}"', strict=False)).encode("utf-8", "replace")
        except ValueError:
            # Escapes that JSON does not have: \x41, \', \0
            plain = re.sub(r"\\x([0-9a-fA-F]{2})", lambda m: chr(int(m.group(1), 16)), text)
            return re.sub(
                r"\\(.)", lambda m: {"n": "\n", "t": "\t", "r": ""}.get(m.group(1), m.group(1)), plain, flags=re.S
            ).encode("utf-8", "replace")
