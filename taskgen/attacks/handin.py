"""From a submission to the tree that a grader receives."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterable, Mapping

from taskgen import archive, safepath
from taskgen.archive import MTIME_S, ArchiveEntry
from taskgen.attacks.attack import Item, Kind, Submission
from taskgen.sandbox import HOME_DIR, WORKSPACE_DIR, ExecResult, Sandbox

SCRIPT_TIMEOUT_S = 30.0
MAX_TREE_BYTES = 256 << 20
_TYPES = {
    Kind.FILE: tarfile.REGTYPE,
    Kind.SYMLINK: tarfile.SYMTYPE,
    Kind.HARDLINK: tarfile.LNKTYPE,
    Kind.FIFO: tarfile.FIFOTYPE,
    Kind.DEVICE: tarfile.CHRTYPE,
}
#: What a sandbox can be given as it is; the rest an agent cannot make there, and is only handed in.
_HARMLESS = (Kind.FILE, Kind.SYMLINK, Kind.FIFO)


def final_tree(
    workspace: Mapping[str, ArchiveEntry], submission: Submission, make_sandbox: Callable[[], Sandbox]
) -> bytes:
    """A tar of the agent's last tree. Its script, if it has one, runs in a sandbox from ``make_sandbox``.

    Raises SandboxUnavailable: that sandbox cannot be made, or its tree cannot be read.
    """
    if not submission.script:
        return _tar(workspace, submission.deleted, submission.items)
    with make_sandbox() as sandbox:
        fit = _fit(submission)
        sandbox.put(WORKSPACE_DIR, given_tree(workspace, submission))
        run_script(sandbox, submission.script, timeout_s=SCRIPT_TIMEOUT_S)
        tree = sandbox.get(WORKSPACE_DIR, max_bytes=MAX_TREE_BYTES)
    return _with_rest(tree, [i for i in submission.items if i not in fit])


def run_script(sandbox: Sandbox, script: str, *, timeout_s: float, env: Mapping[str, str] | None = None) -> ExecResult:
    """Run a shell script of any length, which one argument of a command line cannot hold. Raises as Sandbox.exec."""
    name = "submission.sh"
    sandbox.put(HOME_DIR, archive.pack([ArchiveEntry(path=name, content=script.encode("utf-8", "surrogateescape"))]))
    return sandbox.exec(["/bin/sh", f"{HOME_DIR}/{name}"], timeout_s=timeout_s, env=env or {})


def given_tree(workspace: Mapping[str, ArchiveEntry], submission: Submission) -> bytes:
    """A tar of what of a submission's tree a sandbox can be given."""
    return _tar(workspace, submission.deleted, _fit(submission))


def _fit(submission: Submission) -> list[Item]:
    return [i for i in submission.items if i.kind in _HARMLESS and safepath.path_problem(i.path) is None]


def _tar(workspace: Mapping[str, ArchiveEntry], deleted: Iterable[str], items: Iterable[Item]) -> bytes:
    own = tuple(items)
    gone = {*deleted, *(item.path for item in own)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for path, entry in workspace.items():
            if path not in gone:
                _add(tar, _as_item(entry))
        for item in own:
            _add(tar, item)
    return buffer.getvalue()


def _as_item(entry: ArchiveEntry) -> Item:
    if entry.link_target is not None:
        return Item(path=entry.path, kind=Kind.SYMLINK, target=entry.link_target)
    return Item(path=entry.path, content=entry.content, executable=entry.executable)


def _with_rest(tree: bytes, items: list[Item]) -> bytes:
    """A sandbox's tree with the members that it could not hold."""
    if not items:
        return tree
    buffer = io.BytesIO(tree)
    with tarfile.open(fileobj=buffer, mode="a", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for item in items:
            _add(tar, item)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, item: Item) -> None:
    info = tarfile.TarInfo(item.path)
    info.mtime = MTIME_S
    info.mode = 0o755 if item.executable else 0o644
    if item.kind not in _TYPES:  # sockets and submodules are not in archives: an empty file has their place
        tar.addfile(info)
        return
    info.type, info.linkname = _TYPES[item.kind], item.target if item.kind in (Kind.SYMLINK, Kind.HARDLINK) else ""
    if item.kind is Kind.DEVICE:
        major, _, minor = item.target.partition(":")
        info.devmajor, info.devminor = int(major), int(minor)
    info.size = len(item.content) if item.kind is Kind.FILE else 0
    tar.addfile(info, io.BytesIO(item.content) if item.kind is Kind.FILE else None)
