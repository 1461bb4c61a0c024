"""Patches: both sides of each file as text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from taskgen.leaks.blob import Blob

NAME = "diff"
RAW_STRINGS = True
_BEGIN = re.compile(rb"(?:^|\n)(?:diff --git |Index: |--- [^\n]+\n\+\+\+ |\*\*\* [^\n]+\n--- |@@ -\d)")
_FILE = re.compile(rb"^(?:diff --git .*|Index: .*|--- (?!\d).*)$", re.M)


def matches(head: bytes, name: str) -> bool:
    """The lines that begin a file's part, near the beginning; mails have headers before them."""
    return (b"@@ -" in head or b"diff --git" in head or b"***" in head) and _BEGIN.search(head) is not None


def decode(blob: Blob) -> Iterator[Blob]:
    """The old and the new side of all hunks."""
    sides: dict[str, list[bytes]] = {"old": [], "new": []}
    for line in blob.read().split(b"\n"):
        mark, rest = line[:1], line[1:]
        if line.startswith((b"--- ", b"+++ ", b"diff ", b"Index: ", b"@@ ", b"index ")):
            continue
        if mark in b"-<" and mark:
            sides["old"].append(rest)
        elif mark in b"+>!" and mark:
            sides["new"].append(rest)
        else:
            sides["old"].append(rest)
            sides["new"].append(rest)
    for side, lines in sides.items():
        if lines:
            yield blob.child(f"({side} side)", b"\n".join(lines))
