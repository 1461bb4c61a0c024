"""The seam of the decoders: what each module in ``leaks.decoders`` has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from taskgen.leaks.blob import Blob
from taskgen.leaks.records import Problem, Symbol


class Decoder(Protocol):
    """A format.

    Attributes:
        NAME: the format's name, for findings.
        RAW_STRINGS: every string that ``decode`` would yield stands as it is (UTF-8) in the blob's own bytes. Such a
            blob is decoded only if its bytes hold something that is looked for.
    """

    NAME: str
    RAW_STRINGS: bool

    def matches(self, head: bytes, name: str) -> bool:
        """Whether these first bytes are of this format. ``name`` (the last part of the path) may only decide between
        formats that have no mark of their own."""
        ...

    def decode(self, blob: Blob) -> Iterator[Blob | Symbol | Problem]:
        """What is inside: blobs made with ``blob.child`` (decoded in turn), definitions, and parts that are broken.

        It never runs, imports or unpickles what it reads, holds at most MAX_WHOLE_BYTES of it, and calls
        ``blob.budget.check_time()`` in loops that unpack nothing.

        Raises:
            Unreadable: it is broken from the start, or beyond the budget. Nothing else, whatever the bytes.
        """
        ...
