"""What is taken of a model's work: text of source files under the project's own packages, and nothing else.

A patch or a tree comes from a hostile place. A file that could steer the runner, stand in for another module or
hide what it is (a test, a configuration, a start-up hook, bytecode, a link, another encoding) is left out and
reported; the rest is graded. Nothing of it is run, imported or read by git in the agent's repository.
"""

from __future__ import annotations

import io
import os
import re
import stat
import tarfile
import tempfile
import tokenize
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from taskgen import archive, patches, safepath
from taskgen.archive import ArchiveEntry
from taskgen.errors import FormatError
from taskgen.language import Language
from taskgen.patchread import patch_paths, split_patch

MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 16 << 20
MAX_FILES = 2000
#: A tree may hold what an agent installed or downloaded; past this it is not read any further.
MAX_TREE_FILES = 200_000
_HOOKS = re.compile(
    r"(?i)(?:^|/)(?:conftest|sitecustomize|usercustomize)\.py$"
    r"|\.pth$|\.egg-link$|(?:^|/)[^/]+\.(?:dist-info|egg-info)(?:/|$)|(?:^|/)__pycache__(?:/|$)"
)
_CONFIGURATION = re.compile(
    r"(?i)(?:^|/)(?:\.?pytest\.(?:ini|toml)|tox\.ini|tox\.toml|setup\.cfg|pyproject\.toml|\.coveragerc|"
    r"makefile|pip\.conf|uv\.toml|pixi\.toml|pdm\.toml)$"
)
_UTF8 = {"utf-8", "utf-8-sig"}


class DoesNotApply(FormatError):
    """A patch in the right format that does not fit the workspace."""


Changed = Mapping[str, ArchiveEntry | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A path that was left out, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """What is graded: path -> the file as the agent left it, or None where it was deleted; and what was left out."""

    changes: Changed
    refused: tuple[Refused, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What may be changed.

    Attributes:
        roots: folders of the project's packages, and single modules; what lies elsewhere is refused.
        suffixes: of source files.
        is_test: whether a path belongs to the tests, which are laid over anyway.
        workspace: the tree that the agent got.
    """

    roots: frozenset[str]
    suffixes: tuple[str, ...]
    is_test: Callable[[str], bool]
    workspace: Mapping[str, ArchiveEntry]

    @classmethod
    def of(
        cls,
        language: Language,
        *,
        sources: Iterable[str],
        test_files: Iterable[str],
        workspace: Mapping[str, ArchiveEntry],
    ) -> Rules:
        """The rules of a task: ``sources`` are the project's source files, those that went included."""
        listed = frozenset(test_files)
        return cls(
            roots=frozenset(map(_package_root, sources)),
            suffixes=language.suffixes,
            is_test=lambda path: path in listed or language.is_test_file(path),
            workspace=workspace,
        )

    def problem(self, path: str) -> str:
        """Why a path may not be changed; '' if it may."""
        if unsafe := safepath.path_problem(path):
            return unsafe
        if not path.isprintable() or "\\" in path or unicodedata.normalize("NFKC", path) != path:
            return "a name with control, look-alike or unusual characters"
        if self.is_test(path):
            return "a test file (the tests are laid over anyway)"
        if _HOOKS.search(path):
            return "a file that Python or the runner loads by itself"
        if _CONFIGURATION.search(path):
            return "a configuration"
        parts = PurePosixPath(path).parts
        if any(part.startswith(".") for part in parts):
            return "a hidden file"
        if not any(path == root or path.startswith(root + "/") for root in self.roots):
            return "outside of the project's packages"
        if path not in self.workspace and not path.endswith(self.suffixes):
            return "not a source file"
        return self._clash(path)

    def _clash(self, path: str) -> str:
        """A name that differs from one of the workspace by case alone, or a module beside a package of its name."""
        if path in self.workspace:
            return ""
        folded = path.casefold()
        if any(other.casefold() == folded for other in self.workspace):
            return "differs from a file of the workspace by upper and lower case alone"
        stem = path.rsplit(".", 1)[0]
        package = f"{stem}/__init__.py"
        module = PurePosixPath(path).parent.as_posix() + ".py"
        if package in self.workspace or (path.endswith("/__init__.py") and module in self.workspace):
            return "would take the place of another module of the workspace"
        return ""


def _package_root(path: str) -> str:
    """The package's folder, or the single module, that a source file belongs to: what is below it may be changed."""
    parts = PurePosixPath(path).parts
    depth = 2 if parts[0] == "src" else 1
    return "/".join(parts[:depth])


def content_problem(entry: ArchiveEntry) -> str:
    """Why the content of a file is not taken; '' if it is plain UTF-8 text."""
    if entry.link_target is not None:
        return "a symbolic link"
    if len(entry.content) > MAX_FILE_BYTES:
        return f"larger than {MAX_FILE_BYTES} bytes"
    if b"\0" in entry.content:
        return "a binary file"
    try:
        entry.content.decode("utf-8")
    except UnicodeDecodeError:
        return "not UTF-8"
    if entry.path.endswith((".py", ".pyi")):
        try:
            encoding = tokenize.detect_encoding(io.BytesIO(entry.content).readline)[0]
        except SyntaxError:
            return "declares an unknown encoding"
        if encoding not in _UTF8:
            return f"declares the encoding {encoding}"
    return ""


def from_patch(patch: bytes, rules: Rules) -> Intake:
    """The changes of a unified diff (-p1, against the workspace) whose paths and contents are allowed.

    Raises:
        FormatError: it is no patch.
        DoesNotApply: what is allowed of it does not fit the workspace.
    """
    if not patch.strip():
        return Intake(changes={})
    refused, kept, touched = [], [], set()
    for section in split_patch(patch):
        reasons = {e.path: "a symbolic link" if e.is_symlink else rules.problem(e.path) for e in section.entries}
        if section.is_binary:
            reasons |= dict.fromkeys(reasons, "a binary file")
        refused += [Refused(path=path, reason=reason) for path, reason in reasons.items() if reason]
        # Of a rename with one forbidden side nothing is taken.
        if not any(reasons.values()):
            kept.append(section.text)
            touched |= set(reasons)
    if len(touched) > MAX_FILES or sum(map(len, kept)) > MAX_TOTAL_BYTES:
        raise FormatError(f"the patch changes more than {MAX_FILES} files, or holds more than {MAX_TOTAL_BYTES} bytes")
    return _judged(_applied(b"".join(kept), touched, rules.workspace), refused)


def _applied(patch: bytes, touched: set[str], workspace: Mapping[str, ArchiveEntry]) -> dict[str, ArchiveEntry | None]:
    if not touched:
        return {}
    with tempfile.TemporaryDirectory(prefix="taskgen-grade-") as folder:
        root = Path(folder)
        archive.write_entries([workspace[p] for p in touched if p in workspace], root)
        if {entry.path for entry in patch_paths(patch)} != touched:
            raise FormatError("not an acceptable patch: git reads other paths in it than its headers name")
        try:
            patches.apply_patch(patch, root)
        except FormatError as error:
            raise DoesNotApply(str(error.args[0])) from error
        after = {entry.path: entry for entry in archive.entries_of(root)}
    return {path: after.get(path) for path in touched}


def from_tree(tree: Path, rules: Rules) -> Intake:
    """The changes of a tree (a folder, or a ``.tar``) against the workspace. Links are not followed, ``.git`` is not
    entered, and what is neither file nor folder is refused.

    Raises:
        FormatError: it is neither a folder nor a tar archive, or holds too much.
    """
    changes: dict[str, ArchiveEntry | None] = {}
    refused, seen, total = [], set(), 0
    for number, found in enumerate(_members(tree)):
        if number > MAX_TREE_FILES:
            raise FormatError(f"{tree} holds more than {MAX_TREE_FILES} files")
        path = found.path
        seen.add(path)
        if found.problem or (reason := rules.problem(path)):
            if found.problem or not _same(found.entry(), rules.workspace.get(path)):
                refused.append(Refused(path=path, reason=found.problem or reason))
            continue
        entry = found.entry()
        if entry is not None and not _same(entry, rules.workspace.get(path)):
            total += len(entry.content)
            changes[path] = entry
        if total > MAX_TOTAL_BYTES or len(changes) > MAX_FILES:
            raise FormatError(f"{tree} changes more than {MAX_FILES} files or {MAX_TOTAL_BYTES} bytes")
    for path in rules.workspace.keys() - seen:
        if reason := rules.problem(path):
            refused.append(Refused(path=path, reason=f"deleted; {reason}"))
        else:
            changes[path] = None
    return _judged(changes, refused)


def _same(entry: ArchiveEntry | None, other: ArchiveEntry | None) -> bool:
    """Whether a file is the workspace's, mode apart."""
    if entry is None or other is None:
        return False
    return (entry.content, entry.link_target) == (other.content, other.link_target)


def _judged(changes: Changed, refused: list[Refused]) -> Intake:
    taken: dict[str, ArchiveEntry | None] = {}
    for path, entry in sorted(changes.items()):
        if entry is not None and (reason := content_problem(entry)):
            refused.append(Refused(path=path, reason=reason))
        else:
            taken[path] = entry
    return Intake(changes=taken, refused=tuple(sorted(refused, key=lambda r: (r.path, r.reason))))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """Something in a tree. ``read``: its content; only asked for what may be taken."""

    path: str
    problem: str = ""
    read: Callable[[], bytes] = bytes
    link_target: str | None = None

    def entry(self) -> ArchiveEntry | None:
        if self.problem and self.link_target is None:
            return None
        content = b"" if self.link_target is not None else self.read()
        return ArchiveEntry(path=self.path, content=content, link_target=self.link_target)


def _members(tree: Path) -> Iterator[_Member]:
    if tree.is_dir() and not tree.is_symlink():
        return _folder_members(tree, "")
    if tree.is_file() and not tree.is_symlink():
        return _tar_members(tree)
    raise FormatError(f"{tree} is neither a folder nor a tar archive")


def _folder_members(root: Path, inside: str) -> Iterator[_Member]:
    with os.scandir(root / inside) as listed:
        found = sorted(listed, key=lambda e: e.name)
    for item in found:
        path = f"{inside}/{item.name}" if inside else item.name
        mode = item.stat(follow_symlinks=False)
        if stat.S_ISDIR(mode.st_mode):
            if item.name.lower() != ".git":
                yield from _folder_members(root, path)
        elif stat.S_ISLNK(mode.st_mode):
            yield _Member(path=path, problem="a symbolic link", link_target=safepath.link_target(root / path))
        elif not stat.S_ISREG(mode.st_mode):
            yield _Member(path=path, problem="neither a file nor a folder")
        elif mode.st_nlink > 1:
            yield _Member(path=path, problem="a hard link")
        else:
            yield _Member(path=path, read=lambda place=root / path: _read_file(place))  # type: ignore[misc]


def _read_file(place: Path) -> bytes:
    handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as stream:
        return stream.read(MAX_FILE_BYTES + 1)


def _tar_members(file: Path) -> Iterator[_Member]:
    try:
        with tarfile.open(file, mode="r:", encoding="utf-8") as tar:
            for info in tar:
                path = info.name.removeprefix("./")
                if info.isdir() or path == ".git" or path.startswith(".git/") or "/.git/" in path:
                    continue
                if info.issym():
                    yield _Member(path=path, problem="a symbolic link", link_target=info.linkname)
                elif not info.isreg() or info.issparse():
                    yield _Member(path=path, problem="a hard link" if info.islnk() else "neither a file nor a folder")
                else:
                    stream = tar.extractfile(info)
                    data = stream.read(MAX_FILE_BYTES + 1) if stream is not None else b""
                    yield _Member(path=path, read=lambda data=data: data)  # type: ignore[misc]
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise FormatError(f"{file} is not a tar archive that can be read: {error}") from error
