"""From proposals to candidates: bounds, identity, order, and no two that delete mostly the same lines."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from taskgen.deletions.survey import Proposal, Survey, count, documented_share
from taskgen.deletions.table import OPERATORS
from taskgen.types import Candidate, Deleted, Deletion, Recipe, Removal, RepoSpec

#: Two tasks of a repository share at most this part of the smaller one's lines.
MAX_OVERLAP = 0.5
#: The least share of a candidate's public definitions that somebody could know from docstrings or docs.
MIN_DOCUMENTED = 0.34


def instance_id(spec: RepoSpec, base_commit: str, recipe: str, deletion: Deletion, *, hints: bool = False) -> str:
    """``<repo-slug>__<recipe>-<10 hex digits>``: the same input gives the same id on any machine. With hints in its
    statement a task is another task."""
    files = [
        [path, hashlib.sha256(data).hexdigest() if data is not None else None] for path, data in deletion.files.items()
    ]
    parts = [spec.name, base_commit, sorted(files), *(["hints"] if hints else [])]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return f"{spec.slug}__{recipe}-{digest[:10]}"


def propose(survey: Survey, recipes: Sequence[Recipe], spec: RepoSpec, base_commit: str) -> list[Candidate]:
    """All candidates in the recipes' bounds, the most promising first; one for each distinct deletion."""
    found: dict[str, Candidate] = {}
    for recipe in recipes:
        for proposal in OPERATORS[recipe.operator].propose(survey, recipe):
            if not within_bounds(survey, proposal, recipe):
                continue
            name = instance_id(spec, base_commit, recipe.name, proposal.deletion, hints=recipe.hints)
            found.setdefault(name, _candidate(survey, proposal, recipe, name))
    return sorted(found.values(), key=lambda c: (-c.score, c.instance_id))


def _candidate(survey: Survey, proposal: Proposal, recipe: Recipe, name: str) -> Candidate:
    ids = survey.baseline.coverage.ids
    return Candidate(
        instance_id=name,
        recipe=recipe.name,
        deletion=proposal.deletion,
        covering=ids(survey.covering(proposal.deletion)),
        predicted=ids(survey.predicted(proposal.deletion)),
        score=round(proposal.score, 6),
        keep_docstring=recipe.keep_docstring,
        hints=recipe.hints,
    )


def within_bounds(survey: Survey, proposal: Proposal, recipe: Recipe) -> bool:
    """Whether what is known before any run keeps the recipe's bounds."""
    bounds, deletion = recipe.bounds, proposal.deletion
    predicted, covering = survey.predicted(deletion), survey.covering(deletion)
    collateral = count(predicted & ~covering)
    documented = documented_share(survey, [d.definition for d in deletion.deleted])
    return (
        bounds.min_lines <= deletion.n_lines <= bounds.max_lines
        and bounds.min_files <= len(deletion.files) <= bounds.max_files
        and bounds.min_definitions <= len(deletion.deleted) <= bounds.max_definitions
        and 1 <= count(predicted) <= bounds.max_fail_to_pass
        and count(predicted) <= bounds.max_suite_share * count(survey.passing)
        and collateral <= bounds.max_collateral_share * count(predicted)
        and documented >= MIN_DOCUMENTED
        and any(_can_be_described(deleted) for deleted in deletion.deleted)
    )


def _can_be_described(deleted: Deleted) -> bool:
    """Whether a statement can name it: its signature is still there, or its name is public."""
    return deleted.removal is Removal.BODY or not deleted.definition.name.startswith("_")


def next_batch(
    candidates: Sequence[Candidate],
    recipes: Sequence[Recipe],
    accepted: Iterable[Candidate],
    tried: Mapping[str, object],
) -> list[Candidate]:
    """Candidates to try next: as many a recipe as it still lacks, none overlapping with another or an accepted one.

    Recipes take turns, so that a feature and the functions in it do not crowd each other out by chance. The
    choice depends on what was accepted and tried, never on timing.
    """
    accepted = list(accepted)
    taken = [_lines(c) for c in accepted]
    missing = Counter({r.name: r.max_tasks for r in recipes})
    missing.subtract(c.recipe for c in accepted)
    left = Counter({r.name: r.max_candidates for r in recipes})
    left.subtract(c.recipe for c in candidates if c.instance_id in tried)
    batch: list[Candidate] = []
    queues = {r.name: [c for c in candidates if c.recipe == r.name and c.instance_id not in tried] for r in recipes}
    while True:
        before = len(batch)
        for recipe in recipes:
            queue = queues[recipe.name]
            while queue and missing[recipe.name] > 0 and left[recipe.name] > 0:
                candidate = queue.pop(0)
                lines = _lines(candidate)
                if all(not _overlap(lines, other) for other in taken):
                    batch.append(candidate)
                    taken.append(lines)
                    missing[recipe.name] -= 1
                    left[recipe.name] -= 1
                    break
        if len(batch) == before:
            return batch


def disjoint(ranked: Iterable[Candidate], accepted: Iterable[Candidate], n: int) -> list[Candidate]:
    """The first ``n`` candidates, less those that overlap with an accepted one or with one that comes before."""
    taken = [_lines(c) for c in accepted]
    found: list[Candidate] = []
    for candidate in ranked:
        if len(found) == n:
            break
        lines = _lines(candidate)
        if all(not _overlap(lines, other) for other in taken):
            found.append(candidate)
            taken.append(lines)
    return found


def _lines(candidate: Candidate) -> frozenset[tuple[str, int]]:
    return frozenset((path, line) for path, lines in candidate.deletion.removed_lines.items() for line in lines)


def _overlap(a: frozenset[tuple[str, int]], b: frozenset[tuple[str, int]]) -> bool:
    return len(a & b) > MAX_OVERLAP * min(len(a), len(b))
