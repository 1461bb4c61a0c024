"""Source files to read: from folders and archives that other people made. Nothing of them is run or unpacked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from taskgen import archive, safepath
from taskgen.errors import ConfigError, FormatError
from taskgen.leaks import targets
from taskgen.leaks.code import language_of
from taskgen.leaks.policy import is_own
from taskgen.scrubrules import Scrubber
from taskgen.sources import sdist_files

#: Larger files are tables, not code.
MAX_FILE_BYTES = 1 << 20
#: Documents of all sources together are kept in memory.
MAX_BYTES = 2 << 30
_TARS = (".tar", ".tar.zst")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """``name``: ``SOURCE/PATH`` of a file, or the id of a rollout. ``group``: what is held out together with it."""

    name: str
    text: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that is not read, and why."""

    name: str
    why: str
    detail: str = ""


@dataclass(slots=True)
class Collected:
    """What is read, and what is not."""

    documents: list[Document]
    left_out: list[LeftOut]


def collect(sources: Sequence[Path]) -> Collected:
    """The source files of known languages below folders and in archives (.tar, .tar.zst, sdists), each content once.

    Raises:
        ConfigError: a source is not there, is of another kind, or holds no source file; all together are too much.
        FormatError, SourceError: an archive is broken or hostile.
    """
    found = Collected([], [])
    seen: dict[bytes, str] = {}
    total = 0
    for source in sources:
        n_before = len(found.documents) + len(found.left_out)
        for path, data in _files(source):
            name = f"{source}/{path}"
            if data is None:
                found.left_out.append(LeftOut(name=name, why=f"larger than {MAX_FILE_BYTES} bytes"))
                continue
            total += len(data)
            if total > MAX_BYTES:
                raise ConfigError(f"text: more than {MAX_BYTES} bytes", hint="give fewer sources")
            text = _text(data)
            same = seen.setdefault(hashlib.sha256(data).digest(), name)
            if isinstance(text, LeftOut):
                found.left_out.append(LeftOut(name=name, why=text.why))
            elif same != name:
                found.left_out.append(LeftOut(name=name, why="a copy", detail=same))
            else:
                found.documents.append(Document(name=name, text=text, group=name))
        if len(found.documents) + len(found.left_out) == n_before:
            raise ConfigError(f"text: {source} holds no source file of a known language")
    return found


def _text(data: bytes) -> str | LeftOut:
    """The text of a file. Line ends stay as they are."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return LeftOut(name="", why="not UTF-8")
    if "\0" in text:
        return LeftOut(name="", why="binary")
    return text if text.strip() else LeftOut(name="", why="empty")


def _files(source: Path) -> Iterator[tuple[str, bytes | None]]:
    """The repository's own source files, by their paths; None for one that is too large."""
    if source.is_dir():
        for path in _own(safepath.walk_files(source)):
            if (source / path).lstat().st_size > MAX_FILE_BYTES:
                yield path, None
            elif (data := targets.read_file(source, path)) is not None:
                yield path, data
        return
    if not source.is_file():
        raise ConfigError(f"text: {source}: there is no such folder or file")
    files = dict(_members(source))
    for path in _own(files):
        yield path, files[path] if len(files[path]) <= MAX_FILE_BYTES else None


def _members(source: Path) -> Iterable[tuple[str, bytes]]:
    if source.name.endswith(_TARS):
        try:
            entries = archive.read_entries(source.read_bytes())
        except FormatError as error:
            raise FormatError(f"{source}: {error.args[0]}") from error
        return [(entry.path, entry.content) for entry in entries if entry.link_target is None]
    if source.name.endswith(sdist_files.SUFFIXES):
        members = sdist_files.sdist_entries(source, [])
        return [(entry.path, entry.content) for entry in members if entry.mode != "120000"]
    raise ConfigError(
        f"text: {source} is no archive of a known kind",
        hint=f"give a folder, or a file that ends with {', '.join((*_TARS, *sdist_files.SUFFIXES))}",
    )


def _own(paths: Iterable[str]) -> list[str]:
    """Those that the repository's people wrote: no builds, no caches, nothing that was installed into it."""
    listed = sorted(paths)
    scrubber = Scrubber(listed)
    return [path for path in listed if language_of(path) is not None and is_own(path, scrubber)]
