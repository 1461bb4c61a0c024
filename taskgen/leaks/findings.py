"""A finding of an audit."""

from __future__ import annotations

import re
from dataclasses import dataclass

_USER = re.compile(r"(?<=://)[^/\s@]*(?:@[^/\s@]*)*@")
_VALUE = re.compile(r"(?i)((?:_auth|token|passw|secret|api_?key)\w*[\"']?\s*[=:]\s*)\S+")


def without_credentials(text: str) -> str:
    """A line of a configuration as an excerpt may show it: no user, password or token of an URL or a setting."""
    return _VALUE.sub(r"\1***", _USER.sub("***@", text))


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
