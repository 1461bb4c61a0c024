"""Archives: ``tar`` and ``tar.zst`` whose bytes depend on the files alone, and unpacking of hostile ones."""

from __future__ import annotations

import io
import stat
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import zstandard

from taskgen import safepath
from taskgen.atomic import disk_faults
from taskgen.errors import FormatError

ZSTD_LEVEL = 12
#: The time of every member, 2000-01-01 UTC: build backends refuse to zip files from before 1980.
MTIME_S = 946_684_800
MAX_UNPACKED_BYTES = 2 << 30
MAX_MEMBERS = 500_000
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveEntry:
    """A file or, where ``link_target`` is set, a symbolic link."""

    path: str
    content: bytes = b""
    executable: bool = False
    link_target: str | None = None


def entries_of(directory: Path, paths: Iterable[str] | None = None) -> list[ArchiveEntry]:
    """The files and links of a folder (or those at ``paths`` below it); no link is followed.

    Raises:
        FormatError: there is a device, a pipe or a socket.
        FileNotFoundError: one of ``paths`` is not there.
    """
    if paths is None:
        paths = safepath.walk_files(directory)
    return [_entry(directory, path) for path in sorted(set(paths))]


def _entry(directory: Path, path: str) -> ArchiveEntry:
    place = directory / path
    mode = place.lstat().st_mode
    if stat.S_ISLNK(mode):
        return ArchiveEntry(path=path, link_target=safepath.link_target(place))
    if not stat.S_ISREG(mode):
        raise FormatError(f"{place} is neither a file nor a link")
    return ArchiveEntry(path=path, content=place.read_bytes(), executable=bool(mode & stat.S_IXUSR))


def pack(source: Path | Iterable[ArchiveEntry]) -> bytes:
    """A tar of a folder or of entries: sorted by name, fixed time, owner 0, modes 0644 and 0755.

    Raises:
        FormatError: a path or a link is not safe, or a path is there twice.
    """
    entries = entries_of(source) if isinstance(source, Path) else sorted(source, key=lambda e: e.path)
    buffer = io.BytesIO()
    previous = None
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for entry in entries:
            if problem := safepath.path_problem(entry.path):
                raise FormatError(f"cannot pack {entry.path!r}: {problem}")
            if entry.path == previous:
                raise FormatError(f"cannot pack {entry.path!r}: it is there twice")
            previous = entry.path
            info = tarfile.TarInfo(entry.path)
            info.mode = 0o755 if entry.executable else 0o644
            info.mtime = MTIME_S
            if entry.link_target is None:
                info.size = len(entry.content)
                tar.addfile(info, io.BytesIO(entry.content))
                continue
            if problem := safepath.link_problem(entry.path, entry.link_target):
                raise FormatError(f"cannot pack {entry.path!r} -> {entry.link_target!r}: {problem}")
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link_target, 0o777
            tar.addfile(info)
    return buffer.getvalue()


def compress(data: bytes) -> bytes:
    """Zstandard at a fixed level, in one thread, with content size and checksum: fixed bytes."""
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, threads=0, write_content_size=True, write_checksum=True).compress(
        data
    )


def decompress(data: bytes, *, max_bytes: int = MAX_UNPACKED_BYTES) -> bytes:
    """Undo ``compress``, whatever the frame says about its own size.

    Raises:
        FormatError: the data are broken or cut short, or hold more than ``max_bytes``.
    """
    engine = zstandard.ZstdDecompressor().decompressobj()
    out = bytearray()
    try:
        # Small steps, since one step's output is bounded only by its input.
        for start in range(0, len(data), 4096):
            out += engine.decompress(data[start : start + 4096])
            if len(out) > max_bytes:
                raise FormatError(f"the archive unpacks to more than {max_bytes} bytes")
            if engine.eof:
                break
    except zstandard.ZstdError as error:
        raise FormatError(f"the archive is broken: {error}") from error
    if not engine.eof:
        raise FormatError("the archive is cut short")
    if engine.unused_data or start + 4096 < len(data):
        raise FormatError("there are bytes behind the archive's end")
    return bytes(out)


def pack_zst(source: Path | Iterable[ArchiveEntry]) -> bytes:
    """``compress(pack(source))``: the bytes of a ``.tar.zst``."""
    return compress(pack(source))


def _read(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(info)
    content = b"" if stream is None else stream.read()
    if len(content) != info.size:
        raise FormatError(f"the archive is cut short in {info.name!r}")
    return content


def read_entries(data: bytes, *, max_bytes: int = MAX_UNPACKED_BYTES) -> list[ArchiveEntry]:
    """The checked entries of a ``.tar`` or ``.tar.zst``; folders are left out.

    Raises:
        FormatError: the archive is broken or too big; a path is absolute, holds ``..`` or ``.git``, or
            is there twice; a link leads out; it holds a hard link, a device or a pipe.
    """
    if data.startswith(_ZSTD_MAGIC):
        data = decompress(data, max_bytes=max_bytes)
    entries: dict[str, ArchiveEntry] = {}
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8") as tar:
            for number, info in enumerate(tar):
                total += info.size
                if total > max_bytes or number >= MAX_MEMBERS:
                    raise FormatError(f"the archive unpacks to more than {max_bytes} bytes or {MAX_MEMBERS} files")
                entry = _checked(tar, info)
                if entry is None:
                    continue
                if entry.path in entries:
                    raise FormatError(f"the archive holds {entry.path!r} twice")
                entries[entry.path] = entry
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise FormatError(f"the archive is broken: {error}") from error
    return list(entries.values())


def _checked(tar: tarfile.TarFile, info: tarfile.TarInfo) -> ArchiveEntry | None:
    path = info.name.removeprefix("./")
    if info.isdir() and path in ("", "."):
        return None
    if problem := safepath.path_problem(path.rstrip("/") if info.isdir() else path):
        raise FormatError(f"unsafe path in the archive, {info.name!r}: {problem}")
    if info.isdir():
        return None
    if info.issym():
        if problem := safepath.link_problem(path, info.linkname):
            raise FormatError(f"unsafe link in the archive, {path!r} -> {info.linkname!r}: {problem}")
        return ArchiveEntry(path=path, link_target=info.linkname)
    if not info.isreg() or info.issparse():
        raise FormatError(f"{path!r} in the archive is not a plain file (type {info.type!r})")
    return ArchiveEntry(path=path, content=_read(tar, info), executable=bool(info.mode & 0o100))


def write_entries(entries: Iterable[ArchiveEntry], into: Path, *, overwrite: bool = False) -> None:
    """Write entries below a folder; links come last, so that no file is written through one."""
    ordered = sorted(entries, key=lambda entry: (entry.link_target is not None, entry.path))
    for entry in ordered:
        if entry.link_target is None:
            safepath.write_file(into, entry.path, entry.content, executable=entry.executable, overwrite=overwrite)
        else:
            safepath.write_link(into, entry.path, entry.link_target, overwrite=overwrite)


def unpack(data: bytes, into: Path, *, overwrite: bool = False, max_bytes: int = MAX_UNPACKED_BYTES) -> list[str]:
    """Unpack a ``.tar`` or ``.tar.zst`` below a folder (made if need be); returns the paths written.

    All is checked before the first byte is written. With ``overwrite`` files and links that are there
    are replaced; without it that is an error.

    Raises:
        FormatError: as ``read_entries``; or something is in the way below ``into``.
        StoreError: the disk is full.
    """
    entries = read_entries(data, max_bytes=max_bytes)
    with disk_faults(into):
        into.mkdir(parents=True, exist_ok=True)
        write_entries(entries, into, overwrite=overwrite)
    return [entry.path for entry in entries]
