"""From a file to all that is readable in it: decoders are chosen by content and applied to what they yield."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from taskgen.leaks.blob import Blob, Unreadable
from taskgen.leaks.decoder import Decoder
from taskgen.leaks.decoders.table import DECODERS
from taskgen.leaks.records import Problem, Symbol

#: Text is looked at in pieces of this size, which overlap so that nothing is cut in two.
WINDOW_BYTES = 8 << 20
OVERLAP_BYTES = 64 << 10
#: In the reason of a Problem that should not be: the decoder raised something else than Unreadable.
DECODER_FAULT = "fault of the decoder, please report it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A piece of a blob's own bytes."""

    data: bytes
    is_binary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something readable, and where: ``trail`` is the way of names to it, ``formats`` the decoders that were passed."""

    trail: tuple[str, ...]
    formats: tuple[str, ...]
    content: Text | Symbol | Problem


def decoder_for(blob: Blob) -> Decoder | None:
    """The first decoder of the table whose format the blob has."""
    name = blob.name
    return next((decoder for decoder in DECODERS if decoder.matches(blob.head, name)), None)


def unfold(blob: Blob, is_wanted: Callable[[bytes], bool]) -> Iterator[Item]:
    """Everything readable in a blob, nested blobs included. What cannot be read comes as a Problem.

    Args:
        is_wanted: whether bytes hold anything that is looked for; it spares the decoding of formats whose strings
            stand as they are.
    """
    return _unfold(blob, (), is_wanted)


def _unfold(blob: Blob, formats: tuple[str, ...], is_wanted: Callable[[bytes], bool]) -> Iterator[Item]:
    decoder = decoder_for(blob)
    is_binary = b"\0" in blob.head
    wanted = False
    if decoder is None or decoder.RAW_STRINGS or not is_binary:
        for piece in windows(blob):
            if is_wanted(piece):
                wanted = True
                yield Item(trail=blob.trail, formats=formats, content=Text(data=piece, is_binary=is_binary))
    if decoder is not None and (wanted or not decoder.RAW_STRINGS):
        yield from _decoded(blob, decoder, (*formats, decoder.NAME), is_wanted)


def _decoded(
    blob: Blob, decoder: Decoder, formats: tuple[str, ...], is_wanted: Callable[[bytes], bool]
) -> Iterator[Item]:
    try:
        for found in decoder.decode(blob):
            if isinstance(found, Blob):
                yield from _unfold(found, formats, is_wanted)
            else:
                yield Item(trail=blob.trail, formats=formats, content=found)
    except Unreadable as error:
        yield Item(trail=blob.trail, formats=formats, content=Problem(reason=f"{decoder.NAME}: {error}"))
    except Exception as error:  # hostile bytes found a fault of ours: one file is unreadable, and the audit goes on
        reason = f"{decoder.NAME}: {DECODER_FAULT}: {type(error).__name__}: {error}"
        yield Item(trail=blob.trail, formats=formats, content=Problem(reason=reason))


def windows(blob: Blob) -> Iterator[bytes]:
    """The bytes of a blob in overlapping pieces; holes of sparse files are passed over."""
    if blob.size_bytes <= WINDOW_BYTES:
        with blob.open() as stream:
            yield stream.read(WINDOW_BYTES)
        return
    offset = 0
    with blob.open() as stream:
        descriptor = _descriptor(stream)
        while (start := _next_data(descriptor, offset)) < blob.size_bytes:
            if descriptor is None:
                stream.seek(start)
                data = stream.read(WINDOW_BYTES)
            else:
                data = os.pread(descriptor, WINDOW_BYTES, start)
            yield data
            if len(data) < WINDOW_BYTES:
                return
            offset = start + len(data) - OVERLAP_BYTES
            blob.budget.check_time()


def _descriptor(stream: IO[bytes]) -> int | None:
    try:
        return stream.fileno()
    except (OSError, AttributeError):
        return None


def _next_data(descriptor: int | None, offset: int) -> int:
    """The first offset from ``offset`` on that is not in a hole of a sparse file; 2**63 if only a hole is left."""
    if descriptor is None:
        return offset
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        return 1 << 63 if error.errno == errno.ENXIO else offset  # EINVAL: this file system knows no holes
