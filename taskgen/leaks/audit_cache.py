"""Which files of a folder hold nothing of what a query looks for, kept between scans."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import zstandard

from taskgen.atomic import replacing_file
from taskgen.leaks.query import Query

_MAX_BYTES = 256 << 20


class CleanFiles:
    """The files of one folder that were clean for one query, each known by its inode, size and times.

    The time of an inode's last change cannot be set back by whoever writes the file.
    """

    def __init__(self, cache: Path, query: Query, root: Path) -> None:
        name = hashlib.sha256(f"{query.digest()} {root}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
        self._file, self._root = cache / f"{name}.json.zst", root
        self._now: dict[str, list[int]] = {}

    def unchanged(self, paths: Iterable[str]) -> dict[str, int]:
        """Those of the files that were clean and have not changed, with their sizes in bytes."""
        before = self._read()
        known = {}
        for path in paths:
            try:
                status = os.lstat(self._root / path)
            except OSError:
                continue
            mark = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            self._now[path] = mark
            if before.get(path) == mark:
                known[path] = status.st_size
        return known

    def keep(self, clean: Iterable[str]) -> None:
        """Keep these files as clean, as they were when ``unchanged`` looked."""
        marks = {path: self._now[path] for path in clean if path in self._now}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(self._file) as scratch:
            scratch.write_bytes(zstandard.compress(json.dumps(marks).encode(), 1))

    def _read(self) -> dict[str, list[int]]:
        try:
            data = zstandard.ZstdDecompressor().decompress(self._file.read_bytes(), max_output_size=_MAX_BYTES)
            return dict(json.loads(data))
        except (OSError, ValueError, zstandard.ZstdError):
            return {}  # not kept, or broken: then everything is read
