"""Whose name it is: of a function around it, of the class whose body it stands in, or of the module."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from tree_sitter import Node

from taskgen import syntax
from taskgen.syntax import Parsed

_FUNCTIONS = {"function_definition", "lambda"}
_COMPREHENSIONS = {"list_comprehension", "set_comprehension", "dictionary_comprehension", "generator_expression"}
_BIND_AT_END = {"assignment", "function_definition", "class_definition"}


class Scope(Enum):
    """Where a name that is read comes from."""

    LOCAL = auto()
    MEMBER = auto()
    GLOBAL = auto()


class Scopes:
    """Answers for one file, remembered by scope."""

    def __init__(self, parsed: Parsed) -> None:
        self._parsed = parsed
        self._bound: dict[int, frozenset[str]] = {}
        self._classes: dict[int, dict[str, int]] = {}

    def of(self, node: Node, name: str) -> Scope:
        """The scope that binds ``name`` as it is read at ``node`` (names that nobody binds are global)."""
        child, hidden = node, False
        for scope in syntax.ancestors(node):
            if scope.type in _FUNCTIONS:
                inside = child == scope.child_by_field_name("body")
                hidden = hidden or inside
                if (inside and name in self._names(scope)) or (not inside and self._is_parameter(scope, node)):
                    return Scope.LOCAL
            elif scope.type in _COMPREHENSIONS and name in self._names(scope):
                return Scope.LOCAL
            elif scope.type == "class_definition" and child == scope.child_by_field_name("body"):
                if not hidden and self._members(scope).get(name, node.start_byte) < node.start_byte:
                    return Scope.MEMBER
                hidden = True  # members of classes further out cannot be read from here
            child = scope
        return Scope.GLOBAL

    def _is_parameter(self, scope: Node, node: Node) -> bool:
        return any(node == parameter for parameter in parameters(scope))

    def _names(self, scope: Node) -> frozenset[str]:
        if (known := self._bound.get(scope.id)) is None:
            known = self._bound[scope.id] = self._bindings(scope)
        return known

    def _members(self, scope: Node) -> dict[str, int]:
        """The names that a class's body binds, and from which byte on; before that they mean something else."""
        if (known := self._classes.get(scope.id)) is None:
            known = self._classes[scope.id] = {}
            body = scope.child_by_field_name("body")
            for node in _own(body) if body is not None else ():
                for name in bound(node):
                    end = node.end_byte if node.type in _BIND_AT_END else name.end_byte
                    text = self._parsed.text(name).split(".")[0]
                    known[text] = min(known.get(text, end), end)
        return known

    def _bindings(self, scope: Node) -> frozenset[str]:
        text = self._parsed.text
        if scope.type in _COMPREHENSIONS:
            lefts = [c.child_by_field_name("left") for c in scope.named_children if c.type == "for_in_clause"]
            return frozenset(text(i) for left in lefts if left is not None for i in _identifiers(left))
        names, outer = {text(p) for p in parameters(scope)}, set()
        body = scope.child_by_field_name("body")
        for node in _own(body) if body is not None else ():
            if node.type in ("global_statement", "nonlocal_statement"):
                outer |= {text(c) for c in node.named_children}
            else:
                names |= {text(n).split(".")[0] for n in bound(node)}
        return frozenset(names - outer)


def parameters(scope: Node) -> Iterator[Node]:
    """The identifiers of a function's parameters."""
    found = scope.child_by_field_name("parameters")
    for child in found.named_children if found is not None else ():
        first: Node | None = child if child.type == "identifier" else child.child_by_field_name("name")
        while first is None or first.type != "identifier":
            inner = child if first is None else first
            if not inner.named_child_count:
                break
            first = inner.named_children[0]
        if first is not None and first.type == "identifier":
            yield first


def bound(node: Node) -> Iterator[Node]:
    """The names that this node itself (not what is in it) binds in its scope."""
    match node.type:
        case "assignment" | "augmented_assignment" | "for_statement":
            yield from _identifiers(node.child_by_field_name("left"))
        case "function_definition" | "class_definition" | "named_expression":
            yield from _identifiers(node.child_by_field_name("name"))
        case "as_pattern":
            alias = node.child_by_field_name("alias")
            last = node.named_children[-1]
            yield from _identifiers(alias if alias is not None or last.type != "identifier" else last)
        case "import_statement" | "import_from_statement":
            for part in node.children_by_field_name("name"):
                yield part.child_by_field_name("alias") or part
        case "splat_pattern":
            yield from _identifiers(node)
        case "dotted_name" if is_capture(node):
            yield node.named_children[0]


def is_capture(node: Node) -> bool:
    """Whether a dotted name is a name that ``case`` binds."""
    parent = node.parent
    patterns = ("case_pattern", "keyword_pattern", "union_pattern")
    return node.named_child_count == 1 and parent is not None and parent.type in patterns


def _own(body: Node) -> Iterator[Node]:
    """The nodes of a scope's body, without what functions, lambdas and classes in it bind for themselves."""
    stack = [body]
    while stack:
        current = stack.pop()
        yield current
        if current.type not in _FUNCTIONS and current.type != "class_definition":
            stack.extend(current.named_children)


def _identifiers(target: Node | None) -> Iterator[Node]:
    stack = [target] if target is not None else []
    while stack:
        current = stack.pop()
        if current.type == "identifier":
            yield current
        elif current.type not in ("attribute", "subscript"):
            stack.extend(current.named_children)
