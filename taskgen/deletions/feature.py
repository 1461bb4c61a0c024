"""A feature: definitions, across files, that one coherent group of tests runs and little else does.

The group of tests is that of a definition, of a test class or of a test file. The members are the definitions
whose tests lie (nearly) all in the group and that refer to each other. Each member goes entirely if what
remains can be repaired and the tests that break are mostly those that run it; otherwise it keeps its signature.
What dies with the members goes too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from taskgen.deletions.survey import Proposal, Survey, count, documented_share, size_score
from taskgen.languages.python_project import Symbol
from taskgen.languages.python_surgery import Irreparable, Surgery
from taskgen.types import Definition, Recipe

#: At least this share of a member's tests belongs to the group.
MIN_PRECISION = 0.8
BEST_LINES = 90
Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Members of a possible feature and the tests that define it."""

    members: tuple[Definition, ...]
    group: int


def propose(survey: Survey, recipe: Recipe) -> Iterator[Proposal]:
    """The most promising clusters, operated on."""
    clusters = sorted(
        _clusters(survey, recipe),
        key=lambda c: (-_promise(survey, c), c.members[0].path, c.members[0].start_byte),
    )
    for cluster in clusters[: 3 * recipe.max_candidates]:
        surgery = survey.operate(cluster.group)
        for member in cluster.members:
            surgery = _take(survey, surgery, member, cluster, recipe)
        finished = surgery.trial()
        try:
            finished.remove_dead()
        except Irreparable:
            finished = surgery
            finished.remove_dead_imports()
        deletion = finished.deletion()
        if len(deletion.deleted) >= recipe.bounds.min_definitions:
            yield Proposal(
                deletion=deletion,
                group=cluster.group,
                score=_promise(survey, cluster) + 0.5 * len(deletion.files),
            )


def _clusters(survey: Survey, recipe: Recipe) -> Iterator[Cluster]:
    seen: set[frozenset[Key]] = set()
    neighbours = _neighbours(survey)
    most = recipe.bounds.max_suite_share * count(survey.passing)
    known = [
        ((d.path, d.qualified_name), d, tests, MIN_PRECISION * count(tests))
        for d in (*survey.classes, *survey.functions)
        if (tests := survey.tests_of(d))
    ]
    for group in _groups(survey):
        if not 1 <= count(group) <= min(most, recipe.bounds.max_fail_to_pass):
            continue
        inside = {key: d for key, d, tests, enough in known if (tests & group).bit_count() >= enough}
        for component in _components(inside, neighbours):
            key = frozenset(component)
            members = [inside[k] for k in component if (k[0], k[1].rpartition(".")[0]) not in component]
            lines = sum(m.end_line - m.start_line + 1 for m in members)
            if len(members) < 2 or key in seen or lines > 1.5 * recipe.bounds.max_lines:
                continue
            seen.add(key)
            members.sort(key=lambda m: (m.kind != "class", m.path, m.start_byte))
            yield Cluster(members=tuple(members), group=_tests(survey, members))


def _groups(survey: Survey) -> Iterator[int]:
    """Groups of tests to start from, without repetition: of a definition, a test class, a test file."""
    found: dict[int, None] = {}
    for definition in (*survey.classes, *survey.functions):
        found.setdefault(survey.tests_of(definition))
    by_prefix: dict[str, int] = defaultdict(int)
    for i, test in enumerate(survey.baseline.coverage.tests):
        parts = test.split("[")[0].split("::")
        for length in range(1, len(parts) + 1):
            by_prefix["::".join(parts[:length])] |= 1 << i
    for bits in by_prefix.values():
        found.setdefault(bits & survey.passing)
    yield from found


def _belongs(survey: Survey, definition: Definition, group: int) -> bool:
    tests = survey.tests_of(definition)
    return bool(tests) and count(tests & group) >= MIN_PRECISION * count(tests)


def _neighbours(survey: Survey) -> dict[Key, set[Key]]:
    """References in both directions; a method and its class are not neighbours by that alone."""
    found: dict[Key, set[Key]] = defaultdict(set)
    for key, targets in survey.references.items():
        for target in targets:
            found[key].add(target)
            found[target].add(key)
    return found


def _components(inside: dict[Key, Definition], neighbours: dict[Key, set[Key]]) -> Iterator[list[Key]]:
    left = dict.fromkeys(inside)
    while left:
        queue, component = [next(iter(left))], []
        left.pop(queue[0])
        while queue:
            key = queue.pop()
            component.append(key)
            near = [k for k in neighbours.get(key, ()) if k in left]
            near += [k for k in left if k[0] == key[0] and k[1].rpartition(".")[0] == key[1]]  # a class's methods
            for k in near:
                if k in left:
                    left.pop(k)
                    queue.append(k)
        yield sorted(component)


def _tests(survey: Survey, members: list[Definition]) -> int:
    found = 0
    for member in members:
        found |= survey.tests_of(member)
    return found


def _promise(survey: Survey, cluster: Cluster) -> float:
    lines = sum(m.end_line - m.start_line + 1 for m in cluster.members)
    files = len({m.path for m in cluster.members})
    shared = min(count(survey.tests_of(m) & cluster.group) for m in cluster.members) / max(1, count(cluster.group))
    return (
        1.5 * documented_share(survey, cluster.members)
        + size_score(lines, BEST_LINES)
        + 0.7 * min(files - 1, 2)
        + 0.2 * min(len(cluster.members), 6)
        + shared
    )


def _take(survey: Survey, surgery: Surgery, member: Definition, cluster: Cluster, recipe: Recipe) -> Surgery:
    """Remove a member entirely, or keep its signature where the rest of the code or of the tests needs it."""
    if not _breaks_others(survey, member, cluster, recipe):
        trial = surgery.trial()
        try:
            trial.remove(member)
        except Irreparable:
            pass
        else:
            return trial
    for function in _bodies(survey, member):
        if _belongs(survey, function, cluster.group) and function.body_lines >= 2:
            surgery.remove_body(function, keep_docstring=recipe.keep_docstring)
    return surgery


def _breaks_others(survey: Survey, member: Definition, cluster: Cluster, recipe: Recipe) -> bool:
    """Whether removing the name would break test files that are mostly about something else."""
    importing = 0 if member.owner else survey.importing(Symbol(path=member.path, name=member.name))
    broken = importing | cluster.group
    return count(broken & ~cluster.group) > recipe.bounds.max_collateral_share * count(broken)


def _bodies(survey: Survey, member: Definition) -> list[Definition]:
    if member.kind != "class":
        return [member]
    functions = set(survey.functions)
    return [m for m in survey.members(member) if m in functions]
