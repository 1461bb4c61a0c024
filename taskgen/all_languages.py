"""The table of languages. Adding one is a module and a line here."""

from __future__ import annotations

from taskgen.errors import SourceError
from taskgen.language import Language, Reader
from taskgen.languages import python
from taskgen.types import RepoSpec

LANGUAGES: dict[str, Language] = {python.name: python}


def language_of(spec: RepoSpec, tree: Reader) -> Language:
    """The language that the entry names, or the first that recognises the tree.

    Raises:
        SourceError: none does.
    """
    if spec.language is not None:
        if spec.language in LANGUAGES:
            return LANGUAGES[spec.language]
        raise SourceError(
            f"{spec.where}: {spec.name}: language {spec.language!r} is not supported",
            hint=f"supported: {', '.join(LANGUAGES)}",
        )
    for language in LANGUAGES.values():
        if language.detect(tree):
            return language
    raise SourceError(
        f"{spec.where}: {spec.name} is not a Python project: no pyproject.toml, setup.py or setup.cfg at its top",
        hint="name the folder of the project, or leave the repository out",
    )
