"""The first audit: files of a repository that are kept out of every tree.

Each rule names a place from which the code that a task deletes could be read back (history, bytecode,
built and installed copies), or a file that is not the repository's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubRule:
    """Files that are kept out of a tree. Patterns are shell patterns on whole names, case counts.

    Attributes:
        kind: the name under which removals are counted.
        folders: names of folders that go with all they hold; ``docs/_build`` names a folder in a folder.
        files: names of files.
        holds: the folder goes only if it directly holds one of these.
        spared_by: the folder stays if it directly holds one of these.
        beside: the file goes only if one of these is in the same folder.
        at_root: only at the top of the tree.
    """

    kind: str
    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    spared_by: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    at_root: bool = False


_SOURCES = ("*.py", "*.pyx", "*.pyi", "*.c", "*.cc", "*.cpp", "*.cxx", "*.h", "*.rs", "*.go", "*.java")

# fmt: off
RULES: tuple[ScrubRule, ...] = (
    # .gitignore, .gitattributes and .github stay.
    ScrubRule(kind="version-history", folders=(".git", ".hg", ".svn", ".bzr", ".jj", "_darcs", "CVS"),
              files=(".git", ".gitmodules", ".git-blame-ignore-revs", ".git_archival.txt", ".hgtags")),
    ScrubRule(kind="version-history", folders=("*.git",), holds=("HEAD",)),
    # Debian's quilt keeps the unpatched sources here.
    ScrubRule(kind="version-history", folders=(".pc",), holds=(".version", "applied-patches")),
    ScrubRule(kind="bytecode", folders=("__pycache__",), files=("*.pyc", "*.pyo")),
    ScrubRule(kind="cache", folders=(".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".pytype",
                                     ".tox", ".nox", ".eggs", ".ipynb_checkpoints")),
    ScrubRule(kind="virtual-environment", folders=(".venv",)),
    ScrubRule(kind="virtual-environment", folders=("*",), holds=("pyvenv.cfg",)),
    ScrubRule(kind="installed-copy", folders=("node_modules", "site-packages", "dist-packages", "*.egg-info",
                                              "*.dist-info", "*.egg"),
              files=("*.egg-info", "*.egg", "*.whl")),
    # A package may well be called build: one with an __init__.py is code.
    ScrubRule(kind="build-output", folders=("build",), holds=("lib", "lib.*", "bdist*", "temp.*"),
              spared_by=("__init__.py",)),
    ScrubRule(kind="build-output", folders=("dist",), holds=("*.whl", "*.tar.gz"),
              spared_by=("__init__.py",)),
    ScrubRule(kind="build-output", folders=("docs/_build", "doc/_build")),
    ScrubRule(kind="compiled", files=("*.so", "*.pyd", "*.o"), beside=_SOURCES),
    # .coveragerc is configuration and stays.
    ScrubRule(kind="test-report", folders=("htmlcov",),
              files=(".coverage", ".coverage.*", "coverage.xml", "lcov.info", "junit.xml")),
    ScrubRule(kind="index", files=("tags", "TAGS"), at_root=True),
    ScrubRule(kind="editor-leftover", folders=(".idea", ".vscode"),
              files=("*.orig", "*.rej", "*~", "*.swp", "*.swo", ".DS_Store")),
)
# fmt: on


class Scrubber:
    """Says which rule, if any, keeps a path of a listing out of the tree."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._children: dict[str, set[str]] = {}
        self._folders: dict[str, ScrubRule | None] = {}
        for path in paths:
            parts = path.split("/")
            for depth, name in enumerate(parts):
                self._children.setdefault("/".join(parts[:depth]), set()).add(name)

    def rule_for(self, path: str) -> ScrubRule | None:
        """The first rule that a folder above ``path``, or its own name, falls under."""
        parts = path.split("/")
        for depth in range(1, len(parts)):
            if rule := self._folder_rule("/".join(parts[:depth])):
                return rule
        return self._file_rule(path)

    def _holds(self, folder: str, patterns: tuple[str, ...]) -> bool:
        return any(_matches(name, patterns) for name in self._children.get(folder, ()))

    def _folder_rule(self, folder: str) -> ScrubRule | None:
        if folder not in self._folders:
            self._folders[folder] = next((r for r in RULES if self._folder_goes(folder, r)), None)
        return self._folders[folder]

    def _folder_goes(self, folder: str, rule: ScrubRule) -> bool:
        if rule.at_root and "/" in folder:
            return False
        parts = folder.split("/")
        named = any(
            len(parts) > pattern.count("/") and fnmatchcase("/".join(parts[-1 - pattern.count("/") :]), pattern)
            for pattern in rule.folders
        )
        return named and (not rule.holds or self._holds(folder, rule.holds)) and not self._holds(folder, rule.spared_by)

    def _file_rule(self, path: str) -> ScrubRule | None:
        folder, _, name = path.rpartition("/")
        for rule in RULES:
            if not _matches(name, rule.files) or (rule.at_root and folder):
                continue
            if not rule.beside or self._holds(folder, rule.beside):
                return rule
        return None


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
