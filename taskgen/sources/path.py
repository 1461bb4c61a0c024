"""Repositories in a folder of this machine: a git repository, or plain files."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from taskgen import safepath
from taskgen.atomic import locked, replacing_directory
from taskgen.errors import CommandError, SourceError
from taskgen.git import ImportEntry, import_tree, list_tree, mirror, resolve
from taskgen.gitexec import git
from taskgen.scrubrules import Scrubber
from taskgen.sources.facts import licence_of, tag_version
from taskgen.types import Checkout, RepoSpec, Source, SourceKind


def fetch(spec: RepoSpec, cache: Path) -> Checkout:
    """Copy a local repository or folder into the cache. Raises as ``table.fetch``."""
    folder = (Path(spec.base) / spec.location).resolve()
    if not folder.is_dir():
        raise SourceError(f"{spec.where}: {spec.name}: {folder} is not a folder", hint="check path:")
    if _is_git(folder):
        return _from_git(spec, folder, cache)
    if spec.revision:
        raise SourceError(
            f"{spec.where}: {spec.name}: {folder} is not a git repository and has no revision {spec.revision!r}",
            hint="leave revision: out, or give the folder that holds .git",
        )
    return _from_files(spec, folder, cache)


def _is_git(folder: Path) -> bool:
    return (folder / ".git").exists() or all((folder / n).exists() for n in ("HEAD", "objects", "refs"))


def _checkout(spec: RepoSpec, bare: Path, commit: str, version: str, warnings: tuple[str, ...]) -> Checkout:
    return Checkout(
        name=spec.name,
        source=Source(kind=SourceKind.PATH, url=spec.location, revision=commit),
        bare=bare,
        commit=commit,
        version=version,
        licence=spec.licence or licence_of(bare, commit),
        warnings=warnings,
    )


def _from_git(spec: RepoSpec, folder: Path, cache: Path) -> Checkout:
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    bare = cache / "path" / f"{spec.slug}-{digest}.git"
    try:
        revision = spec.revision or _head(folder)
        mirror(str(folder), bare, revision, local=True)
        commit = resolve(bare, revision)
    except SourceError as error:
        raise SourceError(f"{spec.where}: {spec.name}: {error.args[0]}", hint=error.hint) from error
    warnings: tuple[str, ...] = ()
    if not spec.revision and (folder / ".git").exists() and _is_dirty(folder, bare, commit):
        warnings = (f"{spec.name}: {folder} has changes that are not committed; they are left out",)
    return _checkout(spec, bare, commit, tag_version(bare, commit), warnings)


def _head(folder: Path) -> str:
    where = {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    try:
        out = git(["rev-parse", "--verify", "HEAD^{commit}"], cwd=folder, extra_env=where)
    except CommandError as error:
        raise SourceError(
            f"cannot read {folder}: {error.stderr.strip()}", hint="commit something first, or give revision:"
        ) from error
    return out.decode().strip()


def _is_dirty(folder: Path, bare: Path, commit: str) -> bool:
    """Whether the files differ from the commit.

    Asked of the cache's copy, with an index of its own: the folder's own configuration can name
    programs (filters) that ``git status`` would run.
    """
    with tempfile.TemporaryDirectory(prefix="taskgen-git-") as scratch:
        env = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        work_tree = f"--work-tree={folder}"
        git([work_tree, "read-tree", commit], bare=bare, cwd=folder, extra_env=env)
        status = ["status", "--porcelain", "--ignore-submodules=all"]
        return bool(git([work_tree, *status], bare=bare, cwd=folder, extra_env=env))


def _read(place: Path) -> bytes:
    try:
        return place.read_bytes()
    except PermissionError as error:
        raise SourceError(f"{place} cannot be read: {error.strerror}", hint="make it readable") from error


def _entries(folder: Path, warnings: list[str]) -> Iterator[ImportEntry]:
    paths = safepath.walk_files(folder)
    scrubber = Scrubber(paths)
    for path in paths:
        if scrubber.rule_for(path):
            continue
        place = folder / path
        info = place.lstat()
        if problem := safepath.path_problem(path):
            warnings.append(f"{path!r} is left out: {problem}")
        elif stat.S_ISLNK(info.st_mode):
            yield ImportEntry(path=path, content=os.fsencode(safepath.link_target(place)), mode="120000")
        elif stat.S_ISREG(info.st_mode):
            mode = "100755" if info.st_mode & stat.S_IXUSR else "100644"
            yield ImportEntry(path=path, content=_read(place), mode=mode)
        else:
            warnings.append(f"{path!r} is left out: neither a file nor a link")


def _from_files(spec: RepoSpec, folder: Path, cache: Path) -> Checkout:
    warnings: list[str] = []
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    entry = cache / "path" / f"{spec.slug}-{digest}"
    # The commit is known only when the import is made, so a folder is imported anew each time.
    with locked(entry):
        imported = entry / "import.git"
        with replacing_directory(imported) as fresh:
            commit = import_tree(fresh, _entries(folder, warnings), label=spec.name)
            if not list_tree(fresh, commit):
                raise SourceError(f"{spec.where}: {spec.name}: {folder} holds no file", hint="check path:")
        bare = entry / f"{commit}.git"
        if bare.exists():
            shutil.rmtree(imported)
        else:
            imported.rename(bare)
    return _checkout(spec, bare, commit, "0", tuple(warnings))
