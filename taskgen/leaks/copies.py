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


def find(project: PythonProject, deletion: Deletion, workspace: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """(path in the workspace, qualified name) of the deleted functions that can be read there.

    Empty unless they make up at least MIN_DELETION_SHARE of the deleted lines.
    """
    bodies = {d.qualified_name: lines for d, lines in _bodies(project, deletion)}
    wanted = {name: lines for name, lines in bodies.items() if len(lines) >= MIN_LINES}
    found: dict[str, str] = {}
    for path, data in workspace.items():
        present = set(_telling(data.split(b"\n"))) if wanted else set()
        for name, lines in wanted.items():
            if sum(line in present for line in lines) >= max(MIN_LINES, MIN_SHARE * len(lines)):
                found.setdefault(name, path)
    copied = sum(len(bodies[name]) for name in found)
    if not found or copied < MIN_DELETION_SHARE * sum(len(lines) for lines in bodies.values()):
        return []
    return [(path, name) for name, path in found.items()]


def _bodies(project: PythonProject, deletion: Deletion) -> Iterator[tuple[Definition, Sequence[bytes]]]:
    for path in deletion.files:
        file = project.sources[path]
        lines = file.source.split(b"\n")
        spans = [d.definition for d in deletion.deleted if d.definition.path == path]
        for definition in file.definitions:
            inside = any(s.start_byte <= definition.start_byte < s.end_byte for s in spans)
            if inside and definition.kind != "class":
                yield definition, list(dict.fromkeys(_telling(lines[definition.body_line - 1 : definition.end_line])))


def _telling(lines: Iterable[bytes]) -> Iterator[bytes]:
    for line in lines:
        text = b" ".join(line.split())
        if len(text) >= MIN_LINE_CHARS and not text.startswith(
            (b"#", b"import ", b"from ", b"return self", b"raise Not")
        ):
            yield text
