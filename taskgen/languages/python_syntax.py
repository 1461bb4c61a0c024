"""A Python file as taskgen sees it: definitions, imports, ``__all__``, and uses of names.

Everything comes from tree-sitter; nothing is compiled or imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import tree_sitter_python
from tree_sitter import Language, Node

from taskgen import syntax
from taskgen.languages.python_scopes import Scope, Scopes, is_capture
from taskgen.languages.python_text import clean_docstring, docstring_node, one_line, strings
from taskgen.syntax import Parsed
from taskgen.types import Definition

PYTHON = Language(tree_sitter_python.language())

_IMPORTS = ("import_statement", "import_from_statement")
_ASSIGNMENTS = ("assignment", "augmented_assignment")
#: Kinds of nodes that are asked for by kind.
_INDEXED = {"identifier", "block", "call", *_IMPORTS, *_ASSIGNMENTS}
_TARGETS = ("pattern_list", "tuple_pattern", "list_pattern", "list_splat_pattern")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedName:
    """One name that an import statement binds.

    Attributes:
        statement: the whole import statement.
        part: the node that names it in the statement.
        local: the name bound here.
        module: the dotted module as written, with leading dots.
        name: the imported name, or None for ``import module``.
    """

    statement: Node
    part: Node
    local: str
    module: str
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A place where a name is read.

    Attributes:
        name: the bare name.
        node: the identifier (or the string in ``__all__``).
        attribute_of: for ``a.b.name``, the text before the last dot; ``cls`` for a member that is named bare in its
            own class's body; None for a bare name.
    """

    name: str
    node: Node
    attribute_of: str | None


@dataclass(kw_only=True)
class PythonFile:
    """A parsed Python file. ``module`` is its dotted name, e.g. ``pkg.sub.mod``; '' if it has none."""

    path: str
    module: str
    parsed: Parsed

    @property
    def source(self) -> bytes:
        return self.parsed.source

    @property
    def is_package(self) -> bool:
        return self.path.rsplit("/", 1)[-1] == "__init__.py"

    @cached_property
    def definitions(self) -> tuple[Definition, ...]:
        """Functions, classes and methods (not those nested in functions), in source order."""
        return tuple(self._define(self.parsed.root, ""))

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """The whole node (decorators included) of each definition, by qualified name; the last one wins."""
        return {d.qualified_name: self._node_at(d) for d in self.definitions}

    def nodes_named(self, qualified_name: str) -> list[Node]:
        """The whole nodes of all definitions of a name (overloads, setters), in source order."""
        return [self._node_at(d) for d in self.definitions if d.qualified_name == qualified_name]

    @cached_property
    def names_by_node(self) -> dict[int, str]:
        """Node id of each function and class that is a definition -> its qualified name."""
        found = {}
        for definition in self.definitions:
            node = self._node_at(definition)
            found[(node.child_by_field_name("definition") or node).id] = definition.qualified_name
        return found

    def _node_at(self, definition: Definition) -> Node:
        node = self.parsed.root.descendant_for_byte_range(definition.start_byte, definition.end_byte - 1)
        while node is not None and node.type not in (
            "decorated_definition",
            "function_definition",
            "class_definition",
        ):
            node = node.parent
        assert node is not None
        return node

    def _define(self, container: Node, prefix: str) -> Iterator[Definition]:
        for child in container.named_children:
            inner = child.child_by_field_name("definition") if child.type == "decorated_definition" else child
            if inner is None or inner.type not in ("function_definition", "class_definition"):
                continue
            definition = self._definition(child, inner, prefix)
            yield definition
            body = inner.child_by_field_name("body")
            if inner.type == "class_definition" and body is not None:
                yield from self._define(body, definition.qualified_name + ".")

    def _definition(self, whole: Node, inner: Node, prefix: str) -> Definition:
        name = self.parsed.text(_field(inner, "name"))
        body = _field(inner, "body")
        doc = docstring_node(body)
        kind: Literal["function", "method", "class"] = "method" if prefix else "function"
        if inner.type == "class_definition":
            kind = "class"
        after = doc.end_byte if doc is not None else body.start_byte
        return Definition(
            path=self.path,
            qualified_name=prefix + name,
            kind=kind,
            signature=self._signature(whole, inner),
            docstring=clean_docstring(self.parsed.text(doc)) if doc is not None else "",
            start_line=whole.start_point[0] + 1,
            end_line=body.end_point[0] + 1,
            body_line=self.source.count(b"\n", 0, _first_code(body, after)) + 1,
            start_byte=whole.start_byte,
            end_byte=body.end_byte,
            body_byte=body.start_byte,
            after_doc_byte=after,
        )

    def _signature(self, whole: Node, inner: Node) -> str:
        """The header on one line, decorators in front of it, without the final colon."""
        decorators = [self.parsed.text(c) for c in whole.children if c.type == "decorator"]
        header = one_line(self.parsed, inner, _field(inner, "body").start_byte)
        return "\n".join([*(" ".join(d.split()) for d in decorators), header.removesuffix(":").rstrip()])

    @cached_property
    def _by_kind(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = {kind: [] for kind in _INDEXED}
        for node in syntax.walk(self.parsed.root):
            if node.type in found:
                found[node.type].append(node)
        return found

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The suites of all headers in the file, in source order."""
        return tuple(Block.of(node) for node in self._by_kind["block"])

    @cached_property
    def constants(self) -> frozenset[str]:
        """The names that plain assignments at the top level bind."""
        inner = (
            c for n in self.parsed.root.named_children if n.type == "expression_statement" for c in n.named_children
        )
        lefts = (child.child_by_field_name("left") for child in inner if child.type == "assignment")
        return frozenset(self.parsed.text(left) for left in lefts if left is not None and left.type == "identifier")

    @cached_property
    def imports(self) -> tuple[ImportedName, ...]:
        """Every name bound by an import statement anywhere in the file."""
        nodes = sorted((n for kind in _IMPORTS for n in self._by_kind[kind]), key=lambda n: n.start_byte)
        return tuple(found for node in nodes for found in self._imported(node))

    def _imported(self, node: Node) -> Iterator[ImportedName]:
        source = node.child_by_field_name("module_name")
        module = self.parsed.text(source) if source is not None else None
        for part in node.children_by_field_name("name"):
            alias = part.child_by_field_name("alias")
            target = part.child_by_field_name("name") if part.type == "aliased_import" else part
            name = self.parsed.text(target) if target is not None else ""
            local = self.parsed.text(alias) if alias is not None else name if module else name.split(".")[0]
            yield ImportedName(
                statement=node, part=part, local=local, module=module or name, name=name if module else None
            )

    @cached_property
    def global_imports(self) -> tuple[tuple[ImportedName, tuple[Use, ...]], ...]:
        """The imports outside functions (``__future__`` is none), each with the uses of its name in this file."""
        return tuple(
            (imported, tuple(u for u in self.uses.get(imported.local, ()) if u.attribute_of is None))
            for imported in self.imports
            if imported.module != "__future__"
            and not any(a.type in ("function_definition", "lambda") for a in syntax.ancestors(imported.statement))
        )

    @cached_property
    def exported(self) -> dict[str, Node]:
        """The strings of ``__all__`` and their nodes."""
        places = [
            (n.child_by_field_name("left"), n.child_by_field_name("right"))
            for k in _ASSIGNMENTS
            for n in self._by_kind[k]
        ]
        places += [
            (n.child_by_field_name("function"), n.child_by_field_name("arguments")) for n in self._by_kind["call"]
        ]
        wanted = ("__all__", "__all__.append", "__all__.extend")
        return {
            name: node
            for target, value in places
            if target is not None and value is not None and self.parsed.text(target) in wanted
            for name, node in strings(self.parsed, value)
        }

    @cached_property
    def uses(self) -> dict[str, list[Use]]:
        """Reads of names, by bare name: global names and attributes, not definitions, imports or locals."""
        found: dict[str, list[Use]] = {}
        scopes = Scopes(self.parsed)
        for node in self._by_kind["identifier"]:
            if (use := self._use(node, scopes)) is not None:
                found.setdefault(use.name, []).append(use)
        for name, node in self.exported.items():
            found.setdefault(name, []).append(Use(name=name, node=node, attribute_of=None))
        return found

    def _use(self, node: Node, scopes: Scopes) -> Use | None:
        parent = node.parent
        assert parent is not None
        name = self.parsed.text(node)
        if parent.type == "attribute" and parent.child_by_field_name("attribute") == node:
            return Use(name=name, node=node, attribute_of=self.parsed.text(_field(parent, "object")))
        if parent.type in ("dotted_name", "aliased_import"):
            return self._pattern_use(node, parent, scopes)
        if parent.type in ("function_definition", "class_definition", "keyword_argument") and (
            parent.child_by_field_name("name") == node
        ):
            return None
        if parent.type in ("keyword_pattern", "splat_pattern") and parent.named_children[0] == node:
            return None
        return None if _is_binding(node) else self._bare(node, name, scopes)

    def _bare(self, node: Node, name: str, scopes: Scopes) -> Use | None:
        match scopes.of(node, name):
            case Scope.LOCAL:
                return None
            case Scope.MEMBER:
                return Use(name=name, node=node, attribute_of="cls")
            case Scope.GLOBAL:
                return Use(name=name, node=node, attribute_of=None)

    def _pattern_use(self, node: Node, dotted: Node, scopes: Scopes) -> Use | None:
        """A use in a dotted name: of a ``case`` pattern, for those of imports only bind."""
        if dotted.type == "aliased_import" or is_capture(dotted):
            return None
        if any(a.type in (*_IMPORTS, "future_import_statement") for a in syntax.ancestors(dotted)):
            return None
        before = self.source[dotted.start_byte : node.start_byte].decode("utf-8", "replace").rstrip(". ")
        if before:
            return Use(name=self.parsed.text(node), node=node, attribute_of=before)
        return self._bare(node, self.parsed.text(node), scopes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The suite of a header (``def``, ``if``, ``try`` ...).

    Attributes:
        header: where the header's last colon stands.
        statements: start and end of each statement; comments are none.
    """

    header: int
    start: int
    end: int
    statements: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, node: Node) -> Block:
        colon = node.prev_sibling
        while colon is not None and colon.type != ":":
            colon = colon.prev_sibling
        return cls(
            header=colon.start_byte if colon is not None else node.start_byte,
            start=node.start_byte,
            end=node.end_byte,
            statements=tuple((c.start_byte, c.end_byte) for c in node.named_children if c.type != "comment"),
        )


def _is_binding(node: Node) -> bool:
    """Whether an assignment or a loop at module or class level binds this identifier."""
    child, parent = node, node.parent
    while parent is not None and parent.type in _TARGETS:
        child, parent = parent, parent.parent
    return (
        parent is not None
        and parent.type in ("assignment", "for_statement", "for_in_clause")
        and parent.child_by_field_name("left") == child
    )


def _field(node: Node, name: str) -> Node:
    found = node.child_by_field_name(name)
    if found is None:
        raise ValueError(f"{node.type} without {name} at byte {node.start_byte}")
    return found


def _first_code(body: Node, after: int) -> int:
    """The first byte of code in a block behind its docstring (the docstring itself if there is none)."""
    for child in body.named_children:
        if child.start_byte >= after and child.type != "comment":
            return int(child.start_byte)
    return int(body.end_byte)


def parse_python(path: str, module: str, source: bytes) -> PythonFile:
    """Parse a Python file."""
    return PythonFile(path=path, module=module, parsed=syntax.parse(PYTHON, source))
