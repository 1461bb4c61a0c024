"""Files through the decoders and the matcher: in parallel where they lie on disk, and once per content."""

from __future__ import annotations

import multiprocessing
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from taskgen.leaks import code
from taskgen.leaks.audit_cache import CleanFiles
from taskgen.leaks.blob import Blob, Budget, Limits, Unreadable
from taskgen.leaks.decoding import Item, unfold
from taskgen.leaks.matching import Match, Matcher
from taskgen.leaks.query import Query
from taskgen.leaks.records import Problem, Symbol

#: Files that a worker takes at a time.
BATCH = 64
#: With fewer bytes than this a second process is not worth its start.
_SERIAL_BYTES = 8 << 20
#: A source file that is read for renamed copies even where nothing else hints at one.
_THOROUGH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A match, where it is, and what its place was decoded by."""

    trail: tuple[str, ...]
    formats: tuple[str, ...]
    match: Match

    def at(self, fingerprint: int) -> Hit:
        """The same hit, of a fingerprint that has another number."""
        return replace(self, match=replace(self.match, fingerprint=fingerprint))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that could not be read, and why."""

    trail: tuple[str, ...]
    reason: str


@dataclass(slots=True, kw_only=True)
class Scan:
    """What a scan found. ``n_bytes`` are those of the files, as they lie there."""

    hits: list[Hit] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    n_files: int = 0
    n_bytes: int = 0

    def below(self, folder: str) -> Scan:
        """The same with all paths below a folder."""
        return Scan(
            hits=[replace(hit, trail=(f"{folder}/{hit.trail[0]}", *hit.trail[1:])) for hit in self.hits],
            faults=[replace(fault, trail=(f"{folder}/{fault.trail[0]}", *fault.trail[1:])) for fault in self.faults],
            n_files=self.n_files,
            n_bytes=self.n_bytes,
        )

    def add(self, other: Scan) -> None:
        """Take up the result of a part."""
        self.hits += other.hits
        self.faults += other.faults
        self.n_files += other.n_files
        self.n_bytes += other.n_bytes


class Scanner:
    """Scans one blob after another."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.matcher = Matcher(query.fingerprints, query.known, sparing=query.sparing)
        self._languages = {code.family_of(f.path) for f in query.fingerprints} - {""}

    def scan(self, blobs: Iterable[Blob]) -> Scan:
        """Everything found in some blobs."""
        result = Scan()
        for blob in blobs:
            self.scan_blob(blob, result)
        return result

    def scan_blob(self, blob: Blob, result: Scan) -> None:
        """Add what one blob gives away to ``result``."""
        result.n_files += 1
        result.n_bytes += blob.size_bytes
        is_source = self.query.thorough and code.family_of(blob.name) in self._languages
        is_thorough = is_source and blob.size_bytes <= _THOROUGH_BYTES
        best: dict[tuple[tuple[str, ...], int], Hit] = {}
        try:
            for item in unfold(blob, lambda data: is_thorough or bool(self.matcher.hits(data))):
                self._take(item, best, result, is_thorough=is_thorough)
        except Unreadable as error:
            result.faults.append(Fault(trail=blob.trail, reason=str(error)))
        except OSError as error:
            result.faults.append(Fault(trail=blob.trail, reason=f"cannot be read: {error.strerror or error}"))
        result.hits += best.values()

    def _take(
        self, item: Item, best: dict[tuple[tuple[str, ...], int], Hit], result: Scan, *, is_thorough: bool
    ) -> None:
        content = item.content
        if isinstance(content, Problem):
            result.faults.append(Fault(trail=item.trail, reason=content.reason))
            return
        if isinstance(content, Symbol):
            matches: Iterable[Match] = self.matcher.match_symbol(content)
        else:
            thorough = not content.is_binary and (
                is_thorough if len(item.trail) == 1 else code.family_of(item.trail[-1]) in self._languages
            )
            matches = self.matcher.match_text(content.data, thorough=thorough)
        for match in matches:
            key = (item.trail, match.fingerprint)
            if key not in best or match.level > best[key].match.level:
                best[key] = Hit(trail=item.trail, formats=item.formats, match=match)


# --- Files on disk -------------------------------------------------------------------------------


def disk_blob(root: Path, path: str, limits: Limits) -> Blob:
    """A regular file as a blob. Raises Unreadable for what is none, and OSError."""
    place = root / path
    status = place.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable(f"not a regular file but {_kind(status.st_mode)}")

    def opened() -> IO[bytes]:
        # No link is followed, and a FIFO that took the file's place does not block.
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        return os.fdopen(descriptor, "rb")

    return Blob((path,), status.st_size, opened, Budget(limits=limits, packed_bytes=status.st_size))


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"), (stat.S_ISBLK, "a device"))
    return next((name for test, name in kinds if test(mode)), "a device" if stat.S_ISCHR(mode) else "something else")


def scan_files(root: Path, paths: Sequence[str], query: Query, *, jobs: int, cache: Path | None = None) -> Scan:
    """Scan files below ``root``. A file that kills its worker is a fault, and costs no other file.

    Args:
        cache: folder in which to keep which files hold nothing, so that the next scan with the same query only looks
            at their times and sizes.
    """
    if not query.fingerprints:
        return Scan(n_files=len(paths))
    if cache is None:
        return _scan_all(root, paths, query, jobs=jobs)
    memory = CleanFiles(cache, query, root)
    known = memory.unchanged(paths)
    result = _scan_all(root, [path for path in paths if path not in known], query, jobs=jobs)
    guilty = {trail[0] for trail in (*(h.trail for h in result.hits), *(f.trail for f in result.faults))}
    memory.keep(path for path in paths if path not in guilty)
    result.n_files += len(known)
    result.n_bytes += sum(known.values())
    return result


def _scan_all(root: Path, paths: Sequence[str], query: Query, *, jobs: int) -> Scan:
    if jobs <= 1 or _total_bytes(root, paths) < _SERIAL_BYTES:
        return _scan_batch(Scanner(query), root, paths)
    result = Scan()
    for part in _in_parallel(root, _batches(paths), query, jobs):
        result.add(part)
    result.hits.sort(key=lambda hit: (hit.trail, hit.match.fingerprint))
    result.faults.sort(key=lambda fault: fault.trail)
    return result


def _total_bytes(root: Path, paths: Iterable[str]) -> int:
    total = 0
    for path in paths:
        try:
            total += os.lstat(root / path).st_size
        except OSError:
            continue  # it is met again when it is read
    return total


def _batches(paths: Sequence[str]) -> list[Sequence[str]]:
    return [paths[start : start + BATCH] for start in range(0, len(paths), BATCH)]


def _in_parallel(root: Path, batches: Sequence[Sequence[str]], query: Query, jobs: int) -> Iterator[Scan]:
    # Threads may be running, so nothing is forked.
    context = multiprocessing.get_context("spawn")
    left = list(batches)
    while left:
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(query, root)) as pool:
            futures = [(batch, pool.submit(_work, batch)) for batch in left]
            lost = []
            for batch, future in futures:
                try:
                    yield future.result()
                except BrokenProcessPool:
                    lost.append(batch)
        if lost and all(len(batch) == 1 for batch in lost) and len(lost) == len(left):
            # One at a time, each in its own pool, so that only the guilty one is lost.
            for batch in lost:
                yield from _alone(root, batch, query, context)
            return
        left = [[path] for batch in lost for path in batch]


def _alone(
    root: Path, batch: Sequence[str], query: Query, context: multiprocessing.context.SpawnContext
) -> Iterator[Scan]:
    with ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(query, root)) as pool:
        try:
            yield pool.submit(_work, batch).result()
        except BrokenProcessPool:
            yield Scan(faults=[Fault(trail=(batch[0],), reason="the decoder died of it")], n_files=1)


_scanner: Scanner | None = None
_root = Path()


def _begin(query: Query, root: Path) -> None:
    global _scanner, _root
    _scanner, _root = Scanner(query), root


def _work(batch: Sequence[str]) -> Scan:
    assert _scanner is not None
    return _scan_batch(_scanner, _root, batch)


def _scan_batch(scanner: Scanner, root: Path, paths: Iterable[str]) -> Scan:
    result = Scan()
    for path in paths:
        try:
            blob = disk_blob(root, path, scanner.query.limits)
        except (Unreadable, OSError) as error:
            reason = str(error) if isinstance(error, Unreadable) else f"cannot be read: {error.strerror or error}"
            result.faults.append(Fault(trail=(path,), reason=reason))
            result.n_files += 1
            continue
        scanner.scan_blob(blob, result)
        if _changed(root / path, blob.size_bytes):
            result.faults.append(Fault(trail=(path,), reason="it changed while it was read"))
    return result


def _changed(place: Path, size_bytes: int) -> bool:
    try:
        return place.lstat().st_size != size_bytes
    except OSError:
        return True
