"""What the next candidates should be like, so that a policy solves them now and then.

*Knobs.* How much is deleted (lines, definitions), whether the docstring stays in the file, whether the statement gives
hints. ``settings_of`` gives the recipes in all settings; a candidate's ``demand`` is its place on one scale:

    demand = log2(lines) + 0.5 * log2(definitions) + 1 (no docstring left) - 1 (hints)

A policy that tells how likely it is to write a text (``Scores``) is asked that about the deleted code itself instead,
and the minus of that log-probability, in units of 2 nats, is the demand: it knows better what it finds hard.

*Belief.* The chance that a policy solves a task of demand x is taken to be logistic(slope * (half - x) + own), as in
item response theory (G. Rasch, 1960), where ``own``, normal with deviation 1, is what the knobs do not show of a task.
``half`` (the demand that is solved half of the time) and ``slope`` are not known: a grid holds how likely each pair is,
given the passes so far. The weights of the scale are guesses; what is off in them goes into ``slope`` and ``own``.

*Choice.* The candidates that come next are those most likely to lie in the band. After failures ``half`` is lower:
smaller deletions come next, with docstring, and with hints where no deletion is small enough; after passes larger ones,
without docstring, and those of several definitions.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from types import MappingProxyType

from taskgen.difficulty import Design
from taskgen.types import Candidate, Deletion, Recipe, Removal

#: On the scale of demand, where deleting twice as many lines is 1.
DEFINITIONS_WEIGHT, NO_DOCSTRING, HINTS = 0.5, 1.0, 1.0
#: Operators that leave stubs behind, and so docstrings; those of which groups grow up to a number of definitions.
_KEEPS_STUBS = ("function", "method-group", "feature")
_GROWS = ("method-group",)
#: The grid: (half, slope), before anything is measured half is about 3 (8 lines) give or take 3.
_PRIOR = NormalDist(3.0, 3.0)
_HALVES = tuple(i / 2 for i in range(-12, 29))
_SLOPES = (0.5, 1.0, 2.0)
#: ``own`` at the middles of seven parts of equal chance.
_OWN = tuple(NormalDist().inv_cdf((i + 0.5) / 7) for i in range(7))
#: Logarithms of chances of lying in the band that differ by less than this count as the same; then quality decides.
_STEP = 0.1
#: What a chance counts for where a knob other than size is turned: that must be worth it.
HINTS_WORTH, NO_DOCSTRING_WORTH = 0.8, 0.95
#: With a chance below this of lying in the band, nothing is tried.
HOPELESS = 0.04
#: Nats of surprise that count as 1 on the scale of demand.
NATS = 2.0
What = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The knobs of a candidate. ``lines``: of code deleted, docstrings not counted."""

    lines: int
    definitions: int = 1
    keep_docstring: bool = True
    hints: bool = False

    @property
    def demand(self) -> float:
        """Its place on the scale."""
        size = math.log2(max(1, self.lines)) + DEFINITIONS_WEIGHT * math.log2(max(1, self.definitions))
        return size + NO_DOCSTRING * (not self.keep_docstring) - HINTS * self.hints


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What attempts at a task of a demand came to."""

    demand: float
    n: int
    passes: int


def setting_of(candidate: Candidate) -> Setting:
    """The setting that a candidate has."""
    deletion = candidate.deletion
    dropped = 0
    if not candidate.keep_docstring:
        bodies = [d.definition for d in deletion.deleted if d.removal is Removal.BODY]
        dropped = sum(len(definition.docstring.splitlines()) for definition in bodies)
    return Setting(
        lines=max(1, deletion.n_lines - dropped),
        definitions=max(1, len(deletion.deleted)),
        keep_docstring=candidate.keep_docstring,
        hints=candidate.hints,
    )


def demand_of(candidate: Candidate, surprises: Mapping[str, float] = MappingProxyType({})) -> float:
    """A candidate's place on the scale: by how much the policy is surprised by what was deleted, where that is known
    (``surprises``, in nats by instance id), and by its knobs where it is not."""
    surprise = surprises.get(candidate.instance_id)
    return setting_of(candidate).demand if surprise is None else surprise / NATS


def settings_of(recipes: Sequence[Recipe], *, hints: bool) -> Iterator[Recipe]:
    """The recipes with their knobs in each setting; the same deletion may come of several, the plainest first.

    Bodies may be as short as one line. ``hints``: also with hints in the statement.
    """
    for with_hints in (False, True) if hints else (False,):
        for keep in (True, False):
            for recipe in recipes:
                if keep or recipe.operator in _KEEPS_STUBS:
                    for most in _sizes(recipe):
                        yield _turned(recipe, most, keep_docstring=keep, hints=with_hints)


def _sizes(recipe: Recipe) -> list[int]:
    """Limits on definitions: where groups grow up to the limit, also each half of it."""
    sizes = [recipe.bounds.max_definitions]
    while recipe.operator in _GROWS and sizes[-1] // 2 >= recipe.bounds.min_definitions:
        sizes.append(sizes[-1] // 2)
    return sizes


def widened(recipe: Recipe) -> Recipe:
    """A recipe with the bounds that all its settings have in common, and a digest that says so."""
    bounds = replace(recipe.bounds, min_lines=min(recipe.bounds.min_lines, recipe.bounds.min_definitions))
    return replace(recipe, bounds=bounds, sha256=_digest(recipe.sha256, bounds.min_lines))


def with_knobs_of(recipe: Recipe, candidate: Candidate) -> Recipe:
    """A widened recipe as it was when it proposed a candidate."""
    return _turned(
        recipe, recipe.bounds.max_definitions, keep_docstring=candidate.keep_docstring, hints=candidate.hints
    )


def _turned(recipe: Recipe, most: int, *, keep_docstring: bool, hints: bool) -> Recipe:
    return replace(
        recipe,
        bounds=replace(recipe.bounds, max_definitions=most),
        keep_docstring=keep_docstring,
        hints=hints,
        sha256=_digest(recipe.sha256, keep_docstring, hints),
    )


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def is_one_body(deletion: Deletion) -> bool:
    """Whether one body went and no other line, as far as is known before the patch is made."""
    if len(deletion.deleted) != 1 or deletion.deleted[0].removal is not Removal.BODY or len(deletion.files) != 1:
        return False
    only = deletion.deleted[0].definition
    return all(only.start_line <= line <= only.end_line for line in deletion.removed_lines.get(only.path, ()))


# --- Belief -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Belief:
    """How likely each (half, slope) is: ``weights`` add up to 1."""

    weights: dict[tuple[float, float], float]

    @property
    def half(self) -> float:
        """The demand that is solved half of the time: its mean."""
        return sum(weight * half for (half, _), weight in self.weights.items())

    def in_band(self, demand: float, design: Design) -> float:
        """How likely a task of a demand lies in the band."""
        return sum(
            weight / len(_OWN)
            for (half, slope), weight in self.weights.items()
            for own in _OWN
            if design.low <= _logistic(slope * (half - demand) + own) <= design.high
        )


def learn(measured: Iterable[Measured]) -> Belief:
    """What is believed after some tasks were attempted; their order does not matter."""
    found = list(measured)
    logs = {
        (half, slope): math.log(_PRIOR.pdf(half)) + sum(_log_likelihood(half, slope, one) for one in found)
        for half in _HALVES
        for slope in _SLOPES
    }
    top = max(logs.values())
    weights = {pair: math.exp(value - top) for pair, value in logs.items()}
    total = sum(weights.values())
    return Belief({pair: weight / total for pair, weight in weights.items()})


def _log_likelihood(half: float, slope: float, one: Measured) -> float:
    """Of the passes of one task; how the number of attempts was decided does not change it but for a constant."""
    chances = [_logistic(slope * (half - one.demand) + own) for own in _OWN]
    likelihood = sum(p**one.passes * (1 - p) ** (one.n - one.passes) for p in chances) / len(chances)
    return math.log(max(likelihood, 1e-300))


def _logistic(x: float) -> float:
    # Kept off 0 and 1: no belief is so sure that a surprise is impossible.
    return min(max(1 / (1 + math.exp(-x)), 1e-6), 1 - 1e-6)


# --- Choice -------------------------------------------------------------------------------------------


def what_goes(candidate: Candidate) -> What:
    """The definitions that a candidate deletes; the same in all settings of the other knobs."""
    return frozenset((d.definition.path, d.definition.qualified_name) for d in candidate.deletion.deleted)


def ranked(
    candidates: Iterable[Candidate],
    belief: Belief,
    design: Design,
    attempted: Collection[What] = (),
    surprises: Mapping[str, float] = MappingProxyType({}),
) -> list[Candidate]:
    """The candidates that may lie in the band, likeliest first; where that is the same, what was not attempted with
    other knobs (``attempted``: what was), then with fewer knobs turned, then the more promising first. Hints, and a
    docstring that goes, must make it likelier by some more."""
    chances: dict[float, float] = {}
    keyed = []
    for candidate in candidates:
        setting = setting_of(candidate)
        demand = round(demand_of(candidate, surprises), 1)
        if demand not in chances:
            chances[demand] = belief.in_band(demand, design)
        if chances[demand] >= HOPELESS:
            worth = chances[demand] * (HINTS_WORTH if setting.hints else 1.0)
            worth *= 1.0 if setting.keep_docstring else NO_DOCSTRING_WORTH
            likely, again = -round(math.log(worth) / _STEP), what_goes(candidate) in attempted
            turned = setting.hints + (not setting.keep_docstring)
            keyed.append(((likely, again, turned, -candidate.score, candidate.instance_id), candidate))
    return [candidate for _, candidate in sorted(keyed, key=lambda pair: pair[0])]
