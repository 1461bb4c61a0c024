"""Zip and what is zip under another name: wheel, jar, egg, jmod, apk."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator

from taskgen.leaks.blob import Blob, Unreadable, parsing
from taskgen.leaks.records import Problem

NAME = "zip"
RAW_STRINGS = False
_ENCRYPTED = 0x1
_END = b"PK\x05\x06"


def matches(head: bytes, name: str) -> bool:
    """Zip files begin with a member, or with the end of the directory if empty. Programs may stand in front of one
    (zipapps): these are known by their first line."""
    return head.startswith((b"PK\x03\x04", _END, b"JM\x01\x00PK")) or (head.startswith(b"#!") and b"PK\x03\x04" in head)


def decode(blob: Blob) -> Iterator[Blob | Problem]:
    """Every member, those that share a name included."""
    with blob.open() as stream:
        with parsing("zip file", zipfile.BadZipFile):
            archive = zipfile.ZipFile(stream)
        for info in archive.infolist():
            if not info.filename.endswith("/"):
                yield _member(blob, archive, info)
        if archive.comment:
            yield blob.child("(comment)", archive.comment)


def _member(blob: Blob, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Blob | Problem:
    if info.flag_bits & _ENCRYPTED:
        return Problem(reason=f"zip: {info.filename!r} is encrypted")
    spent = blob.budget.unpacked_bytes
    try:
        with parsing(f"member {info.filename!r}", zipfile.BadZipFile, struct.error), archive.open(info) as content:
            return blob.child(info.filename, content)
    except Unreadable as error:
        if blob.budget.unpacked_bytes - spent > blob.budget.limits.free_bytes or "nested" in str(error):
            raise
        blob.budget.check_time()
        return Problem(reason=f"zip: {error}")
