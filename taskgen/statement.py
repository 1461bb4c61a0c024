"""Problem statements: a recipe's template filled with facts, and a check that no needed name is left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import jinja2

from taskgen import facts
from taskgen.errors import ConfigError
from taskgen.languages.python_project import PythonProject
from taskgen.types import Candidate, Recipe

HINTS_HEADING = "## Hints"
#: Put behind the template of a recipe that gives hints.
_HINTS = (
    f"""

{HINTS_HEADING}

"""
    + r"""What the removed code was like:

{% macro listed(names) %}{% for name in names %}`{{ name }}`{{ ", " if not loop.last }}{% endfor %}{% endmacro -%}
{% for hint in hints -%}
- `{{ hint.qualified_name }}`: {{ hint.n_lines }} line{{ "" if hint.n_lines == 1 else "s" }}
{%- if hint.calls %}; it calls {{ listed(hint.calls) }}{% endif %}
{%- if hint.raises %}; it raises {{ listed(hint.raises) }}{% endif %}
{% endfor %}
"""
)


def write(
    candidate: Candidate,
    recipe: Recipe,
    project: PythonProject,
    documents: Mapping[str, str],
    *,
    repo: str,
    fail_to_pass: Iterable[str],
    n_passing: int,
) -> str | None:
    """The statement of a task, in Markdown; None if nothing of the deletion can be described.

    Args:
        documents: documentation files, path -> text.
        n_passing: how many other tests must go on passing.

    Raises:
        ConfigError: the recipe's template is broken, or asks for something that is not there.
    """
    tests = sorted(fail_to_pass)
    deletion = candidate.deletion
    used = facts.names_in_tests(project.tests, tests)
    items = facts.pieces(project, deletion, used)
    if not items:
        return None
    main = max(
        items, key=lambda p: (p.file_gone, not p.qualified_name.rpartition(".")[2].startswith("_"), len(p.outline))
    )
    owners = {p.qualified_name.rpartition(".")[0] for p in items}
    try:
        text = (
            jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
            .from_string(recipe.template + (_HINTS if recipe.hints else ""))
            .render(
                repo=repo,
                title=main.qualified_name,
                main_path=main.path,
                owner=owners.pop() if len(owners) == 1 else "",
                files=sorted(deletion.files),
                items=items,
                wired=facts.wiring(project, deletion),
                symbols=facts.symbols(project, deletion, tests, used),
                call_sites=facts.call_sites(project, deletion),
                mentions=facts.mentions(documents, deletion.deleted),
                hints=facts.hints(project, deletion, items),
                n_tests=len(tests),
                n_passing=n_passing,
            )
        )
    except jinja2.TemplateError as error:
        raise ConfigError(f"recipe {recipe.name}: its template cannot be filled: {error}") from error
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def unnamed(statement: str, candidate: Candidate, project: PythonProject, fail_to_pass: Iterable[str]) -> list[str]:
    """Names of the deleted code that the hidden tests use and the statement does not contain."""
    used = facts.names_in_tests(project.tests, fail_to_pass)
    needed = facts.defined_names(project, candidate.deletion) & used
    words = set(re.findall(r"\w+", statement))
    exceptions = {name.rpartition(".")[2] for name in facts.expected_exceptions(project.tests, fail_to_pass)}
    return sorted((needed | exceptions) - words)
