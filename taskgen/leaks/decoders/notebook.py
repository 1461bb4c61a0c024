"""Jupyter notebooks and their checkpoints: the cells' sources and outputs as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from taskgen.leaks.blob import Blob, parsing

NAME = "notebook"
RAW_STRINGS = False


def matches(head: bytes, name: str) -> bool:
    """JSON that begins like a notebook; the format's version often stands at the very end."""
    return head.lstrip()[:1] == b"{" and (name.endswith(".ipynb") or (b'"cells"' in head and b'"cell_type"' in head))


def decode(blob: Blob) -> Iterator[Blob]:
    """One text of all sources, and one of each output."""
    data = blob.read()
    with parsing("notebook"):
        notebook = json.loads(data)
    sheets = notebook.get("worksheets") if isinstance(notebook, dict) else None
    holders = [notebook, *(sheets if isinstance(sheets, list) else [])]
    cells = [cell for holder in holders if isinstance(holder, dict) for cell in _list(holder.get("cells"))]
    sources = [_text(cell.get("source", cell.get("input"))) for cell in cells if isinstance(cell, dict)]
    yield blob.child("(sources).py", "\n\n".join(sources).encode("utf-8", "replace"))
    for cell in cells:
        for output in _list(cell.get("outputs")) if isinstance(cell, dict) else []:
            text = "\n".join(_texts(output))
            if text:
                yield blob.child("(output)", text.encode("utf-8", "replace"))


def _list(value: Any) -> list[Any]:  # noqa: ANN401 - any JSON value
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:  # noqa: ANN401
    return "".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict):
            stack += reversed(list(node.values()))
        elif isinstance(node, list):
            if all(isinstance(item, str) for item in node):
                yield "".join(node)
            else:
                stack += reversed(node)
