"""JSON: source maps, coverage and search data, and whatever else holds text in escaped strings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from taskgen.leaks.blob import Blob, Unreadable, parsing
from taskgen.leaks.records import Problem

NAME = "json"
RAW_STRINGS = False
#: A string of this length, or of several lines, may be a file of its own.
_LONG_CHARS = 80
_JOINED_CHARS = 4 << 20


def matches(head: bytes, name: str) -> bool:
    """An object or a list that holds an escape: without one the plain text says everything."""
    start = head.lstrip()[:2]
    if start[:1] not in (b"{", b"["):
        return False
    return name.endswith((".json", ".map", ".jsonl", ".ndjson")) or (
        (b'"' in start or start[1:2] in b'"{[ \n\r\t') and b'":' in head and b"\\" in head
    )


def decode(blob: Blob) -> Iterator[Blob | Problem]:
    """Long strings by themselves, named by their keys; short ones together, a line each."""
    data = blob.read()
    if b"\\" not in data and b"sourcesContent" not in data:
        return
    try:
        with parsing("json"):
            documents = [json.loads(data)]
    except Unreadable as error:
        documents = _lines(data)
        if not documents:
            # Programs of many languages begin with a brace, too; the plain text of them is read anyway.
            if blob.name.endswith((".json", ".map")):
                yield Problem(reason=f"json: {error}")
            return
    for document in documents:
        yield from _strings(blob, document)


def _lines(data: bytes) -> list[Any]:
    found = []
    for line in data.splitlines():
        if not line.strip():
            continue
        try:
            with parsing("json"):
                found.append(json.loads(line))
        except Unreadable:
            return []
    return found


def _strings(blob: Blob, document: Any) -> Iterator[Blob]:  # noqa: ANN401 - any JSON value
    names = document.get("sources") if isinstance(document, dict) else None
    stack: list[tuple[str, Any]] = [("", document)]
    short: list[str] = []
    size = 0
    while stack:
        blob.budget.check_time()
        key, node = stack.pop()
        if isinstance(node, dict):
            stack += [(f"{key}.{name}"[-200:], value) for name, value in reversed(node.items())]
            short += node.keys()
        elif isinstance(node, list):
            labels = names if key == ".sourcesContent" and isinstance(names, list) else ()
            stack += [
                (str(labels[n])[-200:] if n < len(labels) else key, value)
                for n, value in reversed(list(enumerate(node)))
            ]
        elif isinstance(node, str):
            if len(node) >= _LONG_CHARS or "\n" in node:
                yield blob.child(key or "(string)", node.encode("utf-8", "replace"))
            else:
                short.append(node)
                size += len(node)
        if size > _JOINED_CHARS:
            yield blob.child("(strings)", "\n".join(short).encode("utf-8", "replace"))
            short, size = [], 0
    if short:
        yield blob.child("(strings)", "\n".join(short).encode("utf-8", "replace"))
