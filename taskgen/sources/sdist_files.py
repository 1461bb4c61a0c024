"""The files of an sdist (.tar.gz, .zip) as entries for an import. The archive is taken as hostile."""

from __future__ import annotations

import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from taskgen import safepath
from taskgen.errors import SourceError
from taskgen.gitexec import ImportEntry

MAX_BYTES = 2 << 30
MAX_MEMBERS = 200_000
SUFFIXES = (".tar.gz", ".tgz", ".zip")
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    gzip.BadGzipFile,
    EOFError,
    KeyError,  # a hard link to a member that is not there
    NotImplementedError,  # an unknown kind of compression
    RuntimeError,  # a member that is encrypted
    ValueError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    name: str
    mode: str
    size: int
    read: Callable[[], bytes]


def sdist_entries(archive: Path, warnings: list[str]) -> Iterator[ImportEntry]:
    """The files and links below the archive's one top folder, that folder's name taken off.

    Paths inside ``.git`` are left out with a warning.

    Raises:
        SourceError: the archive is broken or too big; it has no single top folder; a path leads out;
            it holds a device or a pipe.
    """
    reader = _zip_members if archive.name.endswith(".zip") else _tar_members
    top: str | None = None
    total = 0
    try:
        for number, member in enumerate(reader(archive)):
            name = member.name
            total += member.size
            if total > MAX_BYTES or number >= MAX_MEMBERS:
                raise SourceError(f"{archive.name} holds more than {MAX_BYTES} bytes or {MAX_MEMBERS} files")
            first, _, path = name.removeprefix("./").partition("/")
            if top not in (None, first) or not path or safepath.path_problem(first):
                raise SourceError(f"{archive.name} has no single top folder: {top!r}, {name!r}")
            top = first
            if problem := safepath.path_problem(path):
                if ".git" not in problem:
                    raise SourceError(f"{archive.name} holds an unsafe path, {name!r}: {problem}")
                warnings.append(f"{name!r} is left out: {problem}")
                continue
            yield ImportEntry(path=path, content=member.read(), mode=member.mode)
    except _BROKEN as error:
        raise SourceError(f"{archive.name} is broken: {error}", hint="give another version") from error
    if top is None:
        raise SourceError(f"{archive.name} is empty", hint="give another version")


def _tar_members(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive, "r:gz") as tar:
        for info in tar:
            if info.isdir():
                continue
            if info.issym():
                target = info.linkname.encode("utf-8", "surrogateescape")
                yield _Member(name=info.name, mode="120000", size=len(target), read=partial(bytes, target))
            elif info.isreg() or info.islnk():
                mode = "100755" if info.mode & 0o100 else "100644"
                # The size of a hard link is that of the file it names, which was counted already.
                yield _Member(name=info.name, mode=mode, size=info.size, read=partial(_read_tar, tar, info))
            else:
                raise SourceError(f"{archive.name}: {info.name!r} is not a plain file (type {info.type!r})")


def _read_tar(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(info)
    content = b"" if stream is None else stream.read()
    if info.isreg() and len(content) != info.size:
        raise EOFError(f"{info.name!r} is cut short")
    return content


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as files:
        for info in files.infolist():
            if info.is_dir():
                continue
            bits = info.external_attr >> 16
            kind = stat.S_IFMT(bits)
            if kind not in (0, stat.S_IFREG, stat.S_IFLNK):
                raise SourceError(f"{archive.name}: {info.filename!r} is not a plain file")
            mode = "100755" if bits & 0o100 else "100644"
            if kind == stat.S_IFLNK:
                mode = "120000"
            yield _Member(name=info.filename, mode=mode, size=info.file_size, read=partial(files.read, info.filename))
