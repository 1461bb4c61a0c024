"""Hint rules: a YAML file that says which detector gives which hint, and the hint of an attempt by them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import jinja2
import jinja2.meta
from jinja2.sandbox import SandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field
from ruamel.yaml.comments import CommentedMap

from taskgen.configfile import line_of, load_mapping, read_bytes, validate
from taskgen.errors import ConfigError
from taskgen.hints.attempt import Attempt
from taskgen.hints.detectors import DETECTORS

DEFAULT = Path(__file__).with_name("rules.yaml")
#: A hint is one line of at most so many characters.
MAX_CHARS = 300
_JINJA = SandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What one turn of an attempt should have been told before it.

    Attributes:
        rule: id of the rule, or ``writer``.
        turn_index: the turn, in ``Attempt.turns``.
        text: one line.
    """

    rule: str
    turn_index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``template``: Jinja2, filled with the facts of ``detector``; ``failed_only``: for attempts that are not right."""

    id: str
    detector: str
    template: str
    failed_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HintRules:
    """The rules of a file in its order. ``writer``: the policy that writes hints where no rule matches, as
    ``--policy`` names policies; '' for none."""

    rules: tuple[Rule, ...]
    writer: str = ""


class _RuleModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    detector: str
    hint: Annotated[str, Field(min_length=1)]
    failed_only: bool = False


class _FileModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    rules: Annotated[list[_RuleModel], Field(min_length=1)]
    writer: str = ""


def load_rules(path: Path = DEFAULT) -> HintRules:
    """The rules of a file. Raises ConfigError, with the line: unknown keys or detectors, templates that cannot be
    filled, two rules with one id."""
    document = load_mapping(path, read_bytes(path))
    model = validate(path, document, _FileModel)
    seen: set[str] = set()
    for number, rule in enumerate(model.rules):
        if rule.id in seen:
            _fail(path, document, number, "id", f"two rules are called {rule.id!r}")
        seen.add(rule.id)
        if rule.detector not in DETECTORS:
            hint = f"detectors: {', '.join(DETECTORS)}"
            _fail(path, document, number, "detector", f"there is no detector {rule.detector!r}", hint)
        _check_template(path, document, number, rule)
    rules = (Rule(id=r.id, detector=r.detector, template=r.hint, failed_only=r.failed_only) for r in model.rules)
    return HintRules(rules=tuple(rules), writer=model.writer)


def _check_template(path: Path, document: CommentedMap, number: int, rule: _RuleModel) -> None:
    known = DETECTORS[rule.detector].facts
    try:
        unknown = jinja2.meta.find_undeclared_variables(_JINJA.parse(rule.hint)) - known
    except jinja2.TemplateError as error:
        _fail(path, document, number, "hint", f"no Jinja2 template: {error}")
    if unknown:
        facts = f"{rule.detector} gives {', '.join(sorted(known))}" if known else f"{rule.detector} gives no facts"
        _fail(path, document, number, "hint", f"{sorted(unknown)[0]!r} is not known here", facts)


def _fail(path: Path, document: CommentedMap, number: int, key: str, message: str, hint: str | None = None) -> NoReturn:
    raise ConfigError(f"{path}:{line_of(document, ('rules', number, key))}: {message}", hint=hint)


def hint_of(attempt: Attempt, rules: HintRules) -> Hint | None:
    """The hint of the first rule that finds something, or None. Pure.

    Raises ConfigError: a template failed on the facts that it was given.
    """
    if not any(True for _ in attempt.written()):
        return None
    for rule in rules.rules:
        if rule.failed_only and not attempt.failed:
            continue
        if (match := DETECTORS[rule.detector].find(attempt)) is not None:
            return Hint(rule=rule.id, turn_index=match.turn, text=_filled(rule, dict(match.facts)))
    return None


def _filled(rule: Rule, facts: dict[str, Any]) -> str:
    try:
        return one_line(_JINJA.from_string(rule.template).render(facts))
    except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError) as error:
        raise ConfigError(f"hint rule {rule.id}: its template cannot be filled: {error}") from error


def one_line(text: str) -> str:
    """A hint's text: one line of printable characters, cut at a word."""
    line = "".join(c for c in " ".join(text.split()) if c.isprintable())
    return line if len(line) <= MAX_CHARS else line[:MAX_CHARS].rpartition(" ")[0] + " …"
