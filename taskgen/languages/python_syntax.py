"""A Python file as taskgen sees it: definitions, imports, ``__all__``, and uses of names.

Everything comes from tree-sitter; nothing is compiled or imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import tree_sitter_python
from tree_sitter import Language, Node

from taskgen import syntax
from taskgen.syntax import Parsed
from taskgen.types import Definition

PYTHON = Language(tree_sitter_python.language())

_SCOPES = {"function_definition", "lambda"}
_COMPREHENSIONS = {
    "list_comprehension",
    "set_comprehension",
    "dictionary_comprehension",
    "generator_expression",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedName:
    """One name that an import statement binds.

    Attributes:
        statement: the whole import statement.
        part: the node that names it, in a list of names; None when the statement binds this name alone.
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
        attribute_of: for ``a.b.name``, the text before the last dot; None for a bare name.
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
    _locals: dict[int, frozenset[str]] = field(default_factory=dict, init=False, repr=False)

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
        kind: Literal["function", "method", "class"] = "class" if inner.type == "class_definition" else "method" if prefix else "function"
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
        header = self.source[inner.start_byte : _field(inner, "body").start_byte].decode("utf-8", "replace")
        header = re.sub(r"\s+#[^\n'\"]*\n", "\n", header)
        header = re.sub(r"\s+", " ", header).strip().removesuffix(":").rstrip()
        header = re.sub(r"([(\[]) ", r"\1", re.sub(r",? ([)\]])", r"\1", header))
        return "\n".join([*(" ".join(d.split()) for d in decorators), header])

    @cached_property
    def imports(self) -> tuple[ImportedName, ...]:
        """Every name bound by an import statement anywhere in the file."""
        return tuple(found for node in syntax.walk(self.parsed.root) for found in self._imported(node))

    def _imported(self, node: Node) -> Iterator[ImportedName]:
        if node.type not in ("import_statement", "import_from_statement"):
            return
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
    def exported(self) -> dict[str, Node]:
        """The strings of ``__all__`` and their nodes."""
        found: dict[str, Node] = {}
        for node in syntax.walk(self.parsed.root):
            if node.type in ("assignment", "augmented_assignment"):
                left = node.child_by_field_name("left")
                right = node.child_by_field_name("right")
                if left is None or right is None or self.parsed.text(left) != "__all__":
                    continue
                for string in syntax.walk(right):
                    if string.type == "string":
                        found[string_value(self.parsed.text(string))] = string
        return found

    @cached_property
    def uses(self) -> dict[str, list[Use]]:
        """Reads of names, by bare name: global names and attributes, not definitions, imports or locals."""
        found: dict[str, list[Use]] = {}
        for node in syntax.walk(self.parsed.root):
            if node.type == "identifier" and (use := self._use(node)) is not None:
                found.setdefault(use.name, []).append(use)
        for name, node in self.exported.items():
            found.setdefault(name, []).append(Use(name=name, node=node, attribute_of=None))
        return found

    def _use(self, node: Node) -> Use | None:
        parent = node.parent
        assert parent is not None
        name = self.parsed.text(node)
        if parent.type == "attribute" and parent.child_by_field_name("attribute") == node:
            owner = self.parsed.text(_field(parent, "object"))
            return Use(name=name, node=node, attribute_of=owner)
        if (
            parent.type in ("function_definition", "class_definition")
            and parent.child_by_field_name("name") == node
        ):
            return None
        if parent.type == "keyword_argument" and parent.child_by_field_name("name") == node:
            return None
        if any(a.type in ("import_statement", "import_from_statement") for a in syntax.ancestors(node)):
            return None
        if self._is_binding(node) or self.is_local(node, name):
            return None
        return Use(name=name, node=node, attribute_of=None)

    def _is_binding(self, node: Node) -> bool:
        """Whether a module- or class-level assignment binds this identifier."""
        parent = node.parent
        return (
            parent is not None and parent.type == "assignment" and parent.child_by_field_name("left") == node
        )

    def is_local(self, node: Node, name: str) -> bool:
        """Whether ``name`` at ``node`` is a local variable or a parameter of an enclosing function."""
        for scope in syntax.ancestors(node):
            if scope.type in _SCOPES and name in self._local_names(scope):
                body = scope.child_by_field_name("body")
                header = body is not None and node.start_byte < body.start_byte
                if not header or name in self._parameters(scope):
                    return True
            if scope.type in _COMPREHENSIONS and name in self._targets(scope):
                return True
        return False

    def _parameters(self, scope: Node) -> set[str]:
        parameters = scope.child_by_field_name("parameters")
        if parameters is None:
            return set()
        names = set()
        for child in parameters.named_children:
            first = child if child.type == "identifier" else child.child_by_field_name("name")
            if first is None and child.named_child_count:
                first = child.named_children[0]
            while first is not None and first.type != "identifier" and first.named_child_count:
                first = first.named_children[0]
            if first is not None:
                names.add(self.parsed.text(first))
        return names

    def _targets(self, scope: Node) -> set[str]:
        lefts = [n.child_by_field_name("left") for n in syntax.walk(scope) if n.type == "for_in_clause"]
        return {
            self.parsed.text(i)
            for left in lefts
            if left is not None
            for i in syntax.walk(left)
            if i.type == "identifier"
        }

    def _local_names(self, scope: Node) -> frozenset[str]:
        if (known := self._locals.get(scope.id)) is not None:
            return known
        names, outer = self._parameters(scope), set()
        body = scope.child_by_field_name("body")
        for node in syntax.walk(body) if body is not None else ():
            if node.type in ("global_statement", "nonlocal_statement"):
                outer |= {self.parsed.text(c) for c in node.named_children}
            elif node.type in ("function_definition", "class_definition"):
                names.add(self.parsed.text(_field(node, "name")))
            elif node.type in ("import_statement", "import_from_statement"):
                names |= {found.local for found in self._imported(node)}
            else:
                names |= {self.parsed.text(t) for t in _bound_identifiers(node)}
        result = frozenset(names - outer)
        self._locals[scope.id] = result
        return result


def _bound_identifiers(node: Node) -> Iterator[Node]:
    """The identifiers that an assignment, loop, with or walrus binds."""
    if node.type in ("assignment", "augmented_assignment", "for_statement"):
        target = node.child_by_field_name("left")
    elif node.type == "named_expression":
        target = node.child_by_field_name("name")
    elif node.type == "as_pattern":
        target = node.child_by_field_name("alias")
    else:
        target = None
    if target is None:
        return
    stack = [target]
    while stack:
        current = stack.pop()
        if current.type == "identifier":
            yield current
        elif current.type not in ("attribute", "subscript"):
            stack.extend(current.named_children)


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


def docstring_node(body: Node) -> Node | None:
    """The docstring's expression statement of a block, if its first statement is one."""
    statements = [c for c in body.named_children if c.type != "comment"]
    if not statements or statements[0].type != "expression_statement":
        return None
    inner = statements[0].named_children
    return statements[0] if len(inner) == 1 and inner[0].type in ("string", "concatenated_string") else None


def string_value(literal: str) -> str:
    """The text between the quotes of a string literal, prefixes dropped, escapes left as they are."""
    text = literal.strip().lstrip("rRuUbBfF")
    for quotes in ('"""', "'''", '"', "'"):
        if text.startswith(quotes) and text.endswith(quotes) and len(text) >= 2 * len(quotes):
            return text[len(quotes) : -len(quotes)]
    return text


def clean_docstring(literal: str) -> str:
    """A docstring without quotes and common indentation (PEP 257)."""
    lines = string_value(literal).expandtabs().splitlines()
    indents = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    margin = min(indents, default=0)
    cleaned = [line.strip() for line in lines[:1]] + [line[margin:].rstrip() for line in lines[1:]]
    return "\n".join(cleaned).strip("\n")


def parse_python(path: str, module: str, source: bytes) -> PythonFile:
    """Parse a Python file."""
    return PythonFile(path=path, module=module, parsed=syntax.parse(PYTHON, source))
