"""Text in UTF-16 or UTF-32."""

from __future__ import annotations

from collections.abc import Iterator

from taskgen.leaks.blob import Blob

NAME = "utf-16"
RAW_STRINGS = False
_MARKS = ((b"\xff\xfe\0\0", "utf-32"), (b"\0\0\xfe\xff", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def _encoding(head: bytes) -> str | None:
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    part = head[:512]
    if len(part) < 16 or b"\0\0" in part:
        return None
    for first, encoding in ((0, "utf-16-be"), (1, "utf-16-le")):
        if not part[first::2].strip(b"\0") and part[1 - first :: 2].isascii():
            return encoding
    return None


def matches(head: bytes, name: str) -> bool:
    """A byte order mark, or every second byte zero and the others plain."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    return b"\0" in head[:16] and _encoding(head) is not None


def decode(blob: Blob) -> Iterator[Blob]:
    """The same in UTF-8."""
    text = blob.read().decode(_encoding(blob.head) or "utf-16", "replace")
    yield blob.child(blob.name, text.encode("utf-8", "replace"))
