"""Jupyter notebooks and their checkpoints: the cells' sources, outputs and whatever else is kept with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from taskgen.leaks.blob import Blob, Unreadable, parsing

NAME = "notebook"
RAW_STRINGS = False
MAX_BYTES = 32 << 20
#: A list or an object takes up to some 250 bytes of memory, and but three of the data.
MAX_NODES = 2_000_000
#: From this length on a text may be a file of its own: a page, a picture.
_LONG_CHARS = 200
_SOURCES = ("source", "input")  # the second one until version 3


def matches(head: bytes, name: str) -> bool:
    """JSON that begins like a notebook, or is called so: the format's version often stands at the very end."""
    if head.lstrip()[:1] != b"{":
        return False
    return name.endswith(".ipynb") or (b'"cell_type"' in head and (b'"cells"' in head or b'"worksheets"' in head))


def decode(blob: Blob) -> Iterator[Blob]:
    """One text of all sources, in order; all other texts, long ones by themselves."""
    data = blob.read(MAX_BYTES)
    if data.count(b"[") + data.count(b"{") > MAX_NODES:
        raise Unreadable(f"a notebook of more than {MAX_NODES:,} values")
    with parsing("notebook"):
        # Python reads bytes in UTF-8, -16 and -32; bad ones in strings must not hide the rest.
        text = data.decode(json.detect_encoding(data), "replace")
        notebook = json.loads(text)
    sources: list[str] = []
    others: list[str] = []
    for key, found in _texts(notebook):
        if key in _SOURCES:
            sources.append(found)
        elif len(found) >= _LONG_CHARS:
            yield blob.child(f"({key})", found.encode("utf-8", "replace"))
        else:
            others.append(found)
        blob.budget.check_time()
    yield blob.child("(sources).py", "\n\n".join(sources).encode("utf-8", "replace"))
    if others:
        yield blob.child("(texts)", "\n".join(others).encode("utf-8", "replace"))


def _texts(notebook: object) -> Iterator[tuple[str, str]]:
    """Every text with the key that it stands under; a list of lines is one text."""
    stack: list[tuple[str, Any]] = [("", notebook)]
    while stack:
        key, node = stack.pop()
        if isinstance(node, str):
            yield key, node
        elif isinstance(node, dict):
            stack += reversed(node.items())
        elif isinstance(node, list):
            if all(isinstance(item, str) for item in node):
                has_ends = all(item.endswith("\n") for item in node[:-1])
                yield key, ("" if has_ends else "\n").join(node)
            else:
                stack += [(key, item) for item in reversed(node)]
