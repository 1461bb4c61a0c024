"""Patches: made from two folders, and applied to one, byte for byte.

Git's own code makes and applies them, but on objects of a scratch repository and never on a work tree:
so no attribute (``eol=crlf``, ``working-tree-encoding``) changes a byte, and no link is followed.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from taskgen import safepath
from taskgen.errors import CommandError, FormatError
from taskgen.gitexec import ImportEntry, fast_import, git, init_bare, read_blobs
from taskgen.patchread import patch_paths
from taskgen.safepath import link_target, walk_files

_DIFF = (
    "diff-tree", "-r", "-p", "--full-index", "--text", "--unified=3", "--inter-hunk-context=0",
    "--diff-algorithm=myers", "--indent-heuristic", "--src-prefix=a/", "--dst-prefix=b/",
    "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative",
)  # fmt: skip

# --- Two folders -> patch ------------------------------------------------------------------------


def _parents(path: str) -> list[Path]:
    """The folders above a path, nearest first, without the root."""
    return list(Path(path).parents)[:-1]


def _disk_entry(root: Path, path: str) -> ImportEntry | None:
    """What stands at ``path`` below ``root``, not following links; None for nothing or a folder."""
    if any((root / parent).is_symlink() for parent in _parents(path)):
        return None
    try:
        info = (root / path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(info.st_mode):
        return ImportEntry(path=path, content=os.fsencode(link_target(root / path)), mode="120000")
    if stat.S_ISREG(info.st_mode):
        mode = "100755" if info.st_mode & stat.S_IXUSR else "100644"
        return ImportEntry(path=path, content=(root / path).read_bytes(), mode=mode)
    if stat.S_ISDIR(info.st_mode):
        return None
    raise FormatError(f"{root / path} is neither a file, a folder nor a link")


@contextmanager
def _scratch_repository() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="taskgen-git-") as folder:
        bare = Path(folder) / "repo"
        init_bare(bare)
        yield bare


def diff_directories(old: Path, new: Path) -> str:
    """The patch (``git apply -p1``) that turns the files of ``old`` into those of ``new``.

    The same folders give the same bytes on any machine. Binary content is shown as text. Bytes that
    are not UTF-8 come out as surrogate escapes: write the patch with ``patch_bytes``.

    Raises:
        FormatError: a folder holds a device, a pipe or a socket, or a name that is not safe.
    """
    before, after = [], []
    for path in sorted({*walk_files(old), *walk_files(new)}):
        was, now = _disk_entry(old, path), _disk_entry(new, path)
        if was == now:
            continue
        if problem := safepath.path_problem(path):
            raise FormatError(f"cannot make a patch of {path!r}: {problem}")
        before += [was] if was else []
        after += [now] if now else []
    if not before and not after:
        return ""
    with _scratch_repository() as bare:
        for ref, entries in (("refs/heads/old", before), ("refs/heads/new", after)):
            fast_import(bare, entries, ref=ref, message=ref)
        out = git([*_DIFF, "refs/heads/old", "refs/heads/new"], bare=bare)
    return out.decode("utf-8", "surrogateescape")


def patch_bytes(patch: str) -> bytes:
    """The bytes of a patch that ``diff_directories`` made."""
    return patch.encode("utf-8", "surrogateescape")


# --- Patch + folder -> folder --------------------------------------------------------------------


def _index(bare: Path) -> dict[str, tuple[str, str]]:
    out = git(["ls-files", "--stage", "-z"], bare=bare)
    entries = {}
    for record in out.split(b"\0")[:-1]:
        meta, _, path = record.partition(b"\t")
        mode, oid, _stage = meta.decode().split()
        entries[path.decode("utf-8", "surrogateescape")] = (mode, oid)
    return entries


def apply_patch(patch: bytes, directory: Path, *, allow_links: bool = False) -> None:
    """Apply a patch (-p1) to the files of ``directory``: all of it, or nothing.

    Raises:
        FormatError: ``patch_paths`` refuses it, or it does not apply (with git's message).
    """
    records = patch_paths(patch, allow_links=allow_links)
    if not records:
        return
    present = [entry for path in sorted({r.path for r in records}) if (entry := _disk_entry(directory, path))]
    with _scratch_repository() as bare:
        fast_import(bare, present, ref="refs/heads/main", message="before")
        git(["read-tree", "refs/heads/main"], bare=bare)
        before = _index(bare)
        try:
            git(["apply", "--cached", "--whitespace=nowarn", "-p1", "-"], bare=bare, stdin=patch)
        except CommandError as error:
            raise FormatError(
                f"the patch does not apply to {directory}: {error.stderr.strip()}",
                hint="it must be made against the same tree; nothing was changed",
            ) from error
        after = _index(bare)
        changed = {path: entry for path, entry in after.items() if before.get(path) != entry}
        contents = list(read_blobs(bare, (oid for _, oid in changed.values())))
    removed = before.keys() - after.keys()
    for path in changed:
        _check_place(directory, path, removed)
    _write_out(directory, sorted(removed), changed, contents)


def _check_place(directory: Path, path: str, removed: Set[str]) -> None:
    """Refuse, before the first write, a place that git's index cannot know to be taken."""
    for parent in _parents(path):
        place = directory / parent
        is_folder = place.is_dir() and not place.is_symlink()
        if os.path.lexists(place) and not is_folder and parent.as_posix() not in removed:
            raise FormatError(f"the patch does not apply to {directory}: {parent} is not a folder")
    place = directory / path
    if place.is_dir() and not place.is_symlink():
        inside = {f"{path}/{name}" for name in walk_files(place)}
        if inside - removed:
            raise FormatError(f"the patch does not apply to {directory}: {path!r} is a folder")


def _write_out(directory: Path, removed: list[str], changed: dict[str, tuple[str, str]], contents: list[bytes]) -> None:
    for path in removed:
        (directory / path).unlink()
        for parent in _parents(path):
            if any((directory / parent).iterdir()):
                break
            # Git knows no empty folders: one that the patch empties goes, as with git apply.
            (directory / parent).rmdir()
    for (path, (mode, _)), content in zip(changed.items(), contents, strict=True):
        if mode == "120000":
            safepath.write_link(directory, path, os.fsdecode(content), overwrite=True)
        else:
            safepath.write_file(directory, path, content, executable=mode == "100755", overwrite=True)
