"""Where a definition may be mutated: code that runs, and whose change somebody can see."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from taskgen.languages.python_mutations import MUTATIONS, Mutation
from taskgen.languages.python_text import docstring_node
from taskgen.syntax import Parsed

#: Nothing below these runs, or it is none of the definition's behaviour. ``type`` is any annotation.
_LEFT_ALONE = {"decorator", "type", "type_parameter", "type_alias_statement", "comment", "import_statement",
               "import_from_statement", "global_statement", "nonlocal_statement"}  # fmt: skip
_ENDS = ("return_statement", "raise_statement", "break_statement", "continue_statement")
_TYPING_CALLS = {"TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "cast", "assert_type", "reveal_type"}
#: Calls of these names take messages for people; tests that check their words are rare and brittle.
_LOG_CALLS = {"debug", "info", "warning", "warn", "error", "exception", "critical", "log", "print"}
_LOGGERS = {"log", "logger", "logging", "_log", "_logger", "LOG", "LOGGER"}


def sites(parsed: Parsed, definition: Node) -> Iterator[Mutation]:
    """What may be done to a function or class (its whole node, decorators included), in source order."""
    inner = definition.child_by_field_name("definition") or definition
    # (node, whether text in it is a message)
    stack: list[tuple[Node, bool]] = [(inner, False)]
    while stack:
        node, in_message = stack.pop()
        if node.type in _LEFT_ALONE:
            continue
        if not (in_message and node.type == "string") and not _is_invisible(parsed, node):
            for mutate in MUTATIONS.get(node.type, ()):
                yield from mutate(parsed, node)
        in_message = in_message or _takes_message(parsed, node)
        stack.extend((child, in_message) for child in reversed(_inside(parsed, node)))


def is_overload(parsed: Parsed, definition: Node) -> bool:
    """Whether this is one of a function's ``@overload`` headers, which only type checkers read."""
    decorators = [parsed.text(c) for c in definition.children if c.type == "decorator"]
    return any(d.lstrip("@ ").rpartition(".")[2].strip() == "overload" for d in decorators)


def _inside(parsed: Parsed, node: Node) -> list[Node]:
    """The children that may be mutated."""
    match node.type:
        case "block":
            return _reached(node)
        case "parameters" | "lambda_parameters":
            return []  # the defaults are done; what remains are names and annotations
        case "class_definition":
            body = node.child_by_field_name("body")
            return [body] if body is not None else []
        case "decorated_definition":
            return [] if is_overload(parsed, node) else node.children
        case "expression_statement" if all(c.type in ("string", "concatenated_string") for c in node.named_children):
            return []  # documentation of an attribute, or text put aside
        case "if_statement" if _is_type_checking(parsed, node):
            return node.children_by_field_name("alternative")
        case "elif_clause" if _is_type_checking(parsed, node):
            return []
        case "call" if _called(parsed, node) in _TYPING_CALLS:
            return []
    return node.children


def _reached(block: Node) -> list[Node]:
    """The statements of a block up to the first after which nothing runs, without the docstring."""
    found: list[Node] = []
    doc = docstring_node(block) if _is_documented(block) else None
    for child in block.named_children:
        if child != doc:
            found.append(child)
        if child.type in _ENDS:
            break
    return found


def _is_documented(block: Node) -> bool:
    return block.parent is not None and block.parent.type in ("function_definition", "class_definition")


def _is_type_checking(parsed: Parsed, node: Node) -> bool:
    condition = node.child_by_field_name("condition")
    return condition is not None and parsed.text(condition).rpartition(".")[2] == "TYPE_CHECKING"


def _takes_message(parsed: Parsed, node: Node) -> bool:
    return node.type in ("raise_statement", "assert_statement") or (
        node.type == "call" and _called(parsed, node) in _LOG_CALLS
    )


def _is_invisible(parsed: Parsed, node: Node) -> bool:
    return _is_log_statement(parsed, node) or (
        node.type in ("if_statement", "elif_clause") and _is_type_checking(parsed, node)
    )


def _is_log_statement(parsed: Parsed, node: Node) -> bool:
    """Whether a statement only writes to a log: without it, nothing that a test sees has changed."""
    if node.type != "expression_statement" or node.named_child_count != 1:
        return False
    call = node.named_children[0]
    function = call.child_by_field_name("function") if call.type == "call" else None
    if function is None or function.type != "attribute" or _called(parsed, call) not in _LOG_CALLS:
        return False
    owner = function.child_by_field_name("object")
    return owner is not None and parsed.text(owner).rpartition(".")[2] in _LOGGERS


def _called(parsed: Parsed, call: Node) -> str:
    """The last name of what is called."""
    function = call.child_by_field_name("function")
    return parsed.text(function).rpartition(".")[2] if function is not None else ""
