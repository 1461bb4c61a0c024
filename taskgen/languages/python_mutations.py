"""The mutation operators: what may be done to one node of a Python file. Where it may be done: python_mutation_sites.

The operators follow those of mutation testing's literature (relational, arithmetic, logical and constant replacement,
statement deletion: Offutt et al., TOSEM 1996), with a few of Python's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tree_sitter import Node

from taskgen.syntax import Parsed


class MutationOperator(StrEnum):
    """The kinds of fault."""

    COMPARISON = "comparison swapped"
    ARITHMETIC = "arithmetic swapped"
    BOOLEAN = "boolean swapped"
    CONDITION = "condition negated"
    CONSTANT = "constant changed"
    RETURN = "return None"
    STATEMENT = "statement deleted"
    NOT = "not removed"
    LOOP = "break and continue swapped"
    SLICE = "slice moved"
    AUGMENTED = "augmented assignment swapped"
    EXCEPTION = "exception type changed"
    DEFAULT = "argument default changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """Replace the bytes [start, end) by ``text``."""

    operator: MutationOperator
    start: int
    end: int
    text: bytes


_COMPARISONS = {
    "<": b"<=", "<=": b"<", ">": b">=", ">=": b">", "==": b"!=", "!=": b"==",
    "is": b"is not", "is not": b"is", "in": b"not in", "not in": b"in",
}  # fmt: skip
_ARITHMETIC = {
    "+": b"-", "-": b"+", "*": b"/", "/": b"*", "//": b"/", "%": b"/", "**": b"*",
    "<<": b">>", ">>": b"<<", "&": b"|", "|": b"&", "^": b"&",
}  # fmt: skip
_TEXT = ("string", "concatenated_string")
_SEQUENCES = (*_TEXT, "list", "tuple", "list_comprehension")
_LITERALS = ("true", "false", "none", "integer", "float", "string", "concatenated_string", "ellipsis")


def comparison(parsed: Parsed, node: Node) -> Iterator[Mutation]:
    """``<`` and ``<=``, ``==`` and ``!=``, ``is`` and ``is not``, ``in`` and ``not in``."""
    for child in node.children:
        if not child.is_named and child.type in _COMPARISONS:
            yield _replace(MutationOperator.COMPARISON, child, _COMPARISONS[child.type])


def arithmetic(parsed: Parsed, node: Node) -> Iterator[Mutation]:
    """Another operator; not beside a literal string or list, where any other is an error of types."""
    operator = node.child_by_field_name("operator")
    sides = (node.child_by_field_name("left"), node.child_by_field_name("right"))
    if operator is None or any(side is not None and side.type in _SEQUENCES for side in sides):
        return
    if operator.type in _ARITHMETIC:
        yield _replace(MutationOperator.ARITHMETIC, operator, _ARITHMETIC[operator.type])


def boolean(parsed: Parsed, node: Node) -> Iterator[Mutation]:
    """``and`` and ``or``."""
    operator = node.child_by_field_name("operator")
    if operator is not None:
        yield _replace(MutationOperator.BOOLEAN, operator, b"or" if operator.type == "and" else b"and")


def condition(parsed: Parsed, node: Node) -> Iterator[Mutation]:
    """The condition of ``if``, ``elif``, ``while``, a ternary, a comprehension or a ``case``, negated."""
    match node.type:
        case "conditional_expression":
            named = [c for c in node.named_children if c.type != "comment"]
            tested = named[1] if len(named) > 1 else None
        case "if_clause":
            tested = node.named_children[0] if node.named_children else None
        case _:
            tested = node.child_by_field_name("condition")
    if tested is None or _negated_elsewhere(tested):
        return
    text = b"not (" + parsed.source[tested.start_byte : tested.end_byte] + b")"
    if parsed.source[tested.start_byte - 1 : tested.start_byte].isalnum():
        text = b" " + text  # if(a)
    yield _replace(MutationOperator.CONDITION, tested, text)


def _negated_elsewhere(tested: Node) -> bool:
    """Whether another operator makes the same of it: ``a == b``, ``not a``, ``True``."""
    while tested.type == "parenthesized_expression" and tested.named_child_count == 1:
        tested = tested.named_children[0]
    if tested.type == "comparison_operator":
        return any(c.type in ("==", "!=", "is", "is not", "in", "not in") for c in tested.children) and (
            tested.named_child_count == 2
        )
    return tested.type in ("not_operator", *_LITERALS)


def constant(parsed: Parsed, node: Node) -> Iterator[Mutation]:
    """A number plus one, another text, the other truth value."""
    if (text := _perturbed(parsed, node)) is not None:
        yield _replace(MutationOperator.CONSTANT, node, text)


def returned(parsed: Parsed, node: Node) -> Iterator[Mutation]:
    """``return None`` for another value."""
    value = next((c for c in node.named_children if c.type != "comment"), None)
    if value is None or value.type == "none":
        return
    text = b"None"
    if parsed.source[value.start_byte - 1 : value.start_byte].isalnum():
        text = b" None"  # return(a)
    yield _replace(MutationOperator.RETURN, value, text)


def statement(parsed: Parsed, node: Node) -> Iterator[Mutation]:
    """``pass`` for an expression statement or an assignment that does something."""
    named = [c for c in node.named_children if c.type != "comment"]
    inner = named[0] if len(named) == 1 else None
    if inner is not None:
        if inner.type in (*_LITERALS, "identifier"):
            return
        if inner.type == "assignment" and inner.child_by_field_name("right") is None:
            return  # a bare annotation
    yield _replace(MutationOperator.STATEMENT, node, b"pass")


def negation(parsed: Parsed, node: Node) -> Iterator[Mutation]:
    """``not`` taken away."""
    argument = node.child_by_field_name("argument")
    if argument is not None:
        yield Mutation(operator=MutationOperator.NOT, start=node.start_byte, end=argument.start_byte, text=b"")


def loop(parsed: Parsed, node: Node) -> Iterator[Mutation]:
    """``continue`` for ``break`` (which may never end), and the other way round."""
    yield _replace(MutationOperator.LOOP, node, b"continue" if node.type == "break_statement" else b"break")


def sliced(parsed: Parsed, node: Node) -> Iterator[Mutation]:
    """A slice that begins or ends one further; bounds that are numbers are constants."""
    colon = next((c for c in node.children if c.type == ":"), None)
    if colon is None:
        return
    lower = next((c for c in node.named_children if c.end_byte <= colon.start_byte and c.type != "comment"), None)
    upper = colon.next_sibling
    while upper is not None and upper.type == "comment":
        upper = upper.next_sibling
    if upper is not None and upper.type == ":":
        upper = None
    for bound, place, text in ((lower, colon.start_byte, b"1"), (upper, colon.end_byte, b"-1")):
        if bound is None:
            yield Mutation(operator=MutationOperator.SLICE, start=place, end=place, text=text)
        elif bound.type not in (*_LITERALS, "unary_operator"):
            moved = b"(" + parsed.source[bound.start_byte : bound.end_byte] + b") + 1"
            yield _replace(MutationOperator.SLICE, bound, moved)


def augmented(parsed: Parsed, node: Node) -> Iterator[Mutation]:
    """``-=`` for ``+=`` and the like; what is added as a text or a list is assigned instead."""
    operator = node.child_by_field_name("operator")
    right = node.child_by_field_name("right")
    if operator is None or right is None:
        return
    other = _ARITHMETIC.get(operator.type.removesuffix("="))
    if right.type in _SEQUENCES:
        yield _replace(MutationOperator.AUGMENTED, operator, b"=")
    elif other is not None:
        yield _replace(MutationOperator.AUGMENTED, operator, other + b"=")


def exception(parsed: Parsed, node: Node) -> Iterator[Mutation]:
    """``raise RuntimeError`` for another class (LookupError for RuntimeError itself)."""
    raised = next((c for c in node.named_children if c.type != "comment"), None)
    if raised is not None and raised.type == "call":
        raised = raised.child_by_field_name("function")
    if raised is None or raised.type not in ("identifier", "attribute"):
        return
    name = parsed.text(raised)
    if name.rpartition(".")[2].lstrip("_")[:1].isupper():  # a variable holds an instance with a message of its own
        other = b"LookupError" if name in ("RuntimeError", "NotImplementedError") else b"RuntimeError"
        yield _replace(MutationOperator.EXCEPTION, raised, other)


def defaults(parsed: Parsed, parameters: Node) -> Iterator[Mutation]:
    """Other default values: a constant as ``constant`` does it, 1 for None, None for all else."""
    for parameter in parameters.named_children:
        value = parameter.child_by_field_name("value")
        if value is None:
            continue
        text = b"1" if value.type == "none" else _perturbed(parsed, value) or b"None"
        yield _replace(MutationOperator.DEFAULT, value, text)


def _perturbed(parsed: Parsed, node: Node) -> bytes | None:
    literal = parsed.source[node.start_byte : node.end_byte]
    match node.type:
        case "true":
            return b"False"
        case "false":
            return b"True"
        case "integer":
            return _next_integer(literal)
        case "float":
            return _next_float(literal)
        case "string":
            closing = node.children[-1]
            inside = parsed.source[node.start_byte : closing.start_byte]
            return inside + b"x" + parsed.source[closing.start_byte : node.end_byte]
    return None


def _next_integer(literal: bytes) -> bytes | None:
    try:
        return str(int(literal, 0) + 1).encode()
    except ValueError:  # 1j, or more digits than Python converts
        return None


def _next_float(literal: bytes) -> bytes | None:
    try:
        value = float(literal)
    except ValueError:  # 1.5j
        return None
    changed = value + 1 if value + 1 != value else value / 2
    return repr(changed).encode() if math.isfinite(changed) else None


def _replace(operator: MutationOperator, node: Node, text: bytes) -> Mutation:
    return Mutation(operator=operator, start=node.start_byte, end=node.end_byte, text=text)


#: Kind of node -> what may be done to it.
MUTATIONS: dict[str, tuple[Callable[[Parsed, Node], Iterator[Mutation]], ...]] = {
    "comparison_operator": (comparison,),
    "binary_operator": (arithmetic,),
    "boolean_operator": (boolean,),
    "if_statement": (condition,),
    "elif_clause": (condition,),
    "while_statement": (condition,),
    "conditional_expression": (condition,),
    "if_clause": (condition,),
    "true": (constant,),
    "false": (constant,),
    "integer": (constant,),
    "float": (constant,),
    "string": (constant,),
    "return_statement": (returned,),
    "expression_statement": (statement,),
    "not_operator": (negation,),
    "break_statement": (loop,),
    "continue_statement": (loop,),
    "slice": (sliced,),
    "augmented_assignment": (augmented,),
    "raise_statement": (exception,),
    "parameters": (defaults,),
    "lambda_parameters": (defaults,),
}
