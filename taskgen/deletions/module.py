"""A whole file goes, with every reference that only served it."""

from __future__ import annotations

from collections.abc import Iterator

from taskgen.deletions.survey import Proposal, Survey, documented_share, size_score
from taskgen.languages.python_surgery import Irreparable
from taskgen.types import Recipe

BEST_LINES = 150


def propose(survey: Survey, recipe: Recipe) -> Iterator[Proposal]:
    """Each module (no package's __init__, no __main__) that what remains can do without."""
    for path, file in survey.project.sources.items():
        if file.is_package or path.endswith("__main__.py") or not file.definitions:
            continue
        if file.source.count(b"\n") > 2 * recipe.bounds.max_lines:
            continue
        group = 0
        for definition in file.definitions:
            group |= survey.tests_of(definition)
        surgery = survey.operate(group)
        try:
            surgery.remove_file(path)
            surgery.remove_dead()
        except Irreparable:
            continue
        deletion = surgery.deletion()
        documented = documented_share(survey, file.definitions)
        yield Proposal(deletion=deletion, group=group, score=documented + size_score(deletion.n_lines, BEST_LINES))
