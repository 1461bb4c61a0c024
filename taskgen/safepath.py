"""Which paths and links are safe inside a tree, and writing them without following a link.

Paths come from repositories, archives and patches that other people made: all are taken as hostile.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from taskgen.errors import FormatError

MAX_COMPONENT_BYTES = 255
MAX_PATH_BYTES = 2048
_GIT_NAMES = frozenset({".git", "git~1"})


def path_problem(path: str) -> str | None:
    """Why a ``/``-separated relative path is not safe to write, or None if it is."""
    if not path:
        return "empty path"
    if "\0" in path:
        return "NUL in the path"
    if path.startswith("/"):
        return "absolute path"
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        return f"path longer than {MAX_PATH_BYTES} bytes"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return f"path component {part!r}"
        if part.lower() in _GIT_NAMES:
            return "path inside a .git folder"
        if len(os.fsencode(part)) > MAX_COMPONENT_BYTES:
            return f"path component longer than {MAX_COMPONENT_BYTES} bytes"
    return None


def link_problem(path: str, target: str) -> str | None:
    """Why a symbolic link at ``path`` may not point to ``target``, or None if it may.

    ``..`` is taken only at the target's start. Then the check on the text alone is exact, even where
    the target runs through other links: each of those leads downwards from a folder inside the tree.
    """
    if not target or "\0" in target:
        return "empty or broken link target"
    if target.startswith("/"):
        return "link to an absolute path"
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = 0
    while climbs < len(parts) and parts[climbs] == "..":
        climbs += 1
    if ".." in parts[climbs:]:
        return "link target with '..' after a name"
    if climbs > path.count("/"):
        return "link out of the tree"
    if any(part.lower() in _GIT_NAMES for part in parts):
        return "link into a .git folder"
    return None


def link_target(place: Path) -> str:
    """The target of a link exactly as it is written (``Path.readlink`` would turn ``./a`` into ``a``)."""
    return os.readlink(place)  # noqa: PTH115


def walk_files(root: Path) -> list[str]:
    """The paths of all files and links below ``root``, sorted; links are not followed."""
    found = []
    for folder, folders, names in os.walk(root):
        # os.walk lists links to folders among the folders, and does not enter them.
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        inside = Path(folder).relative_to(root)
        found += [(inside / name).as_posix() for name in [*names, *links]]
    return sorted(found)


def _place(root: Path, path: str, *, overwrite: bool) -> Path:
    """Make the folders for ``path`` under ``root``; refuses a parent that is a link or a file."""
    if problem := path_problem(path):
        raise FormatError(f"unsafe path {path!r}: {problem}")
    here = root
    *parents, name = path.split("/")
    for part in parents:
        here = here / part
        try:
            here.mkdir()
        except FileExistsError:
            if not stat.S_ISDIR(here.lstat().st_mode):
                raise FormatError(f"unsafe path {path!r}: {part!r} is not a folder") from None
    target = here / name
    if overwrite:
        try:
            target.unlink()
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError) as error:
            raise FormatError(f"cannot replace {path!r}: {error.strerror}") from None
    return target


def write_file(root: Path, path: str, content: bytes, *, executable: bool, overwrite: bool = False) -> None:
    """Write a file (mode 0644 or 0755) under ``root``, never through a link.

    Raises:
        FormatError: the path is unsafe, or there is something at it and ``overwrite`` is false.
        OSError: the disk's own faults, ENOSPC for one.
    """
    target = _place(root, path, overwrite=overwrite)
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    except FileExistsError:
        raise FormatError(f"path {path!r} is there twice") from None
    with open(handle, "wb") as stream:
        stream.write(content)
        # The umask must not show in the tree.
        os.fchmod(stream.fileno(), 0o755 if executable else 0o644)


def write_link(root: Path, path: str, target: str, *, overwrite: bool = False) -> None:
    """Make a symbolic link under ``root``. Raises as ``write_file`` does, and for an unsafe target."""
    if problem := link_problem(path, target):
        raise FormatError(f"unsafe link {path!r} -> {target!r}: {problem}")
    place = _place(root, path, overwrite=overwrite)
    try:
        place.symlink_to(target)
    except FileExistsError:
        raise FormatError(f"path {path!r} is there twice") from None
