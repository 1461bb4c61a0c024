"""Verbatim copies: a function's deleted lines that stand together elsewhere in the workspace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from taskgen.languages.python_project import PythonProject
from taskgen.types import Definition, Deletion

#: Lines shorter than this are everywhere and prove nothing.
MIN_LINE_CHARS = 12
#: A function counts as copied when this share of its telling lines (and at least MIN_LINES of them) stand in a file.
MIN_SHARE = 0.7
MIN_LINES = 6
#: A method that resembles its sibling in another class is style, not a leak, unless it is much of what went.
MIN_DELETION_SHARE = 0.3
#: A whole body of this many lines and bytes is no coincidence.
MIN_WHOLE_LINES, MIN_WHOLE_BYTES = 5, 120


def find(project: PythonProject, deletion: Deletion, workspace: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """(path in the workspace, qualified name) of the deleted functions that can be read there.

    A body that stands somewhere line by line always counts. Bodies that mostly do (MIN_SHARE of their telling
    lines, in any order) count if together they are at least MIN_DELETION_SHARE of what went.
    """
    bodies = dict(_bodies(project, deletion))
    whole = {d.qualified_name: text for d, lines in bodies.items() if _is_long(text := _squeezed(lines))}
    telling = {d.qualified_name: list(dict.fromkeys(_telling(lines))) for d, lines in bodies.items()}
    wanted = {name: lines for name, lines in telling.items() if len(lines) >= MIN_LINES}
    exact: dict[str, str] = {}
    alike: dict[str, str] = {}
    for path, data in workspace.items():
        lines = data.split(b"\n")
        text, present = _squeezed(lines), set(_telling(lines))
        for name, body in whole.items():
            if body in text:
                exact.setdefault(name, path)
        for name, some in wanted.items():
            if sum(line in present for line in some) >= max(MIN_LINES, MIN_SHARE * len(some)):
                alike.setdefault(name, path)
    if sum(len(telling[name]) for name in alike) < MIN_DELETION_SHARE * sum(map(len, telling.values())):
        alike = {}
    return [(path, name) for name, path in {**alike, **exact}.items()]


def _squeezed(lines: Sequence[bytes]) -> bytes:
    """Lines without indentation, runs of blanks and empty lines."""
    return b"\n".join(text for line in lines if (text := b" ".join(line.split())))


def _is_long(body: bytes) -> bool:
    return body.count(b"\n") >= MIN_WHOLE_LINES - 1 and len(body) >= MIN_WHOLE_BYTES


def _bodies(project: PythonProject, deletion: Deletion) -> Iterator[tuple[Definition, Sequence[bytes]]]:
    for path in deletion.files:
        file = project.sources[path]
        lines = file.source.split(b"\n")
        spans = [d.definition for d in deletion.deleted if d.definition.path == path]
        for definition in file.definitions:
            inside = any(s.start_byte <= definition.start_byte < s.end_byte for s in spans)
            if inside and definition.kind != "class":
                yield definition, lines[definition.body_line - 1 : definition.end_line]


def _telling(lines: Iterable[bytes]) -> Iterator[bytes]:
    for line in lines:
        text = b" ".join(line.split())
        if len(text) >= MIN_LINE_CHARS and not text.startswith(
            (b"#", b"import ", b"from ", b"return self", b"raise Not")
        ):
            yield text
