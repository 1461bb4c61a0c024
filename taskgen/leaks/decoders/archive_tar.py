"""Tar in all its dialects, read from front to back."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

from taskgen.leaks.blob import CHUNK_BYTES, Blob, Unreadable, parsing
from taskgen.leaks.records import Problem

NAME = "tar"
RAW_STRINGS = False
_MAGIC_AT = 257
_BLOCK = 512


def matches(head: bytes, name: str) -> bool:
    """The magic of POSIX and GNU; the oldest dialect has none, but its checksum must be right."""
    if head[_MAGIC_AT : _MAGIC_AT + 5] == b"ustar":
        return True
    return name.endswith(".tar") and len(head) >= _BLOCK and _checksum_is_right(head[:_BLOCK])


def _checksum_is_right(block: bytes) -> bool:
    try:
        wanted = int(block[148:156].strip(b" \0") or b"x", 8)
    except ValueError:
        return False
    return wanted == sum(block[:148]) + 8 * 32 + sum(block[156:])


def decode(blob: Blob) -> Iterator[Blob | Problem]:
    """Every regular member. Links and devices have no content of their own."""
    with blob.open() as stream:
        with parsing("tar file", tarfile.TarError):
            archive = tarfile.open(fileobj=stream, mode="r:", errors="surrogateescape")  # noqa: SIM115 - over blob.open()
        while True:
            try:
                with parsing("tar file", tarfile.TarError):
                    info = archive.next()
            except Unreadable as error:
                yield Problem(reason=f"tar: {error}")
                return
            if info is None:
                break
            # tarfile remembers all of them, of which there may be millions.
            archive.members = []  # type: ignore[attr-defined]
            blob.budget.check_time()
            if info.isreg() and (found := _member(blob, archive, info)) is not None:
                yield found
        yield from _behind(blob, archive.offset)


def _member(blob: Blob, archive: tarfile.TarFile, info: tarfile.TarInfo) -> Blob | Problem | None:
    with parsing("tar file", tarfile.TarError):
        content = archive.extractfile(info)
        if content is None:
            return None
        child = blob.child(info.name, content)
    if child.size_bytes != info.size:
        return Problem(reason=f"tar: {info.name!r} is cut short")
    return child


def _behind(blob: Blob, offset: int) -> Iterator[Blob | Problem]:
    """What is behind the end: zeros, as it should be; a broken header; or something else, such as another tar."""
    with blob.open() as stream:
        stream.seek(offset)
        at = offset
        while data := stream.read(CHUNK_BYTES):
            blob.budget.check_time()
            if rest := data.lstrip(b"\0"):
                at += len(data) - len(rest)
                break
            at += len(data)
        else:
            return
        if at < offset + _BLOCK:
            yield Problem(reason=f"tar: broken at byte {offset:,}; what is behind it was not read")
        else:
            stream.seek(at - at % _BLOCK)
            yield blob.child("(behind the end)", stream)
