"""Mutants of Python definitions: files with one small fault, to measure whether tests can tell it from the original.

A mutant changes bytes of one definition only, and of that only code that runs: the body and the defaults of its
arguments, but no docstring, decorator or annotation, no ``if TYPE_CHECKING``, no text of a ``raise``. Nothing is
compiled or run here.
"""

from __future__ import annotations

import random
import symtable
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import decode_source

from tree_sitter import Node

from taskgen import syntax
from taskgen.languages.python_mutation_sites import is_overload, sites
from taskgen.languages.python_mutations import Mutation, MutationOperator
from taskgen.languages.python_source import parse
from taskgen.languages.python_syntax import PYTHON, PythonFile, parse_python
from taskgen.syntax import Edit
from taskgen.types import Definition

_EXCERPT_CHARS = 60
#: Qualified name -> operator -> what may be done, in the order in which it is taken.
_Queues = dict[str, dict[MutationOperator, list[Mutation]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A file with one fault.

    Attributes:
        definition: qualified name of the innermost function, method or class that is changed.
        line: where the change begins, in the original file, from 1.
        source: the whole changed file.
        description: what was replaced by what, on one line.
    """

    path: str
    definition: str
    operator: MutationOperator
    line: int
    source: bytes
    description: str


def mutants(path: str, source: bytes, definitions: Sequence[Definition], *, limit: int, seed: int) -> list[Mutant]:
    """At most ``limit`` different mutants of those of ``definitions`` that are in the file ``path``.

    The choice is the same for the same arguments, and spread evenly: over the functions first, then over the operators
    in each. Every mutant parses with the Python that runs this; of a file in a newer syntax, with tree-sitter.

    Raises:
        ValueError: a definition is not one of this source.
    """
    file = parse_python(path, "", source)
    wanted = [d for d in definitions if d.path == path]
    known = {(d.qualified_name, d.start_byte, d.end_byte) for d in file.definitions}
    for definition in wanted:
        if (definition.qualified_name, definition.start_byte, definition.end_byte) not in known:
            raise ValueError(f"{path} has no {definition.qualified_name} at byte {definition.start_byte}")
    parses = _parser(source)
    found: list[Mutant] = []
    seen = {source}
    for definition_name, mutation in _spread(_queues(file, wanted), f"{seed}:{path}"):
        if len(found) >= limit:
            break
        edit = Edit(start=mutation.start, end=mutation.end, text=mutation.text)
        mutated = syntax.apply_edits(source, [edit])
        if mutated in seen or not parses(mutated):
            continue
        seen.add(mutated)
        found.append(
            Mutant(
                path=path,
                definition=definition_name,
                operator=mutation.operator,
                line=source.count(b"\n", 0, mutation.start) + 1,
                source=mutated,
                description=_describe(source, mutation),
            )
        )
    return found


def _queues(file: PythonFile, wanted: Sequence[Definition]) -> _Queues:
    """All that may be done, each byte given to the innermost definition around it."""
    found: _Queues = {}
    taken: set[Mutation] = set()
    # Inner definitions begin later: whoever comes first in this order owns what it holds.
    for definition in sorted(file.definitions, key=lambda d: -d.start_byte):
        inside = any(w.start_byte <= definition.start_byte and definition.end_byte <= w.end_byte for w in wanted)
        node = _node_at(file, definition)
        if not inside or is_overload(file.parsed, node):
            continue
        for mutation in sites(file.parsed, node):
            if mutation not in taken:
                taken.add(mutation)
                operators = found.setdefault(definition.qualified_name, defaultdict(list))
                operators[mutation.operator].append(mutation)
    return found


def _node_at(file: PythonFile, definition: Definition) -> Node:
    """The node of exactly this definition; a name may be defined twice."""
    nodes = file.nodes_named(definition.qualified_name)
    return next(n for n in nodes if n.start_byte == definition.start_byte)


def _spread(queues: _Queues, seed: str) -> Iterator[tuple[str, Mutation]]:
    """All mutations, so ordered that any beginning of them is even over definitions and over operators."""
    names = sorted(queues)
    random.Random(f"{seed}:order").shuffle(names)
    for name, operators in queues.items():
        for operator, mutations in operators.items():
            mutations.sort(key=lambda m: (m.start, m.end, m.text))
            random.Random(f"{seed}:{name}:{operator}").shuffle(mutations)
    rank = list(MutationOperator)
    random.Random(f"{seed}:operators").shuffle(rank)
    everywhere: Counter[MutationOperator] = Counter()
    here: dict[str, Counter[MutationOperator]] = defaultdict(Counter)
    while names:
        for name in names:
            operators = queues[name]
            operator = min(operators, key=lambda o: (here[name][o], everywhere[o], rank.index(o)))
            yield name, operators[operator].pop()
            here[name][operator] += 1
            everywhere[operator] += 1
            if not operators[operator]:
                del operators[operator]
        names = [name for name in names if queues[name]]


def _parser(source: bytes) -> Callable[[bytes], bool]:
    if _is_python(source):
        return _is_python
    # Syntax newer than this Python (PEP 695, PEP 701): tree-sitter knows it.
    return lambda mutated: not syntax.has_errors(syntax.parse(PYTHON, mutated))


def _is_python(source: bytes) -> bool:
    try:
        parse(source)
        if b"nonlocal" in source:  # a deleted assignment may have been what a nonlocal refers to
            symtable.symtable(decode_source(source), "mutant", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _describe(source: bytes, mutation: Mutation) -> str:
    before = _excerpt(source[mutation.start : mutation.end])
    after = _excerpt(mutation.text)
    if not before:
        return f"{mutation.operator}: {after} inserted"
    return f"{mutation.operator}: {before} -> {after or 'nothing'}"


def _excerpt(text: bytes) -> str:
    line = " ".join(text.decode("utf-8", "replace").split())
    return line if len(line) <= _EXCERPT_CHARS else line[: _EXCERPT_CHARS - 3] + "..."
