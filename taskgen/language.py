"""The language seam: a language is a plain module with these functions (see ``all_languages``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from taskgen.types import RepoSpec


class Reader(Protocol):
    """Reads files of a pristine tree."""

    @property
    def paths(self) -> Sequence[str]:
        """All paths of the tree, sorted."""

    def read(self, path: str) -> bytes:
        """The bytes of a file. Raises KeyError if the tree has none of that name."""


class Language(Protocol):
    """What build needs to know about a language beyond its syntax."""

    name: str
    #: Endings of source files: what a solution may add.
    suffixes: tuple[str, ...]

    def detect(self, tree: Reader) -> bool:
        """Whether the tree is a project of this language that can be installed and tested."""

    def is_test_file(self, path: str) -> bool:
        """Whether a file belongs to the tests (support files and data in test folders included)."""

    def source_modules(self, tree: Reader, spec: RepoSpec) -> Mapping[str, str]:
        """path -> module name of each source file from which features may be deleted."""

    def test_requirements(self, tree: Reader) -> Sequence[str]:
        """Requirements of the tests that the project declares."""

    def test_arguments(self, tree: Reader, spec: RepoSpec) -> Sequence[str]:
        """Options and paths for the runner. Raises ConfigError if ``test_command`` cannot be understood."""
