"""YAML files checked against pydantic models, with the line of every mistake."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from taskgen.errors import ConfigError

Location = tuple[int | str, ...]
M = TypeVar("M", bound=BaseModel)


def read_bytes(path: Path) -> bytes:
    """The bytes of a configuration file; a ConfigError if it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file", hint="give the path of an existing file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def load_mapping(path: Path, raw: bytes) -> CommentedMap:
    """The keys and values of a YAML file; a ConfigError with the line where it is broken."""
    try:
        document = YAML(typ="rt").load(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 (byte {error.start})") from error
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = str(error.problem).partition(" with value")[0]
        raise ConfigError(f"{path}:{line}: {problem}", hint="keep one of the two") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{path}:{line}: not valid YAML: {error.problem or error.context}") from error
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(document, CommentedMap):
        found = "nothing" if document is None else type(document).__name__
        raise ConfigError(f"{path}:1: expected keys and values at the top level, found {found}")
    return document


def _plain(node: object) -> Any:  # noqa: ANN401 - the value of any YAML node
    """The built-in value of a node; ruamel's own number and string types do not pass strict checks."""
    if isinstance(node, Mapping):
        return {_plain(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def line_of(document: CommentedMap, location: Location) -> int:
    """The line (from 1) of a node, or of the nearest one above it that has a line."""
    node: object = document
    line = 1
    for step in location:
        if isinstance(node, CommentedMap) and step in node:
            # Keys that come in by a YAML merge have no line of their own.
            line = node.lc.key(step)[0] + 1 if step in (node.lc.data or {}) else line
            node = node[step]
        elif isinstance(node, CommentedSeq) and isinstance(step, int) and step < len(node):
            line = node.lc.item(step)[0] + 1
            node = node[step]
        else:
            break
    return line


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _known_keys(model: type[BaseModel], location: Location) -> list[str]:
    """The keys allowed where ``location`` (less its last step) points to."""
    for step in location[:-1]:
        field = model.model_fields.get(str(step))
        nested = _models_in(field.annotation) if field else []
        model = nested[0] if nested else model
    return list(model.model_fields)


_REASONS = {
    "string_type": "expected text",
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "bool_type": "expected true or false",
    "list_type": "expected a list",
    "tuple_type": "expected a list [min, max]",
    "model_type": "expected keys and values",
    "dict_type": "expected keys and values",
    "missing": "is missing",
}


def _fail(path: Path, document: CommentedMap, error: ValidationError, model: type[BaseModel]) -> NoReturn:
    # A misspelt key is also a missing one: the misspelling is what helps.
    first = min(error.errors(include_url=False), key=lambda found: found["type"] != "extra_forbidden")
    location = first["loc"]
    key = ".".join(str(step) for step in location) or "the file"
    where = f"{path}:{line_of(document, location)}"
    if first["type"] == "extra_forbidden":
        known = _known_keys(model, location)
        close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        known_hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
        raise ConfigError(f"{where}: unknown key {location[-1]!r}", hint=known_hint) from error
    if first["type"] == "missing":
        raise ConfigError(f"{where}: {key} is missing", hint=f"add {location[-1]}:") from error
    reason = _REASONS.get(first["type"], first["msg"].removeprefix("Value error, "))
    value = first["input"]
    shown = "" if isinstance(value, dict) else f", found {value!r}"
    hint: str | None = None
    if first["type"] == "string_type" and isinstance(value, int | float):
        hint = f'put it in quotes: "{value}"'
    elif first["type"] == "list_type" and isinstance(value, str):
        hint = f"write it as a list: [{value!r}]"
    elif first["type"] == "literal_error":
        hint = _literal_hint(value, str(first.get("ctx", {}).get("expected", "")))
    raise ConfigError(f"{where}: {key}: {reason}{shown}", hint=hint) from error


def _literal_hint(value: object, expected: str) -> str | None:
    close = difflib.get_close_matches(str(value), re.findall(r"'([^']*)'", expected), n=1)
    return f"did you mean {close[0]!r}?" if close else None


def validate(path: Path, document: CommentedMap, model: type[M]) -> M:
    """The checked values of a document; a ConfigError with line, key and hint for the first mistake."""
    try:
        return model.model_validate(_plain(document))
    except ValidationError as error:
        _fail(path, document, error, model)
