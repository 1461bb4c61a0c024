"""Steering on made-up measurements: what is tried next follows what was solved."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from statistics import median

import pytest

from taskgen import steering
from taskgen.commands.steered import Target, pool_of
from taskgen.difficulty import Band, Design, band_of
from taskgen.policies.controls import ScriptedPolicy
from taskgen.policies.policy import Form, Sampling
from taskgen.steering import Measured, Setting, learn, ranked, setting_of, settings_of, widened
from taskgen.types import Candidate, Definition, Deleted, Deletion, Recipe, Removal
from tests.project_helpers import recipe_of

BAND = Design(low=0.25, high=0.75)


def candidate(
    name: str, n_lines: int, definitions: int = 1, *, docstring: bool = True, hints: bool = False
) -> Candidate:
    """A deletion of so many lines; where the docstring goes, its two lines go with it."""
    deleted = tuple(
        Deleted(
            definition=Definition(
                path=f"{name}.py", qualified_name=f"f{i}", kind="function", signature="def f()", docstring="a\nb",
                start_line=1, end_line=1000, body_line=4, start_byte=0, end_byte=9, body_byte=1, after_doc_byte=5,
            ),
            removal=Removal.BODY,
        )
        for i in range(definitions)
    )  # fmt: skip
    gone = n_lines if docstring else n_lines + 2 * definitions
    deletion = Deletion(
        files={f"{name}.py": b""}, deleted=deleted, removed_lines={f"{name}.py": frozenset(range(2, 2 + gone))}
    )
    return Candidate(
        instance_id=f"{name}-{n_lines}-{definitions}-{docstring}-{hints}", recipe="function", deletion=deletion,
        covering=frozenset(), predicted=frozenset(), score=0.0, keep_docstring=docstring, hints=hints,
    )  # fmt: skip


def pool(sizes: Iterable[tuple[int, int]]) -> list[Candidate]:
    return [
        candidate(f"m{i}", lines, definitions, docstring=docstring, hints=hints)
        for i, (lines, definitions) in enumerate(sizes)
        for docstring in (True, False)
        for hints in (False, True)
    ]


SIZES = [(1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (32, 1), (64, 4), (128, 8)]


def best(measured: Sequence[Measured]) -> Setting:
    return setting_of(ranked(pool(SIZES), learn(measured), BAND)[0])


def measured(lines: int, passes: int, n: int = 9) -> Measured:
    return Measured(demand=Setting(lines=lines).demand, n=n, passes=passes)


def test_failures_lead_to_smaller_deletions_and_passes_to_larger_ones() -> None:
    nothing = best([])
    assert (nothing.keep_docstring, nothing.hints) == (True, False)
    assert best([measured(8, 0)]).demand < nothing.demand < best([measured(8, 9)]).demand
    assert learn([measured(64, 0), measured(32, 0)]).half < learn([measured(64, 0)]).half
    assert best([measured(8, 9), measured(16, 9)]).demand > best([measured(8, 9)]).demand


def test_where_no_deletion_is_small_enough_hints_are_on() -> None:
    weak = best([measured(lines, 0) for lines in (8, 4, 2, 1)])
    assert (weak.lines, weak.definitions, weak.keep_docstring, weak.hints) == (1, 1, True, True)


def test_where_no_deletion_is_large_enough_the_docstring_goes_and_several_definitions_are_combined() -> None:
    strong = best([measured(lines, 9) for lines in (8, 16, 32, 64, 128, 256)])
    assert (strong.lines, strong.definitions, strong.keep_docstring, strong.hints) == (128, 8, False, False)


def test_nothing_is_tried_that_is_hopeless() -> None:
    assert ranked(pool([(400, 20)]), learn([measured(lines, 0) for lines in (8, 4, 2, 1, 1, 1)]), BAND) == []
    assert ranked(pool([(1, 1)]), learn([measured(lines, 9) for lines in (64, 128, 128, 256, 256)]), BAND) == []


def test_equal_chances_take_what_was_not_attempted() -> None:
    one, other = candidate("a", 8), candidate("b", 8)
    belief = learn([])
    assert ranked([one, other], belief, BAND) == [one, other]
    assert ranked([one, other], belief, BAND, {steering.what_goes(one)}) == [other, one]


def test_belief_follows_many_measurements_and_not_their_order() -> None:
    rng = random.Random(1)
    found = []
    for _ in range(200):
        lines = rng.randint(1, 200)
        chance = steering._logistic(6.0 - Setting(lines=lines).demand)
        found.append(measured(lines, sum(rng.random() < chance for _ in range(8)), 8))
    belief = learn(found)
    assert belief.half == pytest.approx(6.0, abs=0.5)
    assert sum(belief.weights.values()) == pytest.approx(1.0)
    again = learn(reversed(found))
    assert again.half == pytest.approx(belief.half)
    assert belief.in_band(6.0, BAND) > 0.5 > belief.in_band(1.0, BAND) + belief.in_band(11.0, BAND)


def rates(chance: Callable[[Setting], float], seed: int) -> tuple[list[float], list[float]]:
    """Shares of passes of 24 tasks tried four at a time: by quality alone, and steered."""
    rng = random.Random(seed)
    candidates = pool((round(2 ** rng.uniform(0, 8)), rng.choice([1, 1, 2, 6])) for _ in range(60))

    def tried(candidate: Candidate) -> Measured:
        setting = setting_of(candidate)
        return Measured(demand=setting.demand, n=8, passes=sum(rng.random() < chance(setting) for _ in range(8)))

    plain = [tried(c) for c in [c for c in candidates if c.keep_docstring and not c.hints][:24]]
    found: list[Measured] = []
    left = candidates
    while len(found) < 24 and (batch := ranked(left, learn(found), BAND)[:4]):
        found += [tried(c) for c in batch]
        left = [c for c in left if c not in batch]
    return [m.passes / m.n for m in plain], [m.passes / m.n for m in found]


@pytest.mark.parametrize("skill", [1.5, 4.0, 8.0])
def test_more_of_what_is_tried_lies_in_the_band(skill: float) -> None:
    """Also of a world that is not as the belief takes it to be: docstrings and definitions weigh more there."""

    def chance(setting: Setting) -> float:
        extra = 1.0 * (not setting.keep_docstring) + 0.3 * setting.definitions
        return steering._logistic(1.5 * (skill - setting.demand - extra))

    runs = [rates(chance, seed) for seed in range(3)]
    n_plain, n_steered = (
        sum(band_of(rate, BAND) is Band.LEARNABLE for run in runs for rate in run[which]) for which in (0, 1)
    )
    assert n_steered >= 1.5 * n_plain and n_steered >= 0.4 * sum(len(steered) for _, steered in runs)
    assert all(BAND.low <= median(steered) <= BAND.high for _, steered in runs)


def test_settings_of_recipes() -> None:
    recipes = [
        widened(recipe_of("function", min_lines=4)),
        recipe_of("method-group", min_definitions=2),
        recipe_of("class"),
    ]
    assert recipes[0].bounds.min_lines == 1
    found = list(settings_of(recipes, hints=True))
    by = {name: [r for r in found if r.name == name] for name in ("function", "method-group", "class")}
    assert [(r.keep_docstring, r.hints) for r in by["function"]] == [
        (True, False),
        (False, False),
        (True, True),
        (False, True),
    ]
    assert [(r.keep_docstring, r.hints) for r in by["class"]] == [(True, False), (True, True)]
    assert [r.bounds.max_definitions for r in by["method-group"]] == [10, 5, 2] * 4
    assert not any(r.hints for r in settings_of(recipes, hints=False))
    # Where it was proposed under smaller groups' limits, a task's digest is the same.
    assert len({r.sha256 for r in by["method-group"]}) == 4
    assert len({r.sha256 for r in by["function"]} | {recipe_of("function").sha256}) == 5


def test_sizes_do_not_count_docstrings() -> None:
    assert setting_of(candidate("a", 8, docstring=False)) == Setting(lines=8, keep_docstring=False)
    assert setting_of(candidate("a", 8, 3, hints=True)) == Setting(lines=8, definitions=3, hints=True)


def test_what_a_policy_of_one_body_cannot_attempt_is_left_out_and_said() -> None:
    asked: list[bool] = []

    def propose(recipes: Sequence[Recipe]) -> list[Candidate]:
        asked.append(any(recipe.hints for recipe in recipes))
        return [candidate("a", 8), candidate("b", 8, 3), candidate("c", 9, 2)]

    def target(form: Form) -> Target:
        policy = ScriptedPolicy(solves=0.5, body_of=lambda prompt: "", form=form)
        return Target(policy=policy, sampling=Sampling(), design=BAND)

    recipes = [recipe_of("function")]
    fit, note = pool_of(target(Form.CONTINUATION), propose, recipes)
    assert [c.instance_id for c in fit] == [candidate("a", 8).instance_id]
    assert note == "2 of 3 candidates delete more than one body: scripted cannot attempt them"
    fit, note = pool_of(target(Form.PATCH), propose, recipes)
    assert (len(fit), note) == (3, "")
    assert asked == [False, True], "what only goes on with a file's text gets no hints"


def test_bodies_that_one_body_brings_back() -> None:
    assert steering.is_one_body(candidate("a", 8).deletion)
    assert not steering.is_one_body(candidate("a", 8, 2).deletion)
    with_import = candidate("a", 8).deletion
    lines = {"a.py": with_import.removed_lines["a.py"] | {2000}}
    assert not steering.is_one_body(Deletion(files=with_import.files, deleted=with_import.deleted, removed_lines=lines))
