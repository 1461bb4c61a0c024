"""One function's or method's body goes; signature and docstring stay as its specification."""

from __future__ import annotations

from collections.abc import Iterator

from taskgen.deletions.survey import Proposal, Survey, count, size_score
from taskgen.types import Recipe

BEST_LINES = 20


def propose(survey: Survey, recipe: Recipe) -> Iterator[Proposal]:
    """Each documented function whose body lies in the recipe's bounds."""
    for definition in survey.functions:
        group = survey.tests_of(definition)
        in_bounds = recipe.bounds.min_lines <= definition.body_lines <= recipe.bounds.max_lines
        if not in_bounds or not survey.is_documented(definition) or definition.name == "__init__":
            continue
        surgery = survey.operate(group)
        if recipe.keep_signature:
            surgery.remove_body(definition, keep_docstring=recipe.keep_docstring)
        else:
            surgery.remove(definition)
        surgery.remove_dead_imports()
        score = size_score(definition.body_lines, BEST_LINES) + min(count(group), 10) / 10
        yield Proposal(
            deletion=surgery.deletion(),
            group=group,
            score=score + (1 if definition.docstring else 0) - (0.5 if definition.name.startswith("_") else 0),
        )
