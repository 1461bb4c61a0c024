"""A finding of an audit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found, where, what can be recovered from it, and what to do.

    Attributes:
        detector: which detector or decoder found it.
        path: where; names of nested files are joined by ``!``.
        level: name, constants, docstring, signature or body: the most that can be recovered; empty where this is not
            about deleted code.
        definition: the qualified name of the deleted definition, or empty.
        severity: error, warning or note.
        action: reject, scrub, report, or specification (it belongs to the repository and says what to write).
        excerpt: what stands there.
        message: one sentence for people.
        line: counted from 1 in the decoded text; 0: unknown.
    """

    detector: str
    path: str
    level: str
    definition: str
    severity: str
    action: str
    excerpt: str
    message: str
    line: int = 0
