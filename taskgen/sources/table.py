"""The kinds of source, and the one way in: ``fetch``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from taskgen.sources import git_source, path, sdist
from taskgen.types import Checkout, RepoSpec, SourceKind

FETCHERS: Mapping[SourceKind, Callable[[RepoSpec, Path], Checkout]] = {
    SourceKind.GIT: git_source.fetch,
    SourceKind.SDIST: sdist.fetch,
    SourceKind.PATH: path.fetch,
}


def fetch(spec: RepoSpec, cache: Path) -> Checkout:
    """Bring a repository into the cache. What is there already is used without the network.

    Several processes may do so at once: each entry is made once. No code of the repository runs.

    Raises:
        SourceError: it cannot be fetched, does not match its checksum, or lacks the revision.
        StoreError: the cache folder is full, not writable, or locked by another process.
        PrerequisiteError: there is no git.
    """
    return FETCHERS[spec.kind](spec, cache)
