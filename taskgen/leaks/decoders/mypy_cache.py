"""mypy's caches: what it knows of a module, in the binary form of mypy 2 or in the older JSON. Both stand in files, or
in the rows of a SQLite database.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from taskgen.leaks.blob import Blob, Unreadable, parsing
from taskgen.leaks.decoders import mypy_binary
from taskgen.leaks.decoders.mypy_types import signature, type_text
from taskgen.leaks.records import Problem, Symbol

NAME = "mypy cache"
RAW_STRINGS = True
MAX_BYTES = 32 << 20
_JSON = re.compile(rb'\{\s*"\.class":\s*"MypyFile"')
_NAMED = frozenset({"FuncDef", "Var", "TypeInfo", "TypeAlias", "TypeVarExpr", "ParamSpecExpr", "TypeVarTupleExpr"})
_CALLED = frozenset({"CallableType", "Overloaded"})
_MAX_SIGNATURE_CHARS = 4000
_CHECK_EVERY = 1024


def matches(head: bytes, name: str) -> bool:
    """A module's tag, name and table; or the class that JSON names first."""
    return mypy_binary.is_module(head) or (head[:1] == b"{" and _JSON.match(head) is not None)


def decode(blob: Blob) -> Iterator[Symbol | Problem]:
    """Functions with their parameters and types, classes, variables and aliases."""
    data = blob.read(MAX_BYTES)
    is_json = data[:1] == b"{"
    if is_json and data.count(b"{") + data.count(b"[") > mypy_binary.MAX_NODES:
        raise Unreadable(f"a mypy cache of more than {mypy_binary.MAX_NODES:,} objects")
    with parsing("mypy cache"):
        tree = json.loads(data) if is_json else mypy_binary.Reader(data=data, budget=blob.budget).value()
    n_odd = 0
    for number, node in enumerate(_definitions(tree)):
        if number % _CHECK_EVERY == 0:
            blob.budget.check_time()
        if symbol := _symbol(node):
            yield symbol
        else:
            n_odd += 1
    if n_odd:
        yield Problem(reason=f"mypy cache: {n_odd:,} definitions of an unknown layout")


def _definitions(tree: object) -> Iterator[dict[str, Any]]:
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            kind = node.get(".class")
            if isinstance(kind, str) and kind in _NAMED:
                yield node
            stack += reversed(node.values())
        elif isinstance(node, list):
            stack += reversed(node)


def _symbol(node: dict[str, Any]) -> Symbol | None:
    """None if the node has not what a definition of its kind has."""
    full, name, kind = node.get("fullname"), node.get("name"), node[".class"]
    if name is None and isinstance(full, str):
        name = full.rpartition(".")[2]
    if not isinstance(name, str) or not name:
        return None
    parameters, text = None, ""
    if kind == "FuncDef":
        arguments = node.get("arg_names")
        if not isinstance(arguments, list):
            return None
        parameters = tuple(argument if isinstance(argument, str) else "_" for argument in arguments)
        text = f"def {name}{signature(node, node.get('type'))}"
    elif kind == "Var" and isinstance(node.get("type"), dict) and node["type"].get(".class") in _CALLED:
        text = f"{name}: {type_text(node['type'])}"
    elif kind == "TypeAlias":
        text = f"{name} = {type_text(node.get('target'))}"
    elif kind == "TypeInfo" and isinstance(node.get("bases"), list):
        text = f"class {name}({', '.join(map(type_text, node['bases']))})"
    value = node.get("final_value")
    return Symbol(
        name=name,
        qualified_name=full if isinstance(full, str) else "",
        parameters=parameters,
        signature=text[:_MAX_SIGNATURE_CHARS],
        constants=(value,) if isinstance(value, str) else (),
    )
