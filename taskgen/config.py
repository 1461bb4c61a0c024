"""repos.yaml and recipes as typed records. Every mistake is reported with its file, line and a hint."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from taskgen.configfile import line_of, load_mapping, read_bytes, validate
from taskgen.errors import ConfigError
from taskgen.types import Bounds, Operator, Recipe, RepoSpec, SourceKind

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]+")
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Text = Annotated[str, Field(min_length=1)]


def find_data(name: str) -> Path:
    """The path of a data file or folder (``recipes``, ``repos.yaml``): the wheel's, else the checkout's.

    Raises:
        ConfigError: it is in neither.
    """
    package = Path(__file__).resolve().parent
    # The wheel's own copy comes first: beside an installed package lie other people's folders.
    for place in (package / "_data" / name, package.parent / name):
        if place.exists():
            return place
    raise ConfigError(f"{name} is not part of this installation of taskgen", hint="install taskgen again")


# --- The shape of the files ----------------------------------------------------------------------

#: Macros that are put in front of each recipe's template.
SHARED_TEMPLATE = "_interface.md.j2"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _RepoModel(_Model):
    pypi: Text | None = None
    git: Text | None = None
    path: Text | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./+@-]*$")] | None = None
    name: str | None = None
    language: Text | None = None
    runtime: Text | None = None
    install: list[Text] = []
    requirements: list[Text] = []
    build_command: Text | None = None
    test_command: Text | None = None
    test_paths: list[Text] = []
    timeout_s: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None
    licence: Text | None = None
    include: list[Text] = []
    exclude: list[Text] = []

    @field_validator("pypi")
    @classmethod
    def _pin(cls, value: str | None) -> str | None:
        if value is not None:
            split_pin(value)
        return value

    @field_validator("name")
    @classmethod
    def _full_name(cls, value: str | None) -> str | None:
        if value is not None and not _NAME.fullmatch(value):
            raise ValueError("must be owner/name, of letters, digits and . _ -")
        return value

    @field_validator("requirements")
    @classmethod
    def _requirements(cls, value: list[str]) -> list[str]:
        for requirement in value:
            try:
                Requirement(requirement)
            except InvalidRequirement as error:
                raise ValueError(f"{requirement!r} is not a requirement: {error}") from None
        return value

    @field_validator("test_command")
    @classmethod
    def _pytest(cls, value: str | None) -> str | None:
        if value is None:
            return value
        words = shlex.split(value)
        if words[:1] != ["pytest"] and words[:3] != ["python", "-m", "pytest"]:
            raise ValueError("must begin with 'pytest' or 'python -m pytest'")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> _RepoModel:
        given = [key for key in ("pypi", "git", "path") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of pypi:, git: and path:, has {', '.join(given) or 'none'}")
        if self.git is not None and self.revision is None:
            raise ValueError("git: needs revision: (a commit is best)")
        if self.pypi is not None and self.revision is not None:
            raise ValueError("pypi: takes no revision:, its version is the revision")
        if self.pypi is None and self.sha256 is not None:
            raise ValueError("sha256: goes with pypi: only")
        return self


class _ReposModel(_Model):
    repos: Annotated[list[_RepoModel], Field(min_length=1)]


class _BoundsModel(_Model):
    lines: tuple[Count, Count]
    files: tuple[Count, Count]
    definitions: tuple[Count, Count]
    fail_to_pass: tuple[Count, Count]
    max_suite_share: Share
    max_collateral_share: Share

    @field_validator("lines", "files", "definitions", "fail_to_pass", mode="before")
    @classmethod
    def _pair(cls, value: object) -> object:
        # YAML has lists only; strict mode would ask for a tuple.
        return tuple(value) if isinstance(value, list) else value

    @field_validator("lines", "files", "definitions", "fail_to_pass")
    @classmethod
    def _ordered(cls, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] > value[1]:
            raise ValueError("must be [min, max] with min <= max")
        return value


class _RecipeModel(_Model):
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    operator: Operator
    languages: Annotated[list[Text], Field(min_length=1)]
    bounds: _BoundsModel
    max_tasks: Positive
    max_candidates: Positive
    keep_signature: bool = True
    keep_docstring: bool = True
    default: bool = True
    template: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*\.md\.j2$")] | None = None
    hints: bool = False


# --- Records -------------------------------------------------------------------------------------


def split_pin(pin: str) -> tuple[str, str]:
    """``name==version`` as (normalised name, version).

    Raises:
        ValueError: it is not exactly that.
    """
    try:
        requirement = Requirement(pin)
    except InvalidRequirement as error:
        raise ValueError(f"must be name==version: {error}") from None
    specifiers = list(requirement.specifier)
    exact = len(specifiers) == 1 and specifiers[0].operator == "==" and "*" not in specifiers[0].version
    if not exact or requirement.extras or requirement.marker or requirement.url:
        raise ValueError("must be name==version")
    return canonicalize_name(requirement.name), specifiers[0].version


def _git_name(url: str) -> str:
    """``owner/name`` of a git URL or path: its last two parts, less ``.git``."""
    path = urlsplit(url).path if "://" in url else url.rpartition(":")[2]
    parts = [part for part in path.removesuffix("/").removesuffix(".git").split("/") if part]
    owner, name = parts[-2:] if len(parts) > 1 else ("git", *parts[-1:])
    return f"{owner}/{name}"


def _spec(model: _RepoModel, folder: Path, where: str) -> RepoSpec:
    if model.pypi is not None:
        project, revision = split_pin(model.pypi)
        kind, location, name = SourceKind.SDIST, project, f"pypi/{project}"
    elif model.git is not None:
        kind, location, revision = SourceKind.GIT, model.git, model.revision or ""
        name = _git_name(model.git)
    else:
        kind, location, revision = SourceKind.PATH, model.path or "", model.revision or ""
        name = f"local/{(folder / location).resolve().name}"
    if not _NAME.fullmatch(model.name or name):
        raise ConfigError(f"{where}: no name can be made of {location!r}", hint="add name: owner/name")
    return RepoSpec(
        name=model.name or name,
        kind=kind,
        location=location,
        revision=revision,
        sha256=model.sha256,
        language=model.language,
        runtime=model.runtime,
        install=tuple(model.install),
        requirements=tuple(model.requirements),
        build_command=model.build_command,
        test_command=model.test_command,
        test_paths=tuple(model.test_paths),
        timeout_s=model.timeout_s,
        licence=model.licence,
        include=tuple(model.include),
        exclude=tuple(model.exclude),
        where=where,
        base=str(folder),
    )


def load_repos(path: Path) -> tuple[RepoSpec, ...]:
    """The entries of a repos.yaml, in the file's order.

    Raises:
        ConfigError: with file and line: the file is missing, is not YAML, or has an unknown or
            duplicate key, a wrong type or value, no entry, or two entries with one name.
    """
    document = load_mapping(path, read_bytes(path))
    model = validate(path, document, _ReposModel)
    folder = path.resolve().parent
    specs = []
    seen: dict[str, str] = {}
    for number, entry in enumerate(model.repos):
        spec = _spec(entry, folder, f"{path}:{line_of(document, ('repos', number))}")
        # Instance ids are made of the slug: two names with one slug would share ids.
        if other := seen.get(spec.slug):
            raise ConfigError(
                f"{spec.where}: the name {spec.name!r} is taken by the entry at {other}",
                hint="give one of them another name:",
            )
        seen[spec.slug] = spec.where
        specs.append(spec)
    return tuple(specs)


def _recipe_model(path: Path, raw: bytes) -> _RecipeModel:
    document = load_mapping(path, raw)
    model = validate(path, document, _RecipeModel)
    if model.name != path.stem:
        raise ConfigError(
            f"{path}:{line_of(document, ('name',))}: name: is {model.name!r}, the file's is {path.stem!r}",
            hint="make them the same",
        )
    if repeated := [name for name, count in Counter(model.languages).items() if count > 1]:
        raise ConfigError(f"{path}:{line_of(document, ('languages',))}: languages: {repeated[0]!r} is there twice")
    return model


def _recipe(path: Path, raw: bytes, model: _RecipeModel) -> Recipe:
    shared = path.with_name(SHARED_TEMPLATE)
    own = read_bytes(path.with_name(model.template or f"{path.stem}.md.j2"))
    template = (read_bytes(shared) if shared.exists() else b"") + own
    b = model.bounds
    return Recipe(
        name=model.name,
        operator=model.operator,
        languages=tuple(model.languages),
        bounds=Bounds(
            min_lines=b.lines[0],
            max_lines=b.lines[1],
            min_files=b.files[0],
            max_files=b.files[1],
            min_definitions=b.definitions[0],
            max_definitions=b.definitions[1],
            min_fail_to_pass=b.fail_to_pass[0],
            max_fail_to_pass=b.fail_to_pass[1],
            max_suite_share=b.max_suite_share,
            max_collateral_share=b.max_collateral_share,
        ),
        max_tasks=model.max_tasks,
        max_candidates=model.max_candidates,
        keep_signature=model.keep_signature,
        keep_docstring=model.keep_docstring,
        hints=model.hints,
        sha256=hashlib.sha256(raw + b"\0" + template).hexdigest(),
        template=template.decode("utf-8"),
    )


def load_recipes(directory: Path, names: Sequence[str] = ()) -> tuple[Recipe, ...]:
    """The recipes of a folder (``NAME.yaml`` with ``NAME.md.j2``), sorted by name.

    Args:
        names: of the recipes that are wanted; with none, all but those with ``default: false``.

    Raises:
        ConfigError: as ``load_repos``; or a template is missing, there is no recipe, or none of a given name.
    """
    files = sorted(directory.glob("*.yaml"))
    if not files:
        raise ConfigError(f"{directory}: there is no recipe (*.yaml)", hint="give a folder of recipes")
    known = [file.stem for file in files]
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"--recipe {unknown[0]}: no such recipe in {directory}", hint=f"known: {', '.join(known)}")
    read = [(file, raw := read_bytes(file), _recipe_model(file, raw)) for file in files]
    chosen = [part for part in read if (part[2].name in names if names else part[2].default)]
    if not chosen:
        raise ConfigError(
            f"{directory}: each recipe there has default: false", hint=f"give --recipe, one of {', '.join(known)}"
        )
    return tuple(_recipe(*part) for part in chosen)
