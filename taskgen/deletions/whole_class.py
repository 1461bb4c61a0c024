"""A whole class goes, with its export and the imports of it."""

from __future__ import annotations

from collections.abc import Iterator

from taskgen.deletions.survey import Proposal, Survey, documented_share, size_score
from taskgen.languages.python_surgery import Irreparable
from taskgen.types import Recipe

BEST_LINES = 80


def propose(survey: Survey, recipe: Recipe) -> Iterator[Proposal]:
    """Each class that what remains can do without."""
    for owner in survey.classes:
        if not owner.end_line - owner.start_line < recipe.bounds.max_lines:
            continue
        group = survey.tests_of(owner)
        surgery = survey.operate(group)
        try:
            surgery.remove(owner)
            surgery.remove_dead()
        except Irreparable:
            continue
        deletion = surgery.deletion()
        documented = documented_share(survey, [owner, *survey.members(owner)])
        yield Proposal(deletion=deletion, group=group, score=documented + size_score(deletion.n_lines, BEST_LINES))
