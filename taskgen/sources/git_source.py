"""Repositories that are cloned from a git URL."""

from __future__ import annotations

import hashlib
from pathlib import Path

from taskgen.errors import SourceError
from taskgen.git import mirror, redacted, resolve
from taskgen.sources.facts import licence_of, tag_version
from taskgen.types import Checkout, RepoSpec, Source, SourceKind


def fetch(spec: RepoSpec, cache: Path) -> Checkout:
    """Mirror the heads and tags of ``spec.location`` and find its revision. Raises as ``table.fetch``."""
    digest = hashlib.sha256(spec.location.encode()).hexdigest()[:16]
    bare = cache / "git" / f"{spec.slug}-{digest}.git"
    try:
        mirror(spec.location, bare, spec.revision)
        commit = resolve(bare, spec.revision)
    except SourceError as error:
        raise SourceError(f"{spec.where}: {spec.name}: {error.args[0]}", hint=error.hint) from error
    moving = not commit.startswith(spec.revision.lower())
    warning = f"{spec.name}: revision {spec.revision!r} may move; it is {commit} now"
    return Checkout(
        name=spec.name,
        source=Source(kind=SourceKind.GIT, url=redacted(spec.location), revision=commit),
        bare=bare,
        commit=commit,
        version=tag_version(bare, commit),
        licence=spec.licence or licence_of(bare, commit),
        warnings=(warning,) if moving else (),
    )
