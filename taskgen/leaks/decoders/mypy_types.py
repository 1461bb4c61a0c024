"""Types of mypy's caches, as a person writes them."""

from __future__ import annotations

from typing import Any

#: By kind of argument (mypy.nodes.ArgKind): what stands before it, and behind it.
_MARKS = {0: ("", ""), 1: ("", " = ..."), 2: ("*", ""), 3: ("", ""), 4: ("**", ""), 5: ("", " = ...")}
_STAR, _KEYWORD_ONLY = 2, (3, 5)
_MAX_DEPTH, _MAX_CHARS = 6, 400


def signature(function: dict[str, Any], type_: object) -> str:
    """Parameters and what is returned: ``(a: builtins.int, *, b = ...) -> builtins.str``.

    Args:
        function: has arg_names and arg_kinds.
        type_: of the function; its parts are left out if it is unknown.
    """
    if isinstance(type_, dict) and type_.get(".class") == "Overloaded":
        type_ = next(iter(_list(type_.get("items"))), None)
    called = type_ if isinstance(type_, dict) else {}
    types, kinds = _list(called.get("arg_types")), _list(function.get("arg_kinds"))
    listed: list[str] = []
    has_star = False
    for place, name in enumerate(_list(function.get("arg_names"))):
        kind = kinds[place] if place < len(kinds) else 0
        before, behind = _MARKS.get(kind, ("", "")) if isinstance(kind, int) else ("", "")
        if kind in _KEYWORD_ONLY and not has_star:
            listed.append("*")
        has_star = has_star or kind == _STAR or kind in _KEYWORD_ONLY
        annotation = f": {type_text(types[place])}" if place < len(types) else ""
        listed.append(f"{before}{name if isinstance(name, str) else '_'}{annotation}{behind}")
    returned = f" -> {type_text(called['ret_type'])}" if "ret_type" in called else ""
    return f"({', '.join(listed)}){returned}"


def type_text(type_: object, depth: int = 0) -> str:
    """A type, cut short where it is long or deep."""
    if isinstance(type_, str):
        return type_[:_MAX_CHARS]
    if not isinstance(type_, dict) or depth > _MAX_DEPTH:
        return "..."

    def inner(key: str, separator: str = ", ") -> str:
        found = type_.get(key)
        parts = found if isinstance(found, list) else [found] if found is not None else []
        return separator.join([type_text(part, depth + 1) for part in parts])[:_MAX_CHARS]

    kind = type_.get(".class")
    name = next((n for key in ("type_ref", "name") if isinstance(n := type_.get(key), str)), "...")[:_MAX_CHARS]
    match kind:
        case "AnyType":
            return "Any"
        case "NoneType":
            return "None"
        case "UninhabitedType":
            return "Never"
        case "UnionType":
            return inner("items", " | ")
        case "TupleType":
            return f"tuple[{inner('items')}]"
        case "TypeType":
            return f"type[{inner('item')}]"
        case "UnpackType":
            return f"*{inner('type')}"
        case "LiteralType":
            return f"Literal[{repr(type_.get('value'))[:_MAX_CHARS]}]"
        case "TypedDictType":
            return inner("fallback")
        case "CallableType":
            return f"({inner('arg_types')}) -> {inner('ret_type')}"
        case "Overloaded":
            return inner("items", "; ")
    arguments = inner("args")
    return f"{name}[{arguments}]" if arguments else name


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
