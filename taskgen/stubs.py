"""Trivial answers: what somebody who cheats or gives up would write. None of them may pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from taskgen.languages.python_project import PythonProject
from taskgen.languages.python_syntax import PythonFile
from taskgen.syntax import Edit, apply_edits
from taskgen.types import Definition, Deletion

_LITERAL = r"(True|False|None|-?\d+(?:\.\d+)?|'[^'\n]*'|\"[^\"\n]*\"|\[[^\[\]\n]*\]|\{[^{}\n]*\}|\([^()\n]*\))"
_AFTER_EXAMPLE = re.compile(r"^\s*>>>.*\n(?:\s*\.\.\..*\n)*\s*" + _LITERAL + r"\s*$", re.MULTILINE)
_IN_TEXT = re.compile(r"(?:returns?|default\w*(?: is| to)?|->)\W{0,4}" + _LITERAL, re.IGNORECASE)


class Stub(StrEnum):
    """The kinds of stub."""

    NONE = "return None"
    EMPTY = "return an empty container"
    FIRST_ARGUMENT = "return the first argument"
    DOCSTRING_CONSTANT = "return a constant of the docstring"
    RAISE = "raise NotImplementedError"


def stubbed(project: PythonProject, deletion: Deletion, kind: Stub) -> Mapping[str, bytes | None]:
    """The pristine files with the bodies of all deleted functions replaced: stronger than what an agent without
    the source could write, for signatures, constants and wiring are those of the original."""
    files: dict[str, bytes | None] = {}
    for path in deletion.files:
        file = project.sources[path]
        edits = []
        for definition in _functions(file, deletion):
            start = definition.after_doc_byte if definition.docstring else definition.body_byte
            text = _indent(file, definition) + _statement(definition, kind).encode()
            edits.append(Edit(start=start, end=definition.end_byte, text=text))
        files[path] = apply_edits(file.source, edits)
    return files


def _functions(file: PythonFile, deletion: Deletion) -> list[Definition]:
    spans = [d.definition for d in deletion.deleted if d.definition.path == file.path]
    return [
        d
        for d in file.definitions
        if d.kind != "class" and any(s.start_byte <= d.start_byte and d.end_byte <= s.end_byte for s in spans)
    ]


def _indent(file: PythonFile, definition: Definition) -> bytes:
    """What stands between the header (or docstring) and the statement."""
    if not definition.docstring:
        return b""
    line = file.source.rfind(b"\n", 0, definition.body_byte) + 1
    blank = file.source[line : definition.body_byte]
    return b"; " if blank.strip() else b"\n" + blank


def _statement(definition: Definition, kind: Stub) -> str:
    header = definition.signature.splitlines()[-1]
    match kind:
        case Stub.NONE:
            return "return None"
        case Stub.EMPTY:
            return f"return {_empty(header, definition.docstring)}"
        case Stub.FIRST_ARGUMENT:
            return f"return {_first_argument(header, definition) or 'None'}"
        case Stub.DOCSTRING_CONSTANT:
            found = _AFTER_EXAMPLE.search(definition.docstring) or _IN_TEXT.search(definition.docstring)
            return f"return {found.group(1) if found else 0}"
        case Stub.RAISE:
            return "raise NotImplementedError"


def _empty(header: str, docstring: str) -> str:
    hint = (header.rpartition("->")[2] if "->" in header else docstring).lower()
    for word, value in (
        ("dict", "{}"),
        ("mapping", "{}"),
        ("set", "set()"),
        ("tuple", "()"),
        ("str", "''"),
        ("bool", "False"),
        ("int", "0"),
    ):
        if re.search(rf"\b\w*{word}\w*\b", hint):
            return value
    return "[]"


def _first_argument(header: str, definition: Definition) -> str | None:
    inside = header.partition("(")[2]
    names = re.findall(r"(?:^|,)\s*\*{0,2}([A-Za-z_]\w*)", inside.rpartition(")")[0])
    if definition.kind == "method" and "@staticmethod" not in definition.signature:
        names = names[1:] or names
    return names[0] if names else None
