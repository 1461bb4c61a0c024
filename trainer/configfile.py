"""YAML files checked against pydantic models; a mistake is reported with its file and line.

The trainer's own: of taskgen it imports the types alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError

M = TypeVar("M", bound=BaseModel)


class ConfigError(ValueError):
    """A configuration is wrong: file, line, key, value, and what to write instead."""


def load(path: Path, model: type[M]) -> tuple[M, CommentedMap]:
    """The checked values of a file, and the document for ``line_of``.

    Raises ConfigError if there is no such file, or it is no YAML, or has an unknown or repeated key, or a wrong value.
    """
    document = _document(path)
    try:
        return model.model_validate(_plain(document)), document
    except ValidationError as error:
        _fail(path, document, error, model)


def line_of(document: CommentedMap, location: tuple[int | str, ...]) -> int:
    """The line (from 1) of a key, or of the nearest one above it."""
    node: object = document
    line = 1
    for step in location:
        if not isinstance(node, CommentedMap) or step not in node:
            break
        line = node.lc.key(step)[0] + 1 if step in (node.lc.data or {}) else line
        node = node[step]
    return line


def _document(path: Path) -> CommentedMap:
    try:
        document = YAML(typ="rt").load(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; give the path of an existing one") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = str(error.problem or error.context).partition(" with value")[0]
        raise ConfigError(f"{path}:{mark.line + 1 if mark else 1}: not valid YAML: {problem}") from error
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(document, CommentedMap):
        raise ConfigError(f"{path}:1: expected keys and values, found {document!r}")
    return document


def _plain(node: object) -> Any:  # noqa: ANN401 - the value of any YAML node
    """Built-in values; ruamel's own kinds of numbers do not pass strict checks."""
    if isinstance(node, Mapping):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _fail(path: Path, document: CommentedMap, error: ValidationError, model: type[BaseModel]) -> NoReturn:
    # A misspelt key is also a missing one: the misspelling is what helps.
    first = min(error.errors(include_url=False), key=lambda found: found["type"] != "extra_forbidden")
    location = first["loc"]
    where, key = f"{path}:{line_of(document, location)}", ".".join(map(str, location)) or "the file"
    if first["type"] == "extra_forbidden":
        known = _keys(model, location)
        close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
        raise ConfigError(f"{where}: unknown key {location[-1]!r}; {hint}") from error
    if first["type"] == "missing":
        raise ConfigError(f"{where}: {key} is missing; add {location[-1]}:") from error
    reason, value = first["msg"].removeprefix("Value error, "), first["input"]
    raise ConfigError(
        f"{where}: {key}: {reason}" + ("" if isinstance(value, dict) else f", found {value!r}")
    ) from error


def _keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    for step in location[:-1]:
        field = model.model_fields.get(str(step))
        options = [field.annotation, *get_args(field.annotation)] if field else []
        model = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), model)
    return list(model.model_fields)
