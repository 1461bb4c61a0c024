"""The records of the domain: frozen, typed, from the standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Literal

SCHEMA_VERSION = 1


# --- Where code comes from -----------------------------------------------------------------------


class SourceKind(StrEnum):
    """How a repository is obtained. The values are those of the task format's ``source.kind``."""

    GIT = "git"
    SDIST = "sdist"
    PATH = "path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a repository came from.

    Attributes:
        kind: git, sdist or path.
        url: git URL, sdist URL or file name, or the path as it was written.
        revision: commit or version.
        sha256: digest of the sdist file; empty for git and path.
    """

    kind: SourceKind
    url: str
    revision: str
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoSpec:
    """One entry of repos.yaml, checked. ``None`` or an empty tuple means: detect it.

    Attributes:
        name: ``owner/name``, ``pypi/name`` or ``local/name``.
        location: the value of git:, pypi: or path:.
        revision: commit, tag or branch (git), version (pypi), commit or empty (path).
        sha256: expected digest of the sdist, or None.
        install: shell commands that replace the default editable install.
        requirements: extra requirements (PEP 508) for the tests.
        test_command: ``pytest`` and its options.
        include, exclude: globs of source files from which features may be deleted.
        where: ``file:line`` of the entry, for messages.
    """

    name: str
    kind: SourceKind
    location: str
    revision: str
    sha256: str | None = None
    language: str | None = None
    runtime: str | None = None
    install: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    build_command: str | None = None
    test_command: str | None = None
    test_paths: tuple[str, ...] = ()
    timeout_s: float | None = None
    licence: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    where: str = ""

    @property
    def slug(self) -> str:
        """The name as it appears in instance ids: lower case, ``/`` and other marks as ``-``."""
        return "".join(c if c.isalnum() or c in "._" else "-" for c in self.name.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file of a tree: bytes on disk are under ``Tree.root / path``."""

    path: str
    executable: bool
    sha256: str
    size_bytes: int
    link_target: str | None = None
