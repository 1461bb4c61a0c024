"""Sphinx's objects.inv: the names that a documentation defines."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from taskgen.leaks.blob import MAX_WHOLE_BYTES, Blob, Unreadable, parsing
from taskgen.leaks.records import Symbol

NAME = "sphinx inventory"
RAW_STRINGS = False


def matches(head: bytes, name: str) -> bool:
    """The first line."""
    return head.startswith(b"# Sphinx inventory version ")


def decode(blob: Blob) -> Iterator[Symbol | Blob]:
    """A symbol for each line; version 1 is plain text, version 2 is compressed behind four lines."""
    data = blob.read()
    body = data
    if data.startswith(b"# Sphinx inventory version 2"):
        parts = data.split(b"\n", 4)
        if len(parts) < 5:
            raise Unreadable("broken sphinx inventory: it has no body")
        with parsing("sphinx inventory"):
            body = zlib.decompressobj().decompress(parts[4], MAX_WHOLE_BYTES)
    yield blob.child("(names)", body)
    for line in body.decode("utf-8", "replace").splitlines():
        blob.budget.check_time()
        full = line.split(" ", 1)[0]
        if full and not full.startswith("#"):
            yield Symbol(name=full.rpartition(".")[2], qualified_name=full)
