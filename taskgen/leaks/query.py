"""What a scan looks for, in a form that travels to other processes and names what is kept of its results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from taskgen.leaks.blob import DEFAULT_LIMITS, Limits
from taskgen.leaks.fingerprints import Fingerprint
from taskgen.leaks.subject import Subject

#: Raise when a scan of the same bytes may find something else: decoders, matching, limits.
SCANNER_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to look for, in a form that travels to other processes.

    Attributes:
        known: words of the workspace (see Matcher).
        thorough: read source files of the fingerprints' languages for renamed copies.
        sparing: see Matcher.
    """

    fingerprints: tuple[Fingerprint, ...]
    known: frozenset[str] = frozenset()
    thorough: bool = True
    sparing: bool = False
    limits: Limits = DEFAULT_LIMITS

    def digest(self) -> str:
        """Names the query; the same in every process."""
        parts = [
            (f.path, f.qualified_name, f.parameters, f.header, f.body, f.lines, f.doc_lines, f.strings, f.numbers)
            for f in self.fingerprints
        ]
        whole = (SCANNER_VERSION, self.thorough, self.sparing, self.limits, sorted(self.known), parts)
        return hashlib.sha256(repr(whole).encode("utf-8", "surrogatepass")).hexdigest()


def make_query(
    subjects: Iterable[Subject], limits: Limits = DEFAULT_LIMITS, *, thorough: bool, sparing: bool = False
) -> Query:
    """A query for all that some subjects protect, in their order."""
    listed = list(subjects)
    return Query(
        fingerprints=tuple(f for subject in listed for f in subject.fingerprints),
        known=frozenset[str]().union(*(subject.known for subject in listed)),
        thorough=thorough,
        sparing=sparing,
        limits=limits,
    )
