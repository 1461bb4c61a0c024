from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from taskgen import candidates
from taskgen.deletions import feature, function, method_group, module, whole_class
from taskgen.deletions.survey import Proposal, Survey, documented_share, size_score
from taskgen.languages.python_project import Symbol
from taskgen.types import Candidate, Deletion
from tests.project_helpers import SPEC, find, recipe_of, survey_of

TOOLS = '''\
"""Tools."""

import json
from typing import overload


def encode(value):
    """Write a value as JSON text."""
    text = json.dumps(value)
    return text


def decode(text):
    """Read a value from JSON text."""
    value = json.loads(text)
    return value


def terse(x):
    y = x
    return y


def unused():
    """Nobody runs this function."""
    return 1


class Box:
    """A box of things that can be added up."""

    def __init__(self, things):
        self.things = list(things)

    def add(self, thing):
        """Put a thing into the box."""
        self.things.append(thing)
        return self

    def total(self):
        """Add up all things in the box."""
        result = 0
        for thing in self.things:
            result += thing
        return result

    def clear(self):
        """Take everything out of the box."""
        self.things = []
'''
EXTRA = '''\
"""Extras."""


def shout(text):
    """Return a text in capital letters."""
    return text.upper()


def whisper(text):
    """Return a text in small letters."""
    return text.lower()
'''
FILES = {
    "pkg/__init__.py": (
        "from .tools import Box, encode, decode\nfrom .extra import shout\n\n__all__ = ['Box', 'shout']\n"
    ),
    "pkg/tools.py": TOOLS,
    "pkg/extra.py": EXTRA,
    "tests/test_tools.py": "from pkg.tools import Box, encode\n\n\ndef test_x(): pass\n",
    "tests/test_extra.py": "from pkg import shout\n\n\ndef test_x(): pass\n",
}
RUNS = {
    "tests/test_tools.py::test_encode": ("encode",),
    "tests/test_tools.py::test_both": ("encode", "decode"),
    "tests/test_tools.py::test_terse": ("terse",),
    "tests/test_tools.py::test_add": ("Box.__init__", "Box.add"),
    "tests/test_tools.py::test_total": ("Box.__init__", "Box.add", "Box.total"),
    "tests/test_tools.py::test_clear": ("Box.__init__", "Box.clear"),
    "tests/test_extra.py::test_shout": ("shout",),
    "tests/test_extra.py::test_whisper": ("whisper", "shout"),
    "tests/test_other.py::test_other": ("terse",),
}


@pytest.fixture
def survey() -> Survey:
    return survey_of(FILES, RUNS)


def deleted(proposals: list[Proposal]) -> list[set[str]]:
    return [{d.definition.qualified_name for d in p.deletion.deleted} for p in proposals]


# -- the survey ----------------------------------------------------------------------------------------


def test_tests_of_definitions_and_classes(survey: Survey) -> None:
    assert survey.tests_of(find(survey.project, "pkg/tools.py", "encode")) == 0b11
    assert survey.tests_of(find(survey.project, "pkg/tools.py", "Box.add")) == 0b11000
    assert survey.tests_of(find(survey.project, "pkg/tools.py", "Box")) == 0b111000
    assert survey.tests_of(find(survey.project, "pkg/tools.py", "unused")) == 0


def test_only_passing_tests_count() -> None:
    survey = survey_of(FILES, RUNS)
    survey.baseline = replace(survey.baseline, passing=("tests/test_tools.py::test_both",))
    assert survey.tests_of(find(survey.project, "pkg/tools.py", "encode")) == 0b10


def test_importing_a_name_counts_for_the_whole_file(survey: Survey) -> None:
    shout = find(survey.project, "pkg/extra.py", "shout")
    assert survey.importing(Symbol(path=shout.path, name=shout.name)) == 0b11000000
    assert survey.importing(Symbol(path="pkg/tools.py", name="decode")) == 0


def test_a_conftest_counts_for_all_below_it() -> None:
    files = FILES | {"tests/conftest.py": "from pkg.tools import decode\n"}
    survey = survey_of(files, RUNS)
    assert survey.importing(Symbol(path="pkg/tools.py", name="decode")) == (1 << len(RUNS)) - 1


def test_functions_leave_out_what_cannot_be_cut_cleanly() -> None:
    source = """\
    from typing import overload

    @overload
    def once(x: int) -> int: ...

    def plain():
        return 1

    class C:
        @property
        def v(self):
            return 1

        @v.setter
        def v(self, value):
            pass

        @abstractmethod
        def a(self):
            pass

    def setter():
        global STATE
        STATE = 1
    """
    survey = survey_of({"m.py": source}, {"test_m.py::t": ("once", "plain", "C.v", "C.a", "setter")})
    assert [d.qualified_name for d in survey.functions] == ["plain"]


def test_documented_by_docstring_or_by_mention(survey: Survey) -> None:
    encode, terse = (find(survey.project, "pkg/tools.py", name) for name in ("encode", "terse"))
    assert documented_share(survey, [encode, terse]) == 0.5
    assert documented_share(survey_of(FILES, RUNS, "Call `terse` with a thing."), [terse]) == 1.0
    assert documented_share(survey, []) == 0.0


def test_size_score() -> None:
    assert [size_score(n, 20) for n in (0, 10, 20, 40)] == [0.0, 0.5, 1.0, 0.5]


# -- operators -----------------------------------------------------------------------------------------


def test_function_takes_documented_bodies_in_bounds(survey: Survey) -> None:
    found = list(function.propose(survey, recipe_of("function", min_lines=2)))
    assert deleted(found) == [{"encode"}, {"decode"}, {"Box.add"}, {"Box.total"}]
    assert [p.group for p in found] == [0b11, 0b10, 0b11000, 0b10000]
    assert [p.deletion.n_lines for p in found] == [2, 2, 2, 4]


def test_function_takes_imports_that_died() -> None:
    source = 'import json\n\n\ndef f(x):\n    """Write a value as JSON text."""\n    return json.dumps(x)\n'
    survey = survey_of({"m.py": source}, {"test_m.py::t": ("f",)})
    (found,) = function.propose(survey, recipe_of("function"))
    assert found.deletion.files["m.py"] == source.replace("import json\n", "").replace(
        "return json.dumps(x)", "raise NotImplementedError"
    ).encode()  # fmt: skip
    assert found.deletion.removed_lines["m.py"] == {1, 6}


def test_method_group_takes_methods_whose_tests_overlap(survey: Survey) -> None:
    found = list(method_group.propose(survey, recipe_of("method-group", min_definitions=2)))
    assert deleted(found) == [{"Box.add", "Box.total"}]
    text = (found[0].deletion.files["pkg/tools.py"] or b"").decode()
    assert text.count("raise NotImplementedError") == 2
    assert "Put a thing into the box." in text


def test_whole_class_takes_exports_and_imports(survey: Survey) -> None:
    found = list(whole_class.propose(survey, recipe_of("class")))
    assert deleted(found) == [{"Box"}]
    files = found[0].deletion.files
    assert files["pkg/__init__.py"] == (
        b"from .tools import encode, decode\nfrom .extra import shout\n\n__all__ = ['shout']\n"
    )
    assert b"Box" not in (files["pkg/tools.py"] or b"")


def test_module_takes_the_file_and_its_imports(survey: Survey) -> None:
    proposals = module.propose(survey, recipe_of("module"))
    found = {next(path for path, data in p.deletion.files.items() if data is None): p for p in proposals}
    assert set(found) == {"pkg/tools.py", "pkg/extra.py"}
    files = found["pkg/extra.py"].deletion.files
    assert files["pkg/__init__.py"] == b"from .tools import Box, encode, decode\n\n__all__ = ['Box']\n"


def test_feature_takes_what_one_group_of_tests_runs() -> None:
    files = {
        "a.py": 'from b import helper\n\n\ndef front(x):\n    """Do the thing that is seen."""\n    return helper(x)\n',
        "b.py": 'def helper(x):\n    """Do the thing underneath."""\n    return x\n\n\ndef other(x):\n    return x\n',
    }
    runs = {"test_a.py::one": ("front", "helper"), "test_a.py::two": ("front", "helper"), "test_b.py::t": ("other",)}
    found = list(feature.propose(survey_of(files, runs), recipe_of("feature", min_definitions=2)))
    assert deleted(found) == [{"front", "helper"}]
    assert found[0].group == 0b11
    assert (found[0].deletion.files["a.py"] or b"").strip() == b""
    assert found[0].deletion.files["b.py"] == b"def other(x):\n    return x\n"


# -- candidates ----------------------------------------------------------------------------------------


def test_candidates_say_which_tests_they_break(survey: Survey) -> None:
    recipes = [recipe_of("class", max_collateral_share=0.9)]
    (found,) = candidates.propose(survey, recipes, SPEC, "c" * 40)
    tools = {test for test in RUNS if "test_tools" in test}
    assert found.covering == {t for t in tools if t.rpartition("_")[2] in ("add", "total", "clear")}
    assert found.predicted == tools
    assert found.recipe == "class"


@pytest.mark.parametrize(
    ("bound", "value", "kept"),
    [
        ("min_lines", 4, {"Box.total"}), ("max_lines", 2, {"encode", "decode", "Box.add"}),
        ("min_files", 2, set()), ("max_definitions", 0, set()), ("min_definitions", 2, set()),
        ("max_fail_to_pass", 1, {"decode", "Box.total"}), ("max_suite_share", 0.12, {"decode", "Box.total"}),
    ],
)  # fmt: skip
def test_bounds(survey: Survey, bound: str, value: float, kept: set[str]) -> None:
    changed: dict[str, Any] = {bound: value}
    recipe = recipe_of("function", min_lines=2)
    recipe = replace(recipe, bounds=replace(recipe.bounds, **changed))
    found = candidates.propose(survey, [recipe], SPEC, "")
    assert {d.definition.qualified_name for c in found for d in c.deletion.deleted} == kept


def test_collateral_is_bounded(survey: Survey) -> None:
    # Box: three tests run it, six are in the file that imports it.
    for share, n in ((0.5, 1), (0.49, 0)):
        assert len(candidates.propose(survey, [recipe_of("class", max_collateral_share=share)], SPEC, "")) == n


def test_instance_ids_are_stable() -> None:
    deletion = Deletion(files={"b.py": None, "a.py": b"x = 1\n"}, deleted=(), removed_lines={})
    assert candidates.instance_id(SPEC, "0" * 40, "class", deletion) == "local-demo__class-e64cc5bc5a"
    turned = replace(deletion, files={"a.py": b"x = 1\n", "b.py": None})
    assert candidates.instance_id(SPEC, "0" * 40, "class", turned).endswith("-e64cc5bc5a")
    for other in (replace(deletion, files={"a.py": b"x = 1\n"}), replace(deletion, files={"a.py": None, "b.py": None})):
        assert not candidates.instance_id(SPEC, "0" * 40, "class", other).endswith("-e64cc5bc5a")
    assert not candidates.instance_id(SPEC, "1" * 40, "class", deletion).endswith("-e64cc5bc5a")


def test_proposing_twice_gives_the_same() -> None:
    recipes = [recipe_of(name) for name in ("function", "method-group", "class", "module", "feature")]
    first, second = (candidates.propose(survey_of(FILES, RUNS), recipes, SPEC, "c") for _ in range(2))
    assert first == second
    assert [c.score for c in first] == sorted((c.score for c in first), reverse=True)
    assert len({c.instance_id for c in first}) == len(first) > 5


# -- batches -------------------------------------------------------------------------------------------


def candidate(name: str, recipe: str, lines: range, score: float = 0.0) -> Candidate:
    deletion = Deletion(files={"m.py": b""}, deleted=(), removed_lines={"m.py": frozenset(lines)})
    return Candidate(
        instance_id=name, recipe=recipe, deletion=deletion, covering=frozenset(), predicted=frozenset(), score=score
    )


CLASS, FUNCTION = recipe_of("class", max_tasks=2), recipe_of("function", max_tasks=2)
POOL = [
    candidate("c1", "class", range(100)),
    candidate("f1", "function", range(10)),  # in c1
    candidate("f2", "function", range(95, 105)),  # half of it in c1
    candidate("f3", "function", range(94, 104)),  # more than half of it in c1
    candidate("f4", "function", range(200, 210)),
    candidate("c2", "class", range(300, 400)),
    candidate("c3", "class", range(500, 600)),
    candidate("f5", "function", range(700, 710)),
]


def names(batch: list[Candidate]) -> list[str]:
    return [c.instance_id for c in batch]


def test_a_batch_has_as_many_as_each_recipe_lacks_and_no_overlaps() -> None:
    assert names(candidates.next_batch(POOL, [CLASS, FUNCTION], [], {})) == ["c1", "f2", "c2", "f4"]


def test_the_next_batch_fills_what_rejections_left_open() -> None:
    tried = dict.fromkeys(["c1", "f2", "c2", "f4"], True)
    accepted = [POOL[5], POOL[4]]  # c2, f4
    assert names(candidates.next_batch(POOL, [CLASS, FUNCTION], accepted, tried)) == ["c3", "f1"]
    assert names(candidates.next_batch(POOL, [CLASS], [POOL[0], POOL[5]], tried)) == []


def test_no_more_are_tried_than_the_recipe_says() -> None:
    recipe = replace(FUNCTION, max_candidates=2)
    assert names(candidates.next_batch(POOL, [recipe], [], {"f1": False})) == ["f2"]
    assert names(candidates.next_batch(POOL, [recipe], [], {"f1": False, "f2": False})) == []


def test_what_was_accepted_keeps_others_off_its_lines() -> None:
    assert "f1" not in names(candidates.next_batch(POOL, [FUNCTION], [POOL[0]], {"c1": True}))
