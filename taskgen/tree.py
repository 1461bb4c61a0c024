"""The pristine tree on disk: a commit exported without history, caches and built copies of the code."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from taskgen import safepath
from taskgen.atomic import disk_faults, locked, replacing_directory
from taskgen.git import TreeItem, list_tree, read_blobs
from taskgen.scrubrules import RULES, Scrubber
from taskgen.types import FileEntry

MAX_FILE_BYTES = 32 << 20
_FORMAT = 1
_MANIFEST = "manifest.json"
_FILES = "tree"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """An exported tree.

    Attributes:
        root: the folder that holds the files.
        files: files and links by path, sorted.
        digest: sha256 over path, mode, content hash and link target of every file: the bytes' identity.
        skipped: one message for each file that was kept out because it cannot be carried safely.
        scrubbed: number of files kept out, by the kind of rule.
    """

    root: Path
    files: Mapping[str, FileEntry]
    digest: str
    skipped: tuple[str, ...]
    scrubbed: Mapping[str, int]

    @property
    def paths(self) -> Sequence[str]:
        """All paths, sorted."""
        return list(self.files)

    def read(self, path: str) -> bytes:
        """The bytes of a file (for a link: its target). Raises KeyError if there is none of that name."""
        entry = self.files[path]
        if entry.link_target is not None:
            return os.fsencode(entry.link_target)
        return (self.root / path).read_bytes()


def files_digest(files: Mapping[str, FileEntry]) -> str:
    """The identity of the bytes of a set of files, independent of their order."""
    digest = hashlib.sha256()
    for path in sorted(files):
        entry = files[path]
        record = [path, entry.executable, entry.sha256, entry.link_target]
        digest.update(json.dumps(record, ensure_ascii=True).encode() + b"\n")
    return digest.hexdigest()


def _carry_problem(item: TreeItem, taken: dict[str, str]) -> str | None:
    """Why an item cannot be carried into a tree; ``taken`` maps case-folded paths to the ones written."""
    if item.is_submodule:
        return "submodule"
    try:
        item.path.encode("utf-8")
    except UnicodeEncodeError:
        return "name is not UTF-8"
    if problem := safepath.path_problem(item.path):
        return problem
    if item.size_bytes > MAX_FILE_BYTES:
        return f"{item.size_bytes} bytes, more than {MAX_FILE_BYTES}"
    folded = item.path.casefold()
    parts = folded.split("/")
    for candidate in ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1)):
        if other := taken.get(candidate):
            return f"differs from {other!r} by case alone"
    taken[folded] = item.path
    return None


def _write(bare: Path, items: list[TreeItem], root: Path, skipped: list[str]) -> dict[str, FileEntry]:
    files: dict[str, FileEntry] = {}
    for item, content in zip(items, read_blobs(bare, (item.oid for item in items)), strict=True):
        target = None
        if item.is_link:
            target = os.fsdecode(content)
            problem = safepath.link_problem(item.path, target)
            try:
                content.decode("utf-8")
            except UnicodeDecodeError:
                problem = "link target is not UTF-8"
            if problem:
                skipped.append(f"{item.path!r}: {problem} ({target!r})")
                continue
            safepath.write_link(root, item.path, target)
        else:
            safepath.write_file(root, item.path, content, executable=item.executable)
        files[item.path] = FileEntry(
            path=item.path,
            executable=item.executable,
            sha256=hashlib.sha256(content).hexdigest(),
            size_bytes=len(content),
            link_target=target,
        )
    return dict(sorted(files.items()))


def _export(bare: Path, commit: str, root: Path) -> Tree:
    items = list_tree(bare, commit)
    scrubber = Scrubber([item.path for item in items])
    scrubbed: Counter[str] = Counter()
    skipped: list[str] = []
    taken: dict[str, str] = {}
    kept = []
    for item in items:
        if rule := scrubber.rule_for(item.path):
            scrubbed[rule.kind] += 1
        elif problem := _carry_problem(item, taken):
            skipped.append(f"{item.path!r}: {problem}")
        else:
            kept.append(item)
    files = _write(bare, kept, root, skipped)
    return Tree(
        root=root,
        files=files,
        digest=files_digest(files),
        skipped=tuple(skipped),
        scrubbed=dict(sorted(scrubbed.items())),
    )


def _manifest(tree: Tree, commit: str) -> str:
    value = {
        "format": _FORMAT,
        "rules": _rules_digest(),
        "commit": commit,
        "digest": tree.digest,
        "skipped": tree.skipped,
        "scrubbed": dict(tree.scrubbed),
    }
    return json.dumps(value, indent=1)


def _rules_digest() -> str:
    return hashlib.sha256(repr((RULES, MAX_FILE_BYTES)).encode()).hexdigest()


def scan_directory(root: Path) -> dict[str, FileEntry]:
    """The files and links below ``root``, sorted by path, as they stand on disk; no link is followed."""
    files = {}
    for path in safepath.walk_files(root):
        place = root / path
        target = safepath.link_target(place) if place.is_symlink() else None
        content = place.read_bytes() if target is None else os.fsencode(target)
        files[path] = FileEntry(
            path=path,
            executable=target is None and bool(place.stat().st_mode & 0o100),
            sha256=hashlib.sha256(content).hexdigest(),
            size_bytes=len(content),
            link_target=target,
        )
    return files


def _load(into: Path, commit: str) -> Tree | None:
    """The tree that an earlier export left at ``into``, if its bytes are still those it wrote."""
    try:
        manifest = json.loads((into / _MANIFEST).read_text("utf-8"))
        if (manifest["format"], manifest["rules"], manifest["commit"]) != (_FORMAT, _rules_digest(), commit):
            return None
        files = scan_directory(into / _FILES)
        if files_digest(files) != manifest["digest"]:
            return None
        return Tree(
            root=into / _FILES,
            files=files,
            digest=str(manifest["digest"]),
            skipped=tuple(manifest["skipped"]),
            scrubbed=dict(manifest["scrubbed"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        # No export yet, or one that is not whole: it is made again.
        return None


def export_tree(bare: Path, commit: str, into: Path) -> Tree:
    """Export a commit below the folder ``into`` (files in ``into/tree``), scrubbed by ``RULES``.

    The folder appears whole or not at all; one that is there and intact is used again. Nothing may be
    written into it afterwards: copy it.

    Raises:
        CommandError: git cannot read the commit.
        StoreError: the disk is full, or the folder is locked by another process.
    """
    with locked(into):
        if tree := _load(into, commit):
            return tree
        with replacing_directory(into) as fresh, disk_faults(into.parent):
            root = fresh / _FILES
            root.mkdir()
            tree = _export(bare, commit, root)
            (fresh / _MANIFEST).write_text(_manifest(tree, commit), "utf-8")
    return Tree(
        root=into / _FILES,
        files=tree.files,
        digest=tree.digest,
        skipped=tree.skipped,
        scrubbed=tree.scrubbed,
    )
