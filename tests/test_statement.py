"""Problem statements. A change of a recipe's template shows in tests/golden/; to write the files again, run this module
with TASKGEN_WRITE_GOLDEN=1 and read the difference."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from taskgen import facts, statement
from taskgen.config import find_data, load_recipes
from taskgen.deletions.survey import Survey
from taskgen.deletions.table import OPERATORS
from taskgen.errors import ConfigError
from taskgen.types import Candidate, Operator
from tests.project_helpers import find, operate, project_of, recipe_of, survey_of

GOLDEN = Path(__file__).with_name("golden")
RECIPES = {recipe.name: recipe for recipe in load_recipes(find_data("recipes"))}
MONEY = '''\
"""Money."""

from . import rates
from .rates import rate


class MoneyError(ValueError):
    """An amount that makes no sense."""


class Money:
    """An amount in one currency."""

    digits = 2

    def __init__(self, amount, currency="EUR"):
        self.amount = amount
        self.currency = currency

    def __add__(self, other):
        """Add two amounts of one currency; others raise MoneyError."""
        if other.currency != self.currency:
            raise MoneyError("body of add")
        return Money(self.amount + other.amount, self.currency)

    def converted(self, currency, *, at: str = "today") -> "Money":
        """Return this amount in another currency."""
        factor = rate(self.currency, currency, at)
        return Money(round(self.amount * factor, self.digits), currency)

    def _secret(self):
        """Private, and nobody's business."""
        return "body of secret"


def parse(text):
    """Read an amount such as ``3.50 EUR``.

    >>> parse("1 EUR").amount
    1.0
    """
    amount, currency = text.split()
    return Money(float(amount), currency)


def total(texts):
    return sum((parse(text) for text in texts), Money(0))
'''
RATES = '''\
"""Exchange rates."""

TABLE = {("EUR", "USD"): 1.0977}


def rate(source, target, at):
    """Look up the factor between two currencies."""
    found = TABLE[source, target]
    return found
'''
TESTS = """\
import pytest

from coins.money import Money, MoneyError, parse
from coins import rate


def test_parse():
    assert parse("3.50 EUR").amount == 3.4999


def test_add():
    with pytest.raises(MoneyError):
        Money(1) + Money(77123, "USD")


def test_converted():
    assert Money(1).converted("USD").amount == 88456


def test_rate():
    assert rate("EUR", "USD", "today") == 99789
"""
FILES = {
    "coins/__init__.py": (
        "from .money import Money, parse\nfrom .rates import rate\n\n__all__ = ['Money', 'parse', 'rate']\n"
    ),
    "coins/money.py": MONEY,
    "coins/rates.py": RATES,
    "tests/test_money.py": TESTS,
}
RUNS = {
    "tests/test_money.py::test_parse": ("parse", "Money.__init__"),
    "tests/test_money.py::test_add": ("Money.__init__", "Money.__add__"),
    "tests/test_money.py::test_converted": ("Money.__init__", "Money.__add__", "Money.converted", "rate"),
    "tests/test_money.py::test_rate": ("rate",),
}
DOCUMENTS = {"README.md": "# Coins\n\nCall parse to read an amount.\n\nrate knows `EUR`.\nAnd `USD`.\n\nThe end.\n"}
#: Which of an operator's proposals is written about: the one that deletes this.
CHOSEN = {"function": "parse", "method-group": "Money.converted", "class": "Money", "module": "rate", "feature": "rate"}
#: Words that only bodies or assertions have.
NEVER = [
    "body of add",
    "body of secret",
    "text.split",
    "float(amount)",
    "factor =",
    "TABLE[",
    "1.0977",
    "3.4999",
    "77123",
    "88456",
    "99789",
]


def survey() -> Survey:
    return survey_of(FILES, RUNS, "\n".join(DOCUMENTS.values()))


def candidate_of(survey: Survey, name: str) -> Candidate:
    operator: Operator = RECIPES[name].operator
    least = 2 if operator in ("feature", "method-group") else 1
    proposals = OPERATORS[operator].propose(survey, recipe_of(operator, min_definitions=least))
    found = [p for p in proposals if CHOSEN[name] in {d.definition.qualified_name for d in p.deletion.deleted}]
    deletion = found[0].deletion
    return Candidate(
        instance_id="x", recipe=name, deletion=deletion, score=0.0,
        covering=survey.baseline.coverage.ids(survey.covering(deletion)),
        predicted=survey.baseline.coverage.ids(survey.predicted(deletion)),
    )  # fmt: skip


def write(
    survey: Survey, candidate: Candidate, tests: frozenset[str] | None = None, template: str | None = None, *,
    hints: bool = False,
) -> str | None:  # fmt: skip
    recipe = replace(RECIPES[candidate.recipe], hints=hints)
    return statement.write(
        candidate, recipe if template is None else replace(recipe, template=template), survey.project, DOCUMENTS,
        repo="local/coins", fail_to_pass=candidate.covering if tests is None else tests, n_passing=7,
    )  # fmt: skip


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_golden_statements(name: str) -> None:
    found = survey()
    text = write(found, candidate_of(found, name))
    assert text is not None
    if os.environ.get("TASKGEN_WRITE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / f"{name}.md").write_text(text, "utf-8")
    assert text == (GOLDEN / f"{name}.md").read_text("utf-8")


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_statements_name_all_and_give_nothing_away(name: str) -> None:
    found = survey()
    candidate = candidate_of(found, name)
    text = write(found, candidate) or ""
    assert statement.unnamed(text, candidate, found.project, candidate.covering) == []
    for deleted in candidate.deletion.deleted:
        definition = deleted.definition
        assert f"`{definition.qualified_name}` in `{definition.path}`" in text
        assert definition.signature in text
    if name == "module":
        assert text.startswith("# Implement the module `coins/rates.py`\n")
    for word in NEVER:
        assert word not in text
    assert "_secret" not in text
    assert text.endswith("\n")
    assert "\n\n\n" not in text


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_hints_say_what_was_called_and_raised_but_no_code(name: str) -> None:
    found = survey()
    candidate = candidate_of(found, name)
    hinted = write(found, candidate, hints=True) or ""
    plain, heading, hints = hinted.partition(f"\n{statement.HINTS_HEADING}\n")
    assert heading and plain == write(found, candidate)
    for word in NEVER:
        assert word not in hints
    assert "_secret" not in hints
    if name == "method-group":
        assert "- `Money.__add__`: 3 lines; it calls `Money`; it raises `MoneyError`\n" in hints
        assert "- `Money.converted`: 2 lines; it calls `Money`, `rate`, `round`\n" in hints
    if name == "function":
        assert hints.strip().endswith("- `parse`: 2 lines; it calls `Money`, `float`, `split`")


def test_what_is_missing_from_a_statement_is_found() -> None:
    found = survey()
    candidate = candidate_of(found, "class")
    tests = frozenset(["tests/test_money.py::test_add", "tests/test_money.py::test_converted"])
    assert statement.unnamed("Write Money with amount.", candidate, found.project, tests) == ["MoneyError", "converted"]


def test_nothing_to_describe_is_no_statement() -> None:
    project = project_of({"m.py": "def _private(): pass\n", "test_m.py": "def test_a(): pass\n"})
    surgery = operate(project)
    surgery.remove(find(project, "m.py", "_private"))
    candidate = Candidate(
        instance_id="x",
        recipe="class",
        deletion=surgery.deletion(),
        covering=frozenset(),
        predicted=frozenset(),
        score=0.0,
    )
    found = survey()
    found.project = project
    assert write(found, candidate, frozenset(["test_m.py::test_a"])) is None


@pytest.mark.parametrize("template", ["{{ nonsense }}", "{% if %}"])
def test_broken_templates_are_named(template: str) -> None:
    found = survey()
    with pytest.raises(ConfigError, match="recipe function: its template"):
        write(found, candidate_of(found, "function"), template=template)


# -- facts ---------------------------------------------------------------------------------------------


def test_outlines_show_public_members_and_private_ones_that_tests_use() -> None:
    project = project_of(FILES)
    file, money = project.sources["coins/money.py"], find(project, "coins/money.py", "Money")
    shown = facts.outline(file, money, frozenset())
    assert 'def converted(self, currency, *, at: str = "today") -> "Money":\n        """Return' in shown
    assert "_secret" not in shown
    assert "def _secret(self):" in facts.outline(file, money, frozenset({"_secret"}))


def test_an_outline_without_anything_to_show_is_still_a_class() -> None:
    project = project_of({"m.py": "class A:\n    def _f(self): pass\n"})
    assert facts.outline(project.sources["m.py"], find(project, "m.py", "A"), frozenset()) == "class A:\n    ..."


def test_expected_exceptions() -> None:
    source = """\
    def test_a():
        with pytest.raises((A, m.B), match="x"): pass
        with self.assertWarns(C): pass
        pytest.raises(D, f)
        raise E

    def test_b():
        with pytest.raises(F): pass
    """
    project = project_of({"m.py": "", "test_m.py": source})
    assert facts.expected_exceptions(project.tests, ["test_m.py::test_a[1]"]) == ["A", "C", "D", "m.B"]


def test_documentation_is_readmes_and_docs() -> None:
    paths = [
        "README.md",
        "docs/a.rst",
        "docs/changes.md",
        "docs/x.png",
        "a/notes.md",
        "HISTORY.txt",
        "doc/b.txt",
        "README",
    ]
    assert list(facts.documentation(paths, dict.fromkeys(paths, b"x"))) == [
        "README.md",
        "docs/a.rst",
        "doc/b.txt",
        "README",
    ]
