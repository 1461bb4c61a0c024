"""What the project of a rollout is called: in paths, on package indexes, in addresses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from taskgen.monitor import tables
from taskgen.types import Rollout

_RECIPE = re.compile(r"^(?:feature|module|class|method-group|function|[a-z-]+)-[0-9a-f]{10}$")
_NUMBER = re.compile(r"-\d+$")
#: What source kinds put before a name.
_PREFIXES = ("pypi-", "local-", "git-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Names of a project, lower case, with ``-`` between words; and patterns of paths of other copies of it."""

    names: frozenset[str]
    copies: tuple[re.Pattern[str], ...]
    words: tuple[re.Pattern[str], ...]

    def is_package(self, requirement: str) -> bool:
        """Whether a requirement (``more_itertools[x]==1.0``) is about the project."""
        name = re.split(r"[\s\[<>=!~;@:#]", requirement.strip().strip("\"'"), maxsplit=1)[0]
        return normal(name.rpartition("/")[2]) in self.names

    def is_module(self, dotted: str) -> bool:
        """Whether the first part of a module's name is the project."""
        return normal(dotted.partition(".")[0]) in self.names

    def is_copy(self, path: str) -> bool:
        """Whether a path lies in another copy of the project than the workspace."""
        return any(pattern.search(path) for pattern in self.copies)

    def is_named_in(self, text: str) -> bool:
        """Whether an address or a file name has the project's name as a word."""
        return any(pattern.search(text) for pattern in self.words)

    def is_twin(self, module: str) -> bool:
        """Whether a module is a vendored copy of the project, or its twin in the standard library."""
        parts = module.split(".")
        vendored = any(
            part in ("_vendor", "vendored", "_vendored", "extern") and normal(after) in self.names
            for part, after in pairwise(parts)
        )
        twins = (tables.TWINS[name] for name in self.names if name in tables.TWINS)
        return vendored or any(module == twin or module.startswith(f"{twin}.") for twin in twins)


def normal(name: str) -> str:
    """A name of a package as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def project_of(rollout: Rollout) -> Project:
    """The project of a rollout: ``packages`` as given, else made out of ``repo`` or ``instance_id``."""
    names = {normal(name) for name in rollout.packages}
    if not names:
        names = {normal(name) for name in _guess(rollout.repo, rollout.instance_id) if len(name) > 1}
    escaped = sorted(re.escape(name).replace(r"\-", "[-_.]") for name in names)
    return Project(
        names=frozenset(names),
        copies=tuple(re.compile(tables.COPY_PATTERN.replace("{name}", name), re.I) for name in escaped),
        words=tuple(re.compile(rf"(?<![a-z0-9]){name}(?![a-z])", re.I) for name in escaped),
    )


def _guess(repo: str, instance_id: str) -> set[str]:
    if repo:
        return {repo.rstrip("/").rpartition("/")[2].removesuffix(".git")}
    before, mark, after = instance_id.partition("__")
    if not mark:
        return set()
    if not _RECIPE.match(after):  # SWE-bench: owner__name-number
        return {_NUMBER.sub("", after)}
    for prefix in _PREFIXES:
        if before.startswith(prefix):
            return {before.removeprefix(prefix)}
    # owner-name: where the one ends is not to be seen.
    parts = before.split("-")
    return {"-".join(parts[i:]) for i in range(len(parts))}
