"""What is passed around in an audit: levels, definitions without source text, and what could not be read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Level(IntEnum):
    """How much of a deleted definition can be recovered; each level is worth more to a thief than those before."""

    NAME = 1
    CONSTANTS = 2
    DOCSTRING = 3
    SIGNATURE = 4
    BODY = 5

    @property
    def label(self) -> str:
        """The level as findings name it."""
        return self.name.lower()


class Likeness(StrEnum):
    """How a body was recognised.

    WHOLE: a long body, or the definition of a rare name, line by line. TWIN: any other definition, however short,
    line by line. NAMED: most of a body under its own header. ALIKE: most of its lines. RENAMED: much of its tokens,
    names aside. COMPILED: what it uses, in compiled code of its name.
    """

    WHOLE = "whole"
    TWIN = "twin"
    NAMED = "named"
    ALIKE = "alike"
    RENAMED = "renamed"
    COMPILED = "compiled"


class CodeForm(StrEnum):
    """In which form a definition's body is there, where it is not source text."""

    BYTECODE = "bytecode"
    MACHINE = "machine code"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A definition as a format records it. What the format does not say stays empty (parameters: None).

    Attributes:
        name: the bare name.
        qualified_name: with module, package or class, joined by dots.
        parameters: names in order, ``self`` included where it is written.
        signature: as text a person can read: ``def f(a: int) -> str``.
        constants: strings, and numbers as decimal text, that the body holds.
        identifiers: names that the body uses: attributes, functions called, locals.
        code: the form of the body, or None where there is none.
        payload: the body itself, where another program could run it (a marshalled code object).
    """

    name: str
    qualified_name: str = ""
    parameters: tuple[str, ...] | None = None
    signature: str = ""
    docstring: str = ""
    constants: tuple[str, ...] = ()
    identifiers: frozenset[str] = frozenset()
    code: CodeForm | None = None
    payload: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A part of a blob that could not be decoded, and why; the rest of it was."""

    reason: str
