"""What comes of the repositories of a build, and who is told while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(kw_only=True)
class RepoSummary:
    """What came of a repository. ``error`` is set when it was skipped.

    Attributes:
        not_run: tasks that could not be attempted (policy, sandbox), with the reason; the same command asks again.
        attempted: with a target, the tasks that were attempted, in order: id, setting of the knobs, passes, n.
    """

    name: str
    commit: str = ""
    error: str = ""
    proposed: int = 0
    tried: int = 0
    accepted: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    unpredicted: int = 0
    not_run: dict[str, str] = field(default_factory=dict)
    attempted: list[dict[str, Any]] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def n_accepted(self) -> int:
        return sum(self.accepted.values())

    def accept(self, recipe: str) -> None:
        """Count a task."""
        self.accepted[recipe] = self.accepted.get(recipe, 0) + 1

    def reject(self, stage: str, reason: str) -> None:
        """Count a candidate that is no task."""
        text = f"{stage}: {reason}"
        self.rejected[text] = self.rejected.get(text, 0) + 1


class Progress(Protocol):
    """Told what happens, from several threads."""

    def stage(self, repo: str, stage: str) -> None:
        """A repository enters a stage."""

    def candidate(self, repo: str, accepted: bool, done: int, planned: int) -> None:
        """A candidate was decided; ``planned`` is how many this round and the earlier ones have."""

    def finished(self, summary: RepoSummary) -> None:
        """A repository is done or was skipped."""
