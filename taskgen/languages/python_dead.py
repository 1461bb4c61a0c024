"""What a removal leaves without a purpose: private helpers and imports that only removed code used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from taskgen.languages.python_project import PythonProject, Symbol
from taskgen.languages.python_syntax import ImportedName, PythonFile
from taskgen.types import Definition

#: Whether bytes [start, end) of a path were removed.
Covers = Callable[[str, int, int], bool]


def dead_definitions(
    project: PythonProject, covers: Covers, removed: Collection[tuple[str, str]]
) -> Iterator[Definition]:
    """Private definitions that were used, and only by what was removed; those in ``removed`` left out."""
    for definition, uses in project.private:
        key = (definition.path, definition.qualified_name)
        if key in removed or covers(definition.path, definition.start_byte, definition.end_byte):
            continue
        if uses and all(covers(path, use.node.start_byte, use.node.end_byte) for path, use in uses):
            imported = project.importers(Symbol(path=definition.path, name=definition.name))
            if not imported or definition.owner:
                yield definition


def dead_imports(project: PythonProject, file: PythonFile, covers: Covers) -> Iterator[ImportedName]:
    """Imports of a file, outside functions, that were used, and only by what was removed."""
    for imported, uses in file.global_imports:
        if not uses or covers(file.path, imported.part.start_byte, imported.part.end_byte):
            continue
        dead = all(covers(file.path, use.node.start_byte, use.node.end_byte) for use in uses)
        if dead and not _used_from_outside(project, file, imported, covers):
            yield imported


def _used_from_outside(project: PythonProject, file: PythonFile, imported: ImportedName, covers: Covers) -> bool:
    """Whether another file takes the name from this one (``from this import name``, ``this.name``)."""
    symbol = Symbol(path=file.path, name=imported.local)
    places = [(b.path, b.imported.part) for b in project.bindings.get(symbol, ())]
    places += [(path, use.node) for path, use in project.attribute_uses(symbol)]
    return any(not covers(path, node.start_byte, node.end_byte) for path, node in places)
