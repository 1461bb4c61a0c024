"""Small changes to recorded arguments, of the same types: what an answer by heart does not know."""

from __future__ import annotations

import random
from typing import Any

MAX_PLACES = 40


def mutated(
    args: tuple[Any, ...], kwargs: dict[str, Any], rng: random.Random
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A copy of the arguments with one value somewhere in them changed. Raises ValueError if nothing can be."""
    places = list(_places((list(args), kwargs), ()))[:MAX_PLACES]
    rng.shuffle(places)
    for place in places:
        tree: Any = [list(args), dict(kwargs)]
        old = _get(tree, place)
        new = _changed(old, rng)
        if new is not _SAME:
            _put(tree, place, new)
            return tuple(tree[0]), tree[1]
    raise ValueError("nothing that can be changed")


_SAME = object()


def _places(value: Any, path: tuple[Any, ...]) -> Any:
    if type(value) in (list, tuple):
        for i, item in enumerate(value):
            yield from _places(item, (*path, i))
        if path and len(path) > 1 and value:
            yield path
    elif type(value) is dict:
        for key, item in value.items():
            yield from _places(item, (*path, key))
    elif type(value) in (bool, int, float, str, bytes):
        yield path


def _get(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _put(tree: Any, path: tuple[Any, ...], value: Any) -> None:
    """Set a value deep inside; what is above it is copied, tuples included."""
    key, *rest = path
    if rest:
        inner = tree[key]
        copy = list(inner) if type(inner) in (list, tuple) else dict(inner)
        _put(copy, tuple(rest), value)
        value = tuple(copy) if type(inner) is tuple else copy
    tree[key] = value


def _changed(value: Any, rng: random.Random) -> Any:
    if type(value) is bool:
        return not value
    if type(value) is int:
        return rng.choice([value + 1, value - 1, -value if value else 7, value * 2 + 1])
    if type(value) is float:
        return rng.choice([value + 1.5, value / 2 if value else 0.25, -value if value else 2.5])
    if type(value) in (str, bytes):
        return _changed_text(value, rng)
    if type(value) in (list, tuple):
        items = list(value)
        kind = rng.randrange(3)
        changed = items[:-1] if kind == 0 else items[::-1] if kind == 1 else [*items, items[0]]
        return _SAME if changed == items else type(value)(changed)
    return _SAME


def _changed_text(value: Any, rng: random.Random) -> Any:
    if not value:
        return "x y" if isinstance(value, str) else b"x y"
    at = rng.randrange(len(value))
    options = [value[:at] + value[at + 1 :], value[:at] + value[at : at + 1] + value[at:], value[at:] + value[:at]]
    options += [value.swapcase(), value + value[:1]]
    different = [option for option in options if option != value]
    return rng.choice(different) if different else value * 2
