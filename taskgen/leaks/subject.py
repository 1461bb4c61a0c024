"""What an audit protects: the deleted code of one task, its hidden tests, and what the agent is told anyway."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from taskgen import archive, patches, safepath
from taskgen.archive import ArchiveEntry
from taskgen.errors import FormatError
from taskgen.leaks import code
from taskgen.leaks.fingerprints import Fingerprint, from_patch
from taskgen.patchread import patch_paths

#: Sources beyond this are not read for what the workspace says anyway; the audit then only errs to caution.
MAX_KNOWN_BYTES = 64 << 20
_DEFINED = re.compile(rb"\b(?:def|function|fn|func|class)\s+\*?([A-Za-z_$][\w$]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The secrets of one task.

    Attributes:
        name: instance id, or the patch's name.
        deleted, tests: fingerprints of the deleted code and of the hidden tests.
        stated: what the agent is told: the problem statement (or nothing).
        known: names and strings of the deleted code that give nothing away, since the workspace's sources define
            something of the same name, or hold the same string.
    """

    name: str
    deleted: tuple[Fingerprint, ...]
    tests: tuple[Fingerprint, ...] = ()
    stated: str = ""
    known: frozenset[str] = frozenset()

    @property
    def fingerprints(self) -> tuple[Fingerprint, ...]:
        """All that is looked for; the hidden tests come last."""
        return (*self.deleted, *self.tests)


def make_subject(
    name: str,
    gold_patch: str,
    read: Callable[[str], bytes | None],
    sources: Iterable[bytes],
    *,
    test_patch: str = "",
    stated: str = "",
) -> Subject:
    """The subject of a gold patch (workspace -> solved).

    Args:
        read: the workspace's file at a path, or None.
        sources: contents of the workspace's source files.

    Raises:
        FormatError: a patch cannot be read, or it adds no code.
    """
    deleted = tuple(from_patch(gold_patch, _solver(gold_patch, read)))
    if not deleted:
        raise FormatError(
            f"{name}: the patch adds nothing that could leak", hint="give workspace -> solved, not its reverse"
        )
    tests = tuple(from_patch(test_patch, _solver(test_patch, read))) if test_patch.strip() else ()
    return Subject(
        name=name, deleted=deleted, tests=tests, stated=stated, known=known_words((*deleted, *tests), sources)
    )


def _solver(patch: str, read: Callable[[str], bytes | None]) -> Callable[[str], bytes | None]:
    """Reads files as they are with the patch applied; None for all of them if it does not apply."""
    try:
        solved = apply(patch, read)
    except FormatError:
        return lambda _path: None
    return lambda path: solved[path].content if path in solved else None


def apply(patch: str, read: Callable[[str], bytes | None]) -> Mapping[str, ArchiveEntry]:
    """The files that a patch touches, patched. Raises FormatError if it does not apply."""
    data = patches.patch_bytes(patch)
    with tempfile.TemporaryDirectory(prefix="taskgen-audit-") as folder:
        root = Path(folder)
        for path in {entry.path for entry in patch_paths(data)}:
            if (content := read(path)) is not None:
                safepath.write_file(root, path, content, executable=False)
        patches.apply_patch(data, root)
        return {entry.path: entry for entry in archive.entries_of(root)}


def known_words(fingerprints: Iterable[Fingerprint], sources: Iterable[bytes]) -> frozenset[str]:
    """Names and strings of fingerprints that are no evidence: the sources define the name, or hold the string."""
    listed = list(fingerprints)
    wanted = {text: text.encode("utf-8", "replace") for fingerprint in listed for text in fingerprint.strings}
    bare = {fingerprint.name.encode("utf-8", "replace"): fingerprint.name for fingerprint in listed if fingerprint.name}
    found: set[str] = set()
    total = 0
    for data in sources:
        total += len(data)
        if total > MAX_KNOWN_BYTES:
            break
        found |= {text for text, raw in wanted.items() if text not in found and raw in data}
        found |= {bare[name] for name in _DEFINED.findall(data) if name in bare}
    return frozenset(found)


def is_source(path: str) -> bool:
    """Whether a file of a workspace counts as its source code."""
    return code.language_of(path) is not None
