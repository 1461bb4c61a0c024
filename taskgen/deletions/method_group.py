"""Several methods of one class that one group of tests exercises."""

from __future__ import annotations

from collections.abc import Iterator

from taskgen.deletions.survey import Proposal, Survey, count, documented_share, size_score
from taskgen.types import Definition, Recipe

BEST_LINES = 45
#: Two methods belong together when their tests overlap by this much (Jaccard index).
MIN_OVERLAP = 0.3


def propose(survey: Survey, recipe: Recipe) -> Iterator[Proposal]:
    """For each class, groups that grow around each of its methods; the same group is proposed once."""
    seen: set[frozenset[tuple[str, str]]] = set()
    for owner in survey.classes:
        methods = [m for m in survey.functions if m.path == owner.path and m.owner == owner.qualified_name]
        methods = [m for m in methods if m.name != "__init__"]
        for seed in methods:
            group = _grow(survey, seed, methods, recipe)
            key = frozenset((m.path, m.qualified_name) for m in group)
            if len(group) >= recipe.bounds.min_definitions and key not in seen:
                seen.add(key)
                yield _proposal(survey, group, recipe)


def _grow(survey: Survey, seed: Definition, methods: list[Definition], recipe: Recipe) -> list[Definition]:
    wanted = survey.tests_of(seed)
    ranked = sorted(methods, key=lambda m: (-_overlap(wanted, survey.tests_of(m)), m.start_byte))
    group, lines = [seed], seed.body_lines
    for method in ranked:
        fits = lines + method.body_lines <= recipe.bounds.max_lines
        if method is seed or _overlap(wanted, survey.tests_of(method)) < MIN_OVERLAP or not fits:
            continue
        if len(group) == recipe.bounds.max_definitions:
            break
        group.append(method)
        lines += method.body_lines
    return sorted(group, key=lambda m: m.start_byte)


def _overlap(a: int, b: int) -> float:
    return count(a & b) / count(a | b) if a | b else 0.0


def _proposal(survey: Survey, group: list[Definition], recipe: Recipe) -> Proposal:
    tests = 0
    for method in group:
        tests |= survey.tests_of(method)
    surgery = survey.operate(tests)
    for method in group:
        surgery.remove_body(method, keep_docstring=recipe.keep_docstring)
    surgery.remove_dead_imports()
    deletion = surgery.deletion()
    return Proposal(
        deletion=deletion,
        group=tests,
        score=documented_share(survey, group) + size_score(deletion.n_lines, BEST_LINES) + len(group) / 8,
    )
