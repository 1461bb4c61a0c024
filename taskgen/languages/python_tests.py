"""Taking hidden tests out of the test files: functions, then what only they used, then files left without tests."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from tree_sitter import Node

from taskgen import syntax
from taskgen.languages.python_edits import FileEdits
from taskgen.languages.python_syntax import PythonFile
from taskgen.types import Definition


class UnremovableTest(Exception):
    """A test whose source cannot be found in its file (inherited, generated, or not Python)."""


def remove_tests(files: Mapping[str, PythonFile], tests: Iterable[str]) -> dict[str, bytes | None]:
    """The test files without the functions of ``tests`` (pytest ids): path -> new bytes, None where none is left.

    Fixtures, helpers, constants and imports that only those functions used go with them.

    Raises:
        UnremovableTest: a test's function is not in its file.
    """
    wanted = _functions(tests)
    edits = {path: FileEdits(files[path]) for path in sorted(wanted) if path in files}
    for path, names in sorted(wanted.items()):
        if path not in files:
            raise UnremovableTest(f"{path} is not a Python test file that can be read")
        for name in sorted(names):
            place = _find(files, wanted, path, name)
            if place is None:
                raise UnremovableTest(f"{name} is not defined in {path}")
            edit = edits.setdefault(place[0], FileEdits(files[place[0]]))
            if not edit.is_removed(place[1]):
                edit.remove_definition(place[1])
    for path, edit in edits.items():
        if not any(_remaining_tests(edit)) and not _imported_elsewhere(files, path):
            edit.remove_everything()
    while sum(_remove_unused(files, edits, path) for path in list(edits)):
        pass
    for path, edit in edits.items():
        _remove_empty_classes(files, edits, path)
        _remove_imports(edit)
    return {path: edit.result() for path, edit in edits.items()}


def _functions(tests: Iterable[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for test in tests:
        path, *names = test.split("[")[0].split("::")
        found[path].add(".".join(names))
    return found


def _find(
    files: Mapping[str, PythonFile], wanted: Mapping[str, set[str]], path: str, name: str
) -> tuple[str, Node] | None:
    """The file and the node to remove for a test.

    That is its function; for one that is inherited, the function in the base class, or the whole class, if the base
    class is in another file that other tests share and nothing inherits from the class in turn.
    """
    file = files[path]
    if name in file.nodes:
        return path, file.nodes[name]
    owner, _, bare = name.rpartition(".")
    inherited = _inherited(files, path, owner, bare) if owner else None
    if inherited is not None:
        origin, definition = inherited
        shared = origin != path and definition not in wanted.get(origin, ())
        if shared and owner in file.nodes and not _is_base(files, owner):
            return path, file.nodes[owner]
        return origin, files[origin].nodes[definition]
    if owner in file.nodes:
        return path, file.nodes[owner]
    found = [n for n in syntax.walk(file.parsed.root) if n.type == "function_definition" and _named(file, n) == bare]
    if len(found) != 1 or any(a.type == "function_definition" for a in syntax.ancestors(found[0])):
        return None
    parent = found[0].parent
    return path, parent if parent is not None and parent.type == "decorated_definition" else found[0]


def _inherited(files: Mapping[str, PythonFile], path: str, owner: str, bare: str) -> tuple[str, str] | None:
    """Where the nearest class that ``owner`` is or inherits from (by name) defines a method."""
    queue, seen = [owner], set()
    while queue:
        name = queue.pop(0)
        seen.add(name)
        for other in (path, *files):
            if name not in files[other].nodes:
                continue
            if f"{name}.{bare}" in files[other].nodes:
                return other, f"{name}.{bare}"
            queue += [base for base in _bases(files[other], name) if base not in seen]
            break
    return None


def _bases(file: PythonFile, name: str) -> list[str]:
    header = next(d.signature for d in file.definitions if d.qualified_name == name).splitlines()[-1]
    return re.findall(r"\w+", header.partition("(")[2])


def _is_base(files: Mapping[str, PythonFile], name: str) -> bool:
    return any(name in _bases(f, d.qualified_name) for f in files.values() for d in f.definitions if d.kind == "class")


def _named(file: PythonFile, function: Node) -> str:
    name = function.child_by_field_name("name")
    return file.parsed.text(name) if name is not None else ""


def _is_test(definition: Definition) -> bool:
    return definition.kind != "class" and definition.name.startswith("test")


def _remaining_tests(edit: FileEdits) -> Iterator[Definition]:
    for definition in edit.file.definitions:
        if _is_test(definition) and not edit.covers(definition.start_byte, definition.end_byte):
            yield definition


def _imported_elsewhere(files: Mapping[str, PythonFile], path: str) -> bool:
    """Whether another test file imports from this one (by the last part of its module name)."""
    stem = path.rpartition("/")[2].removesuffix(".py")
    if stem in ("conftest", "__init__"):
        return True
    return any(
        stem in (imported.module.rpartition(".")[2], imported.name)
        for other, file in files.items()
        if other != path
        for imported in file.imports
    )


def _remove_unused(files: Mapping[str, PythonFile], edits: dict[str, FileEdits], path: str) -> bool:
    """Remove top-level helpers of a file that only removed code used. True if something went."""
    edit = edits[path]
    if edit.gone:
        return False
    removed = False
    for name, node in _helpers(edit.file):
        if edit.is_removed(node) or not _only_removed_code_names(files, edits, path, name, node):
            continue
        if node.type == "expression_statement":
            edit.remove_statement(node)
        else:
            edit.remove_definition(node)
        removed = True
    return removed


def _helpers(file: PythonFile) -> Iterator[tuple[str, Node]]:
    for definition in file.definitions:
        is_suite = definition.kind == "class" and re.match(r"Test|.*Tests?$|.*TestCase$", definition.name)
        if not definition.owner and not _is_test(definition) and not is_suite:
            yield definition.name, file.nodes[definition.qualified_name]
    for node in file.parsed.root.named_children:
        inner = node.named_children[0] if node.type == "expression_statement" and node.named_child_count else None
        left = inner.child_by_field_name("left") if inner is not None and inner.type == "assignment" else None
        if left is not None and left.type == "identifier" and not file.parsed.text(left).startswith("pytest"):
            yield file.parsed.text(left), node


def _only_removed_code_names(
    files: Mapping[str, PythonFile], edits: Mapping[str, FileEdits], path: str, name: str, node: Node
) -> bool:
    """Whether a name occurs outside of its definition, and only in removed code."""
    outside = list(_occurrences(files, edits, path, name, node))
    return bool(outside) and all(outside)


def _occurrences(
    files: Mapping[str, PythonFile], edits: Mapping[str, FileEdits], path: str, name: str, node: Node
) -> Iterator[bool]:
    """For each place outside ``node`` that has the name as a word (strings and parameters too): is it removed?"""
    pattern = re.compile(rb"\b" + re.escape(name.encode()) + rb"\b")
    for other, file in files.items():
        edit = edits.get(other)
        for match in pattern.finditer(file.source):
            if other != path or not node.start_byte <= match.start() < node.end_byte:
                yield edit is not None and edit.covers(match.start(), match.end())


def _remove_empty_classes(files: Mapping[str, PythonFile], edits: Mapping[str, FileEdits], path: str) -> None:
    """Remove test classes that lost all their tests and that nothing inherits from."""
    edit = edits[path]
    if edit.gone:
        return
    for definition in edit.file.definitions:
        if definition.kind != "class" or definition.owner:
            continue
        members = [d for d in edit.file.definitions if d.owner == definition.qualified_name]
        lost = [m for m in members if edit.covers(m.start_byte, m.end_byte)]
        left = [m for m in members if m not in lost]
        node = edit.file.nodes[definition.qualified_name]
        needed = not all(_occurrences(files, edits, path, definition.name, node))
        if lost and not needed and not any(_is_test(m) or m.kind == "class" for m in left):
            edit.remove_definition(node)


def _remove_imports(edit: FileEdits) -> None:
    if edit.gone:
        return
    for imported in edit.file.imports:
        uses = [u for u in edit.file.uses.get(imported.local, ()) if u.attribute_of is None]
        if uses and all(edit.is_removed(u.node) for u in uses) and not edit.is_removed(imported.part):
            nested = any(a.type == "function_definition" for a in syntax.ancestors(imported.statement))
            if not nested and imported.module != "__future__":
                edit.remove_import(imported)
