"""What an agent finds in its sandbox beside the workspace: the environment, the interpreter's library, the system's
packages, and whatever elsewhere bears the name of a deleted file."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from taskgen.errors import SandboxUnavailable
from taskgen.leaks.blob import Blob, Limits, Unreadable
from taskgen.leaks.query import Query
from taskgen.leaks.records import Problem
from taskgen.leaks.scanner import Fault, Scan, Scanner, scan_files
from taskgen.leaks.targets import walk
from taskgen.sandbox import ENV_DIR, WORKSPACE_DIR, Sandbox, SandboxProvider

PYTHON = f"{ENV_DIR}/venv/bin/python"
MAX_TAR_BYTES = 4 << 30
_LIBRARIES = """
import sys, sysconfig, site, os
found = [sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib")] + site.getsitepackages()
found += ["/usr/lib/python3/dist-packages", "/usr/local/lib", "/usr/share/python-wheels"]
print("\\n".join(dict.fromkeys(os.path.realpath(p) for p in found if os.path.isdir(p) and os.listdir(p))))
"""


def scan(provider: SandboxProvider, key: str, query: Query, *, jobs: int = 1, cache: Path | None = None) -> Scan:
    """Scan what an agent finds beside its workspace, once for all that the query looks for.

    Args:
        key: the environment's snapshot.
        cache: where to keep what was clean (see ``scan_files``).

    Raises:
        SandboxUnavailable: it cannot be read.
    """
    result = Scan()
    with provider.create(snapshot=key) as sandbox:
        folders = _roots(sandbox, PYTHON)
        for folder in folders:
            result.add(_scan_folder(provider, key, sandbox, folder, query, jobs=jobs, cache=cache))
        scanner = Scanner(query)
        for path in _namesakes(sandbox, {f.path for f in query.fingerprints}, folders):
            scanner.scan_blob(_file(sandbox, path, query.limits), result)
    return result


def _scan_folder(
    provider: SandboxProvider, key: str, sandbox: Sandbox, folder: str, query: Query, *, jobs: int, cache: Path | None
) -> Scan:
    place = provider.locate(key, folder)
    if place is not None:
        listing = walk(place.root, place.hidden)
        found = scan_files(place.root, listing.files, query, jobs=jobs, cache=cache)
        found.faults += listing.faults
        return found.below(folder)
    result, scanner = Scan(), Scanner(query)
    for found_blob in _blobs(sandbox, folder, query.limits):
        if isinstance(found_blob, Problem):
            result.faults.append(Fault(trail=(folder,), reason=found_blob.reason))
        else:
            scanner.scan_blob(found_blob, result)
    return result


def suspects(provider: SandboxProvider, key: str, scan: Scan, limits: Limits) -> Iterator[Blob]:
    """The files of the surroundings in which a scan saw anything at all, for a thief."""
    with provider.create(snapshot=key) as sandbox:
        for path in sorted({hit.trail[0] for hit in scan.hits}):
            yield _file(sandbox, path, limits)


def _roots(sandbox: Sandbox, python: str) -> list[str]:
    """The folders to read, none inside another. Raises SandboxUnavailable if the sandbox does not answer."""
    done = sandbox.exec([python, "-c", _LIBRARIES], cwd="/")
    if done.returncode != 0:
        raise SandboxUnavailable(f"{python} does not run: {done.stderr.decode('utf-8', 'replace')[-500:]}")
    listed = [ENV_DIR, *done.stdout.decode("utf-8", "replace").splitlines()]
    outer: list[str] = []
    for path in sorted(set(listed)):
        if not any(PurePosixPath(path).is_relative_to(other) for other in outer):
            outer.append(path)
    return outer


def _namesakes(sandbox: Sandbox, paths: Iterable[str], apart_from: Iterable[str]) -> list[str]:
    """Files anywhere else in the sandbox that are called like one of the deleted files, in a folder called the same.

    An ``__init__.py`` and its like need the folder's name too, so all do.
    """
    wanted = sorted({"/".join(path.split("/")[-2:]) for path in paths if "/" in path})
    if not wanted:
        return []
    pruned = [*apart_from, WORKSPACE_DIR, "/proc", "/sys", "/dev"]
    argv = ["find", "/", "("]
    for path in pruned:
        argv += ["-path", path, "-o"]
    argv[-1] = ")"
    argv += ["-prune", "-o", "-type", "f", "("]
    for path in wanted:
        argv += ["-path", f"*/{path}", "-o"]
    argv[-1] = ")"
    done = sandbox.exec([*argv, "-print"], cwd="/", timeout_s=120.0)
    return done.stdout.decode("utf-8", "surrogateescape").splitlines()


def _blobs(sandbox: Sandbox, folder: str, limits: Limits) -> Iterator[Blob | Problem]:
    """The regular files of a folder of the sandbox. Raises SandboxUnavailable."""
    try:
        data = sandbox.get(folder, max_bytes=MAX_TAR_BYTES)
    except ValueError as error:
        yield Problem(reason=f"{folder}: {error}")
        return
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for info in tar:
                if info.isreg() and (stream := tar.extractfile(info)) is not None:
                    yield Blob.of_bytes(f"{folder}/{info.name.removeprefix('./')}", stream.read(), limits)
    except (tarfile.TarError, Unreadable) as error:
        yield Problem(reason=f"{folder}: {error}")


def _file(sandbox: Sandbox, path: str, limits: Limits) -> Blob:
    """One file of the sandbox, as far as its output limit goes. Raises SandboxUnavailable."""
    done = sandbox.exec(["cat", "--", path], cwd="/", timeout_s=60.0)
    return Blob.of_bytes(path, done.stdout, limits)
