"""XML with escaped or quoted text: reports, IDE files. Entities that a document defines are never expanded."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from taskgen.leaks.blob import Blob

NAME = "xml"
RAW_STRINGS = False
_TAG = re.compile(r"<!\[CDATA\[(.*?)\]\]>|<!--.*?-->|<[^>]*>", re.S)
_ATTRIBUTE = re.compile(r"=\s*(?:\"([^\"]*)\"|'([^']*)')")


def matches(head: bytes, name: str) -> bool:
    """An XML declaration, or an element at the very beginning of a file called so."""
    start = head.lstrip()[:6]
    return start.startswith(b"<?xml") or (start[:1] == b"<" and name.endswith((".xml", ".iml", ".svg")))


def decode(blob: Blob) -> Iterator[Blob]:
    """The text between the tags and in attributes; nothing where the plain bytes hide nothing."""
    data = blob.read()
    if b"&" not in data and b"CDATA" not in data:
        return
    text = data.decode("utf-8", "replace")
    values = (first or second for first, second in _ATTRIBUTE.findall(text))
    shown = [html.unescape(value) for value in values if "&" in value]
    shown.append(html.unescape(_TAG.sub(lambda found: found.group(1) or "\n", text)))
    yield blob.child("(text).txt", "\n".join(shown).encode("utf-8", "replace"))
