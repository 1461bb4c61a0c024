"""A strict reader of patches: which paths one changes. Each patch is taken as hostile.

Only what ``git diff`` writes is accepted, and what is read here must agree with git's own reading: a
patch that two programs could understand in two ways is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from taskgen import safepath
from taskgen.errors import CommandError, FormatError
from taskgen.gitexec import git

Kind = Literal["add", "modify", "delete", "mode"]

_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_MODE = re.compile(rb"(old mode|new mode|new file mode|deleted file mode) (\d{6})")
_INDEX = re.compile(rb"index [0-9a-f]+\.\.[0-9a-f]+(?: (\d{6}))?")
_SIMILARITY = re.compile(rb"(?:dis)?similarity index \d+%")
_MOVE = re.compile(rb"(rename|copy) (from|to) (.+)", re.DOTALL)
_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}
_QUOTED = re.compile(rb'"(?:[^"\\]|\\[abtnvfr"\\]|\\[0-3][0-7]{2})*"')
_FILE_MODES = frozenset({b"100644", b"100755"})
_LINK_MODE = b"120000"
_HINT = "write the patch with `git diff` in the root of the workspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchEntry:
    """One path that a patch changes. A rename is a delete and an add.

    Attributes:
        kind: add, modify (the content, perhaps the mode too), delete, or mode (the exec bit alone).
        is_symlink: the path is, or was, a symbolic link.
    """

    path: str
    kind: Kind
    is_symlink: bool = False


def _broken(reason: str) -> FormatError:
    return FormatError(f"not an acceptable patch: {reason}", hint=_HINT)


class _Section:
    """What the header of one file's part of a patch says."""

    def __init__(self, title: bytes) -> None:
        self.title = title
        self.modes: dict[bytes, bytes] = {}
        self.index_mode: bytes | None = None
        self.names: dict[str, str | None] = {}
        self.moves: dict[bytes, str] = {}
        self.is_copy = False
        self.hunks = 0

    def path(self, listed: str) -> str:
        """The path, having checked that the header's names agree with the one that git reads."""
        old, new = self.names.get("---"), self.names.get("+++")
        if self.names and (
            (old is None) != (b"new file mode" in self.modes) or (new is None) != (b"deleted file mode" in self.modes)
        ):
            raise _broken(f"/dev/null and the modes of {listed!r} disagree")
        expected_old = self.moves.get(b"from", listed)
        expected_new = self.moves.get(b"to", listed)
        agree = old in (None, expected_old) and new in (None, expected_new) and listed == expected_new
        if not agree or not _titled(self.title, f"a/{expected_old}", f"b/{expected_new}"):
            raise _broken(f"the header names several paths: {old!r}, {new!r}, {listed!r}")
        return listed

    def listed(self) -> str:
        """The path by this reader's own lights; ``path`` checks it against the rest of the header."""
        for name in (self.names.get("+++"), self.names.get("---"), self.moves.get(b"to")):
            if name is not None:
                return name
        # Neither lines with names nor a move: an empty file or a mode, whose title names one path twice.
        left = self.title[: (len(self.title) - 1) // 2]
        name = _unquote(left)
        if not name.startswith("a/"):
            raise _broken(f"cannot read the path in {self.title[:200]!r}")
        return name[2:]

    def records(self, listed: str) -> list[PatchEntry]:
        path = self.path(listed)
        modes = {*self.modes.values(), *([self.index_mode] if self.index_mode else [])}
        if odd := modes - _FILE_MODES - {_LINK_MODE}:
            raise _broken(f"{path!r} has mode {min(odd).decode()} (a submodule or a special file)")
        link = _LINK_MODE in modes
        if self.moves:
            gone = [] if self.is_copy else [PatchEntry(path=self.moves[b"from"], kind="delete", is_symlink=link)]
            return [*gone, PatchEntry(path=path, kind="add", is_symlink=link)]
        kind: Kind = "modify"
        if b"new file mode" in self.modes:
            kind = "add"
        elif b"deleted file mode" in self.modes:
            kind = "delete"
        elif not self.hunks:
            kind = "mode"
        return [PatchEntry(path=path, kind=kind, is_symlink=link)]


def _unquote(raw: bytes) -> str:
    r"""A path of a header: as it is, or in quotes with \ooo and letter escapes."""
    if not raw.startswith(b'"'):
        return raw.decode("utf-8", "surrogateescape")
    if not _QUOTED.fullmatch(raw):
        raise _broken(f"badly quoted path {raw[:200]!r}")

    def plain(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([_ESCAPES[code] if code in _ESCAPES else int(code, 8)])

    return re.sub(rb"\\([0-3][0-7]{2}|.)", plain, raw[1:-1]).decode("utf-8", "surrogateescape")


def _titled(title: bytes, old: str, new: str) -> bool:
    """Whether the ``diff --git`` line names these two paths, each as it is or in quotes."""
    lefts = [old.encode("utf-8", "surrogateescape")]
    if (match := _QUOTED.match(title)) and _unquote(match[0]) == old:
        lefts.append(match[0])
    rights = [title[len(left) + 1 :] for left in lefts if title.startswith(left + b" ")]
    return any(_unquote(right) == new for right in rights)


def _side(line: bytes, prefix: bytes) -> str | None:
    """The path of a ``---`` or ``+++`` line; None for /dev/null."""
    # Git ends a name that holds a space with a tab.
    raw = line[4:] if line.endswith(b'"') else line[4:].removesuffix(b"\t")
    if raw == b"/dev/null":
        return None
    name = _unquote(raw)
    if not name.startswith(prefix.decode()):
        raise _broken(f"path {name[:200]!r} does not begin with {prefix.decode()}")
    return name[len(prefix) :]


def _header_line(section: _Section, line: bytes) -> bool:
    """Take in one line between ``diff --git`` and the first hunk; False if it is not one of those."""
    if match := _MODE.fullmatch(line):
        section.modes[match[1]] = match[2]
    elif match := _INDEX.fullmatch(line):
        section.index_mode = match[1] or section.index_mode
    elif match := _MOVE.fullmatch(line):
        section.is_copy = match[1] == b"copy"
        section.moves[match[2]] = _unquote(match[3])
    elif line.startswith(b"--- "):
        section.names["---"] = _side(line, b"a/")
    elif line.startswith(b"+++ ") and "---" in section.names:
        section.names["+++"] = _side(line, b"b/")
    elif line.startswith((b"GIT binary patch", b"Binary files ")):
        raise _broken("it holds a binary file")
    else:
        return bool(_SIMILARITY.fullmatch(line))
    return True


def _skip_hunk(lines: list[bytes], start: int) -> int:
    """The index of the line behind the hunk at ``start``, by the counts in its header, as git does."""
    match = _HUNK.match(lines[start])
    if match is None:
        raise _broken(f"line {start + 1}: bad hunk header")
    old, new = (1 if count is None else int(count) for count in match.groups())
    at = start + 1
    while (old or new) and at < len(lines):
        mark = lines[at][:1]
        if mark not in (b" ", b"-", b"+", b"\\", b""):
            raise _broken(f"line {at + 1}: not a line of a hunk")
        # Some mailers strip the space of an empty context line; git accepts that.
        old -= mark in (b" ", b"-", b"")
        new -= mark in (b" ", b"+", b"")
        at += 1
    if old or new:
        raise _broken(f"line {start + 1}: the hunk's line counts are wrong")
    return at + 1 if at < len(lines) and lines[at].startswith(b"\\ ") else at


def _sections(patch: bytes) -> list[_Section]:
    lines = patch.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    sections: list[_Section] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith(b"diff --git "):
            sections.append(_Section(line.removeprefix(b"diff --git ")))
        elif not sections:
            raise _broken(f"line {at + 1}: expected 'diff --git', found {line[:80]!r}")
        elif line.startswith(b"@@ ") and len(sections[-1].names) == 2:
            sections[-1].hunks += 1
            at = _skip_hunk(lines, at)
            continue
        elif sections[-1].hunks or not _header_line(sections[-1], line):
            raise _broken(f"line {at + 1}: unexpected {line[:80]!r}")
        at += 1
    return sections


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSection:
    """One file's part of a patch: its bytes, the paths it changes, and whether it holds a binary file."""

    text: bytes
    entries: tuple[PatchEntry, ...]
    is_binary: bool = False


def split_patch(patch: bytes) -> list[PatchSection]:
    """The parts of a patch, each to be taken or left out. What is taken must still go through ``patch_paths``.

    Raises:
        FormatError: it is not in the format of ``git diff``, or a part is a submodule or a special file.
    """
    lines = patch.split(b"\n")
    starts = [at for at, line in _outside_hunks(lines) if line.startswith(b"diff --git ")]
    if not starts or any(line.strip() for line in lines[: starts[0]]):
        raise _broken(f"line 1: expected 'diff --git', found {lines[0][:80]!r}")
    parts = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        body = lines[start:end]
        text = b"\n".join(body) + (b"" if body[-1] == b"" and end == len(lines) else b"\n")
        binary = any(line.startswith((b"GIT binary patch", b"Binary files ")) for _, line in _outside_hunks(body))
        if binary:
            header = [line for line in body if _MODE.fullmatch(line) or _INDEX.fullmatch(line)]
            section = _sections(b"\n".join([body[0], *header]))[0]
        else:
            section = _sections(text)[0]
        parts.append(PatchSection(text=text, entries=tuple(section.records(section.listed())), is_binary=binary))
    return parts


def _outside_hunks(lines: list[bytes]) -> Iterator[tuple[int, bytes]]:
    """The numbered lines of a patch that stand in no hunk."""
    at, named = 0, False
    while at < len(lines):
        line = lines[at]
        named = (named or line.startswith(b"+++ ")) and not line.startswith(b"diff --git ")
        if named and line.startswith(b"@@ "):
            at = _skip_hunk(lines, at)
            continue
        yield at, line
        at += 1


def patch_paths(patch: bytes, *, allow_links: bool = False) -> list[PatchEntry]:
    """The paths that a patch changes, read strictly and checked against git's own reading.

    Raises:
        FormatError: it is not in the format of ``git diff``; a path is absolute, holds ``..`` or
            ``.git``; it holds a submodule, a binary file, or (unless ``allow_links``) a symbolic link.
    """
    if not patch.strip():
        return []
    sections = _sections(patch)
    try:
        out = git(["apply", "--numstat", "-z", "-p1", "-"], stdin=patch, extra_env={"GIT_DIR": os.devnull})
    except CommandError as error:
        raise _broken(error.stderr.strip() or str(error)) from error
    listed = [field.split(b"\t", 2)[-1].decode("utf-8", "surrogateescape") for field in out.split(b"\0")[:-1]]
    if len(listed) != len(sections):
        raise _broken(f"git reads {len(listed)} files in it, its headers name {len(sections)}")
    records = [r for section, path in zip(sections, listed, strict=True) for r in section.records(path)]
    for record in records:
        if problem := safepath.path_problem(record.path):
            raise _broken(f"unsafe path {record.path!r}: {problem}")
        if record.is_symlink and not allow_links:
            raise _broken(f"{record.path!r} is a symbolic link")
    return records
