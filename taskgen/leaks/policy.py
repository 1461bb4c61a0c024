"""The policy: what each level of recoverability means at each kind of place. Change it here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from taskgen.leaks.records import Level
from taskgen.scrubrules import Scrubber


class Place(StrEnum):
    """What kind of file something was found in."""

    SOURCE = "source"
    DOCUMENT = "document"
    ARTIFACT = "artifact"
    ENVIRONMENT = "environment"


class Action(StrEnum):
    """What a finding asks for. REJECT and SCRUB fail the audit."""

    REJECT = "reject"
    SCRUB = "scrub"
    REPORT = "report"
    SPECIFICATION = "specification"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """An action and the severity to show it with: error, warning or note."""

    action: Action
    severity: str


_REJECT = Ruling(action=Action.REJECT, severity="error")
_SCRUB = Ruling(action=Action.SCRUB, severity="error")
_REPORT = Ruling(action=Action.REPORT, severity="warning")
_NOTE = Ruling(action=Action.REPORT, severity="note")
_SPECIFICATION = Ruling(action=Action.SPECIFICATION, severity="note")

# fmt: off
TABLE: dict[Place, dict[Level, Ruling]] = {
    # Code of the repository itself: a copy of the body cannot be taken out without changing the repository. Headers
    # (interfaces, overloads), constants and call sites say what is to be written.
    Place.SOURCE:      {Level.BODY: _REJECT, Level.SIGNATURE: _SPECIFICATION, Level.DOCSTRING: _SPECIFICATION,
                        Level.CONSTANTS: _SPECIFICATION, Level.NAME: _SPECIFICATION},
    # Documentation and changelogs are what an engineer would read.
    Place.DOCUMENT:    {Level.BODY: _REJECT, Level.SIGNATURE: _SPECIFICATION, Level.DOCSTRING: _SPECIFICATION,
                        Level.CONSTANTS: _SPECIFICATION, Level.NAME: _SPECIFICATION},
    # Caches, builds, archives, compiled files: nobody needs them to do the task.
    Place.ARTIFACT:    {Level.BODY: _SCRUB, Level.SIGNATURE: _SCRUB, Level.DOCSTRING: _SCRUB,
                        Level.CONSTANTS: _REPORT, Level.NAME: _NOTE},
    # What is installed beside the workspace. A twin that others need cannot go.
    Place.ENVIRONMENT: {Level.BODY: _REJECT, Level.SIGNATURE: _REPORT, Level.DOCSTRING: _REPORT,
                        Level.CONSTANTS: _NOTE, Level.NAME: _NOTE},
}
# fmt: on

_DOCUMENTS = (
    "*.md", "*.rst", "*.txt", "*.adoc", "*.org", "*.tex", "readme*", "changes*", "changelog*", "history*", "news*",
    "authors*", "license*", "copying*", "*.1", "*.3",
)  # fmt: skip
#: Folders that tools fill; what is in them was generated, whatever it is.
GENERATED = frozenset({
    ".cache", ".gradle", ".history", ".ipynb_checkpoints", ".next", ".nyc_output", ".parcel-cache", ".pc", ".turbo",
    ".vite", "__pycache__", "_build", "apidocs", "build", "coverage", "dist", "htmlcov", "node_modules", "out",
    "site-packages", "target", "third_party_cache",
})  # fmt: skip
#: Leftovers that are text and carry code.
_LEFTOVERS = (
    "*.orig", "*.rej", "*.bak", "*.old", "*.save", "*~", "*.swp", "*.swo", "*.patch", "*.diff", "*.map", "*.min.js",
    "*.i", "*.s", "*.ii", ".*_history", ".coverage*", "tags", "TAGS", "*.pyi.cache", "*.tsbuildinfo", "*.lcov",
    "core", "core.[0-9]*", "*.log", "*.sql",
)  # fmt: skip


def ruling(level: Level, place: Place, *, is_stated: bool, has_machine_code: bool = False) -> Ruling:
    """What a finding means.

    Args:
        is_stated: the task's own statement or the workspace already tells as much (a signature, a docstring).
        has_machine_code: the compiled body is there, whatever the level of what can be read.
    """
    if has_machine_code and place is Place.ARTIFACT:
        return _SCRUB
    if is_stated and level in (Level.SIGNATURE, Level.DOCSTRING):
        return _NOTE
    return TABLE[place][level]


def place_of(path: str, formats: tuple[str, ...], *, in_environment: bool, scrubber: Scrubber | None = None) -> Place:
    """The kind of place of a file of the target; ``formats`` are the decoders that its content went through."""
    if in_environment:
        return Place.ENVIRONMENT
    parts = path.split("/")
    name = parts[-1]
    if scrubber is not None and scrubber.rule_for(path) is not None:
        return Place.ARTIFACT
    if any(part in GENERATED for part in parts[:-1]) or any(fnmatchcase(name, p) for p in _LEFTOVERS):
        return Place.ARTIFACT
    if any(fnmatchcase(name.lower(), pattern) for pattern in _DOCUMENTS):
        return Place.DOCUMENT if not formats else Place.ARTIFACT
    return Place.ARTIFACT if formats else Place.SOURCE


def is_own(path: str, scrubber: Scrubber) -> bool:
    """Whether a file is the repository's own source, and was not left there by a tool."""
    return place_of(path, (), in_environment=False, scrubber=scrubber) is Place.SOURCE
