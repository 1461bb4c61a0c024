"""Typed functions over ``git``: mirror, resolve, read and import. Nothing is ever checked out by git.

The functions on patches live in ``taskgen.patches`` and ``taskgen.patchread``, and are offered here too.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from taskgen.atomic import locked, replacing_directory
from taskgen.errors import CommandError, SourceError
from taskgen.gitexec import ImportEntry, fast_import, git, init_bare, read_blobs
from taskgen.patches import apply_patch, diff_directories, patch_bytes
from taskgen.patchread import PatchEntry, patch_paths

__all__ = [
    "ImportEntry",
    "PatchEntry",
    "TreeItem",
    "apply_patch",
    "describe_tag",
    "diff_directories",
    "has_revision",
    "import_tree",
    "list_tree",
    "mirror",
    "patch_bytes",
    "patch_paths",
    "read_blobs",
    "read_tree",
    "redacted",
    "resolve",
]

CLONE_TIMEOUT_S = 3600.0
_HEADS_AND_TAGS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+@-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TRANSIENT = re.compile(
    r"early EOF|RPC failed|timed out|reset by peer|unexpected disconnect|hung up unexpectedly"
    r"|returned error: (?:429|5\d\d)|Temporary failure|Empty reply"
)
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeItem:
    """An entry of a commit's tree, without its content.

    Attributes:
        path: decoded with surrogate escapes where it is not UTF-8.
        mode: 100644, 100755, 120000 (link) or 160000 (submodule).
        oid: the object's hash.
        size_bytes: 0 for a submodule.
    """

    path: str
    mode: str
    oid: str
    size_bytes: int

    @property
    def is_link(self) -> bool:
        return self.mode == "120000"

    @property
    def is_submodule(self) -> bool:
        return self.mode == "160000"

    @property
    def executable(self) -> bool:
        return self.mode == "100755"


def has_revision(bare: Path, revision: str) -> bool:
    """Whether ``revision`` names a commit that is in ``bare``."""
    try:
        resolve(bare, revision)
    except SourceError:
        return False
    return True


def resolve(bare: Path, revision: str) -> str:
    """The full hash of the commit that a commit, tag or branch names.

    Raises:
        SourceError: there is no such revision, or the text is not a revision.
    """
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise SourceError(f"{revision!r} is not a commit, tag or branch")
    try:
        out = git(["rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"], bare=bare)
    except CommandError as error:
        raise SourceError(
            f"there is no revision {revision!r} in {bare}",
            hint="give a full commit, or a tag or branch of the repository",
        ) from error
    return out.decode().strip()


def redacted(url: str) -> str:
    """A URL without the user's name and password, fit for messages and for task files."""
    return re.sub(r"^((?:https?|ftp)://)[^/@]*@", r"\1", url)


def mirror(url: str, into: Path, revision: str | None = None, *, local: bool = False) -> Path:
    """Keep a bare copy of the heads and tags of ``url`` at ``into``, and return ``into``.

    Other refs (``refs/pull/*``) are left out: they carry code that is not part of the repository. The
    copy is refreshed only where ``revision`` is missing in it, so that a build works without network.
    With ``local`` the URL is a folder of this machine: it may be shallow, or another user's.

    Raises:
        SourceError: ``url`` cannot be reached, or is not a git repository.
        StoreError: the cache folder is full, or locked by another process.
    """
    with locked(into):
        if not (into / "HEAD").is_file():
            with replacing_directory(into) as fresh:
                init_bare(fresh)
                _fetch(url, fresh, _HEADS_AND_TAGS, local)
        elif revision is not None and not has_revision(into, revision):
            _fetch(url, into, _HEADS_AND_TAGS, local)
        if revision is not None and _COMMIT.fullmatch(revision) and not has_revision(into, revision):
            _fetch_commit(url, into, revision, local)
    return into


def _fetch_commit(url: str, bare: Path, commit: str, local: bool) -> None:
    """A commit that no head or tag reaches any more: many servers give it when asked by its hash."""
    try:
        _fetch(url, bare, (f"{commit}:refs/taskgen/{commit}",), local)
    except SourceError as error:
        raise SourceError(
            f"there is no commit {commit} in the heads and tags of {redacted(url)}", hint="check the revision"
        ) from error


def _fetch(url: str, bare: Path, refspecs: tuple[str, ...], local: bool) -> None:
    arguments = ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head"]
    if local:
        # The serving side of a fetch does not get this side's configuration.
        arguments += ["--update-shallow", "--upload-pack=git -c safe.directory=* upload-pack"]
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            git([*arguments, "--", url, *refspecs], bare=bare, timeout_s=CLONE_TIMEOUT_S)
        except CommandError as error:
            if attempt < _ATTEMPTS and _TRANSIENT.search(error.stderr):
                time.sleep(2.0**attempt)
                continue
            reason = (error.stderr.strip() or "no answer in time").replace(url, redacted(url))
            raise SourceError(
                f"cannot fetch {redacted(url)}: {reason}",
                hint="check the URL and the network; TASKGEN_GIT_CONFIG may name a git config with mirrors",
            ) from None
        return


def list_tree(bare: Path, commit: str) -> tuple[TreeItem, ...]:
    """The entries of a commit's tree, folders left out, in git's order."""
    out = git(["ls-tree", "-r", "-z", "-l", "--full-tree", commit], bare=bare)
    items = []
    for record in out.split(b"\0")[:-1]:
        meta, _, path = record.partition(b"\t")
        mode, _kind, oid, size = meta.decode().split()
        items.append(
            TreeItem(
                path=path.decode("utf-8", "surrogateescape"),
                mode=mode,
                oid=oid,
                size_bytes=0 if size == "-" else int(size),
            )
        )
    return tuple(items)


def read_tree(
    bare: Path, commit: str, keep: Callable[[TreeItem], bool] = lambda item: True
) -> Iterator[tuple[TreeItem, bytes]]:
    """The files and links of a commit with their raw contents; submodules have none and are left out."""
    items = [item for item in list_tree(bare, commit) if not item.is_submodule and keep(item)]
    return zip(items, read_blobs(bare, (item.oid for item in items)), strict=True)


def import_tree(bare: Path, entries: Iterable[ImportEntry], *, label: str) -> str:
    """Import files as one commit on ``refs/heads/main`` of ``bare`` (made if need be); returns its hash.

    The hash depends on the paths, modes, contents and ``label`` (the sdist's name) alone.
    """
    if not (bare / "HEAD").is_file():
        init_bare(bare)
    return fast_import(bare, entries, ref="refs/heads/main", message=f"Import {label}\n")


def describe_tag(bare: Path, commit: str) -> str | None:
    """The nearest tag that ``commit`` descends from, or None."""
    try:
        out = git(["describe", "--tags", "--abbrev=0", commit], bare=bare)
    except CommandError as error:
        if error.timed_out:
            raise
        return None
    return os.fsdecode(out).strip()
