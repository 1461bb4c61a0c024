"""Definitions in source text of several languages, by tree-sitter grammars: what fingerprints are made of.

One reading for all languages: which nodes define something, and where name, parameters and body of one stand. It is
meant for code that was deleted, to recognise it again; not for editing it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import PurePosixPath

import tree_sitter_c
import tree_sitter_go
import tree_sitter_java
import tree_sitter_javascript
import tree_sitter_python
import tree_sitter_rust
import tree_sitter_typescript
from tree_sitter import Language, Node

from taskgen import syntax

MAX_SIGNATURE_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeUnit:
    """A function, method, class or type in a file.

    Attributes:
        qualified_name: with the classes and functions around it, joined by dots.
        parameters: their names in order; None for what takes none (classes).
        header: source from its name to the body, on one line: ``name(self, a, b=1) -> int``.
        docstring: its docstring, or the comment right before it, without marks of comments.
        strings, numbers: constants in it, as written in the source (strings without quotes).
        first_line, name_line, body_line, last_line: count from 1; decorators come before name_line, which the header
            begins on; body_line is the first of the body behind the docstring.
        is_container: it holds other units, which are listed too.
    """

    qualified_name: str
    parameters: tuple[str, ...] | None
    header: str
    docstring: str
    strings: tuple[str, ...]
    numbers: tuple[str, ...]
    first_line: int
    name_line: int
    body_line: int
    last_line: int
    is_container: bool

    @property
    def name(self) -> str:
        return self.qualified_name.rpartition(".")[2]


_LANGUAGES = {
    "python": lambda: tree_sitter_python.language(),
    "javascript": lambda: tree_sitter_javascript.language(),
    "typescript": lambda: tree_sitter_typescript.language_typescript(),
    "tsx": lambda: tree_sitter_typescript.language_tsx(),
    "java": lambda: tree_sitter_java.language(),
    "go": lambda: tree_sitter_go.language(),
    "rust": lambda: tree_sitter_rust.language(),
    "c": lambda: tree_sitter_c.language(),
}
_SUFFIXES = {
    ".py": "python", ".pyi": "python", ".pyx": "python",
    ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript", ".jsx": "javascript",
    ".ts": "typescript", ".mts": "typescript", ".cts": "typescript", ".tsx": "tsx",
    ".java": "java", ".go": "go", ".rs": "rust",
    ".c": "c", ".h": "c", ".cc": "c", ".cpp": "c", ".cxx": "c", ".hpp": "c", ".i": "c",
}  # fmt: skip
_FUNCTIONS = frozenset({
    "function_definition", "function_declaration", "generator_function_declaration", "method_definition",
    "method_declaration", "constructor_declaration", "function_item", "function_signature", "function_signature_item",
    "abstract_method_signature", "method_signature", "method_elem",
})  # fmt: skip
_CONTAINERS = frozenset({
    "class_definition", "class_declaration", "abstract_class_declaration", "interface_declaration",
    "enum_declaration", "record_declaration", "type_spec", "struct_item", "enum_item", "trait_item", "impl_item",
    "internal_module", "struct_specifier",
})  # fmt: skip
_FUNCTION_VALUES = frozenset({"arrow_function", "function_expression", "function", "generator_function"})
_IDENTIFIERS = frozenset({
    "identifier", "property_identifier", "field_identifier", "type_identifier", "private_property_identifier",
    "shorthand_property_identifier_pattern",
})  # fmt: skip
_STRINGS = frozenset({
    "string", "string_literal", "interpreted_string_literal", "raw_string_literal", "template_string", "char_literal",
})  # fmt: skip
_NUMBERS = frozenset({
    "integer", "float", "number", "number_literal", "int_literal", "float_literal", "integer_literal",
    "decimal_integer_literal", "hex_integer_literal", "decimal_floating_point_literal",
})  # fmt: skip


def language_of(path: str) -> str | None:
    """The language of a file, by its suffix; None for one that is not read here."""
    return _SUFFIXES.get(PurePosixPath(path).suffix.lower())


def family_of(path: str) -> str:
    """The language of a file, those that are compiled to another counting as it; '' for one that is not read here."""
    language = language_of(path) or ""
    return "javascript" if language in ("typescript", "tsx") else language


@cache
def _grammar(language: str) -> Language:
    return Language(_LANGUAGES[language]())  # type: ignore[no-untyped-call]


@lru_cache(maxsize=512)
def units(source: bytes, language: str) -> tuple[CodeUnit, ...]:
    """All units of a file, in the order of the source; broken parts of a file are passed over."""
    parsed = syntax.parse(_grammar(language), source)
    found = []
    # (node, qualified name of what is around it); no recursion, since hostile files nest deeply.
    stack: list[tuple[Node, str]] = [(parsed.root, "")]
    while stack:
        node, owner = stack.pop()
        unit = _unit(parsed, node, owner)
        if unit is not None:
            found.append(unit)
            owner = unit.qualified_name
        stack.extend((child, owner) for child in reversed(node.named_children))
    return tuple(found)


def _unit(parsed: syntax.Parsed, node: Node, owner: str) -> CodeUnit | None:
    value = node
    if node.type == "variable_declarator" or node.type in ("public_field_definition", "field_definition", "pair"):
        held = node.child_by_field_name("value")
        if held is None or held.type not in _FUNCTION_VALUES:
            return None
        value = held
    elif node.type not in _FUNCTIONS | _CONTAINERS:
        return None
    named = _name_node(node)
    if named is None:
        return None
    body = value.child_by_field_name("body")
    parameters = _parameters(parsed, value)
    doc, after_doc = _documentation(parsed, node, body)
    name = parsed.text(named)
    header_end = body.start_byte if body is not None else node.end_byte
    header = " ".join(
        parsed.source[named.start_byte : header_end][:MAX_SIGNATURE_CHARS].decode("utf-8", "replace").split()
    )
    strings, numbers = _constants(parsed, body if body is not None else node)
    outer = node.parent if node.parent is not None and node.parent.type == "decorated_definition" else node
    body_line = after_doc if after_doc else (body or node).start_point.row + 1
    return CodeUnit(
        qualified_name=f"{owner}.{name}" if owner else name,
        parameters=None if node.type in _CONTAINERS else parameters,
        header=header.rstrip(" :{="),
        docstring=doc,
        strings=strings,
        numbers=numbers,
        first_line=outer.start_point.row + 1,
        name_line=node.start_point.row + 1,
        body_line=body_line,
        last_line=_last_row(node) + 1,
        is_container=node.type in _CONTAINERS,
    )


def _last_row(node: Node) -> int:
    end = node.end_point
    return end.row - 1 if end.column == 0 and end.row > node.start_point.row else end.row


def _name_node(node: Node) -> Node | None:
    found = node.child_by_field_name("name") or node.child_by_field_name("type" if node.type == "impl_item" else "key")
    if found is not None:
        return found
    found = node.child_by_field_name("declarator")  # C: the name is inside pointers and the parameter list
    while found is not None and found.type not in _IDENTIFIERS:
        found = found.child_by_field_name("declarator")
    return found


def _parameter_list(value: Node) -> Node | None:
    found = value.child_by_field_name("parameters") or value.child_by_field_name("parameter")
    declarator = value.child_by_field_name("declarator")
    while found is None and declarator is not None:
        found = declarator.child_by_field_name("parameters")
        declarator = declarator.child_by_field_name("declarator")
    return found


def _parameters(parsed: syntax.Parsed, value: Node) -> tuple[str, ...]:
    listed = _parameter_list(value)
    if listed is None:
        return ()
    if listed.type in _IDENTIFIERS:  # x => x + 1
        return (parsed.text(listed),)
    names: list[str] = []
    for child in listed.named_children:
        names += _parameter_names(parsed, child)
    return tuple(names)


def _parameter_names(parsed: syntax.Parsed, node: Node) -> list[str]:
    if node.type == "self_parameter":
        return ["self"]
    if node.type in ("comment", "line_comment", "block_comment"):
        return []
    named = node.children_by_field_name("name")  # Go: a, b int
    if named:
        return [parsed.text(child) for child in named]
    for field in ("pattern", "declarator", "left"):
        if (inner := node.child_by_field_name(field)) is not None:
            node = inner
    first = next((n for n in syntax.walk(node) if n.type in _IDENTIFIERS), None)
    return [parsed.text(first)] if first is not None else []


def _documentation(parsed: syntax.Parsed, node: Node, body: Node | None) -> tuple[str, int]:
    """The text of the docstring or leading comment, and the first line behind a docstring (0: there is none)."""
    first = body.named_children[0] if body is not None and body.named_children else None
    if first is not None and first.type == "expression_statement" and first.named_children:
        first = first.named_children[0]
    if first is not None and first.type == "string" and node.type in ("function_definition", "class_definition"):
        text = parsed.text(first).lstrip("rRbBuUfF").strip("\"'")
        return text, first.end_point.row + 2
    comments: list[str] = []
    wrapped = node.parent is not None and node.parent.type in ("export_statement", "lexical_declaration")
    before = (node.parent if wrapped and node.parent is not None else node).prev_named_sibling
    while before is not None and "comment" in before.type:
        comments.insert(0, parsed.text(before))
        before = before.prev_named_sibling
    lines = [line.strip().strip("/*!#").strip() for text in comments for line in text.splitlines()]
    return "\n".join(line for line in lines if line), 0


def _constants(parsed: syntax.Parsed, node: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
    strings, numbers = [], []
    for inner in syntax.walk(node):
        if inner.type in _STRINGS:
            strings.append(parsed.text(inner).lstrip("rRbBuUfFL").strip("\"'`"))
        elif inner.type in _NUMBERS:
            numbers.append(parsed.text(inner))
    return tuple(dict.fromkeys(strings)), tuple(dict.fromkeys(numbers))


def without_types(source: bytes, language: str) -> bytes:
    """TypeScript as the JavaScript that it becomes; other languages as they are. For comparing tokens."""
    if language not in ("typescript", "tsx"):
        return source
    parsed = syntax.parse(_grammar(language), source)
    kept, start = bytearray(), 0
    for node in syntax.walk(parsed.root):
        if node.type in ("type_annotation", "type_parameters", "type_arguments") and node.start_byte >= start:
            kept += source[start : node.start_byte]
            start = node.end_byte
    return bytes(kept) + source[start:]
