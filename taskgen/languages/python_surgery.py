"""Taking definitions out of Python sources so that what remains is whole.

A definition goes entirely, with its imports, exports, registrations and branches elsewhere, or it keeps its
signature. What cannot be repaired raises ``Irreparable``; callers then keep a signature or give up.
"""

from __future__ import annotations

from collections.abc import Callable

from tree_sitter import Node

from taskgen import syntax
from taskgen.languages.python_dead import dead_definitions, dead_imports
from taskgen.languages.python_edits import FileEdits
from taskgen.languages.python_project import PythonProject, Symbol
from taskgen.languages.python_syntax import ImportedName, PythonFile, Use
from taskgen.types import Definition, Deleted, Deletion, Removal

_COLLECTIONS = {"list", "tuple", "set", "dictionary"}
#: Collections in these are unpacked or handed on; their length matters.
_NOT_REGISTRIES = ("pattern_list", "tuple_pattern", "return_statement", "subscript")
#: Whether only the feature's tests run lines [first, last] of a path.
Exclusive = Callable[[str, int, int], bool]


class Irreparable(Exception):
    """Code that stays needs what was to go. ``definition`` is the one that uses it, if it is in one."""

    def __init__(self, message: str, definition: Definition | None = None) -> None:
        super().__init__(message)
        self.definition = definition


class Surgery:
    """Collects removals and what follows from them; ``deletion`` gives the result.

    Use ``trial`` copies: a failed removal leaves a surgery half done.
    """

    def __init__(self, project: PythonProject, exclusive: Exclusive) -> None:
        self.project, self.exclusive = project, exclusive
        self.removed: dict[tuple[str, str], Removal] = {}
        self.edits: dict[str, FileEdits] = {}
        self._seen: set[Symbol] = set()

    def trial(self) -> Surgery:
        """An independent copy."""
        copy = Surgery(self.project, self.exclusive)
        copy.removed, copy._seen = dict(self.removed), set(self._seen)
        copy.edits = {path: edits.copy() for path, edits in self.edits.items()}
        return copy

    # -- what callers ask for --------------------------------------------------------------------

    def remove_body(self, definition: Definition, *, keep_docstring: bool) -> None:
        """Replace a function's body by ``raise NotImplementedError``; signature (and docstring) stay."""
        key = (definition.path, definition.qualified_name)
        if key not in self.removed:
            self.removed[key] = Removal.BODY
            self._of(definition.path).remove_body(definition, keep_docstring=keep_docstring)

    def remove(self, definition: Definition) -> None:
        """Remove a definition and repair every place that refers to it. Raises Irreparable."""
        key = (definition.path, definition.qualified_name)
        if self.removed.get(key) is Removal.WHOLE or self._inside_removed(definition):
            return
        self.removed[key] = Removal.WHOLE
        edits = self._of(definition.path)
        for node in edits.file.nodes_named(definition.qualified_name):
            edits.remove_definition(node)
        if definition.owner:
            self._forget_attribute(definition.path, definition.owner, definition.name)
        else:
            self._forget(Symbol(path=definition.path, name=definition.name))

    def remove_file(self, path: str) -> None:
        """Remove a whole module and every import of it. Raises Irreparable."""
        file = self.project.sources[path]
        if file.is_package:
            raise Irreparable(f"{path} is a package's __init__")
        self._of(path).remove_everything()
        for definition in file.definitions:
            self.removed[definition.path, definition.qualified_name] = Removal.WHOLE
        for name in sorted(file.constants | {d.name for d in file.definitions if not d.owner}):
            self._forget(Symbol(path=path, name=name))
        self._forget_module(path)

    def remove_dead(self) -> None:
        """Remove private helpers and imports that only removed code used, until nothing more dies."""
        while dead := list(dead_definitions(self.project, self._covers, self.removed)):
            for definition in dead:
                self.remove(definition)
        self.remove_dead_imports()

    def remove_dead_imports(self) -> None:
        """Remove imports of the changed files that only removed code used."""
        for edits in list(self.edits.values()):
            if not edits.gone:
                for imported in list(dead_imports(self.project, edits.file, self._covers)):
                    edits.remove_import(imported)

    def deletion(self) -> Deletion:
        """The changed files, the definitions that went, and the pristine lines that went."""
        deleted = [
            Deleted(definition=self.project.definitions[key], removal=removal)
            for key, removal in sorted(self.removed.items())
            if not self._covered_by_class(key)
        ]
        edits = sorted(self.edits.items())
        return Deletion(
            files={path: one.result() for path, one in edits},
            deleted=tuple(deleted),
            removed_lines={path: one.removed_lines() for path, one in edits},
            names=tuple(sorted((symbol.path, symbol.name) for symbol in self._seen)),
        )

    # -- consequences ----------------------------------------------------------------------------

    def _forget(self, symbol: Symbol) -> None:
        """Repair every use of a top-level name that no longer exists."""
        if symbol in self._seen:
            return
        self._seen.add(symbol)
        for alias, imported in self.project.aliases(symbol).items():
            if alias.path not in self.project.sources:
                if alias.path in self.project.others and imported is not None:
                    raise Irreparable(f"{alias.path} imports {symbol.name}")
                continue
            self._seen.add(alias)
            file = self.project.sources[alias.path]
            if imported is not None:
                self._remove_import(file, imported)
            for use in file.uses.get(alias.name, ()):
                if use.attribute_of is None:
                    self._repair(file, use)
            for path, use in list(self.project.attribute_uses(alias)):
                if path in self.project.sources:
                    self._repair(self.project.sources[path], use)

    def _forget_module(self, path: str) -> None:
        for file in self.project.sources.values():
            aliases = self.project.module_aliases[file.path]
            for imported in file.imports:
                module = self.project.absolute(file, imported.module)
                target = f"{module}.{imported.name}" if imported.name is not None else module
                direct = self.project.paths.get(module) == path
                if (direct or self.project.paths.get(target) == path) and not self.is_removed(file.path, imported.part):
                    self._remove_import(file, imported)
                    if imported.name is not None and direct:
                        self._forget(Symbol(path=file.path, name=imported.local))
                    for use in file.uses.get(imported.local, ()):
                        if use.attribute_of is None and aliases.get(imported.local) == path:
                            self._repair(file, use)
            self._remove_star_imports(file, path)

    def _remove_import(self, file: PythonFile, imported: ImportedName) -> None:
        """Remove an import; in a function, what it is imported for, since the uses of a local name are not known."""
        if self.is_removed(file.path, imported.part):
            return
        if _at_top(imported.statement):
            self._of(file.path).remove_import(imported)
        else:
            self._repair(file, Use(name=imported.local, node=imported.part, attribute_of=None))

    def _remove_star_imports(self, file: PythonFile, path: str) -> None:
        for node in file.parsed.root.named_children:
            if node.type == "import_from_statement" and any(c.type == "wildcard_import" for c in node.named_children):
                module = node.child_by_field_name("module_name")
                if module is None:
                    continue
                if self.project.paths.get(self.project.absolute(file, file.parsed.text(module))) == path:
                    self._of(file.path).remove_statement(node)

    def _forget_attribute(self, path: str, owner: str, name: str) -> None:
        """Repair ``x.name`` where nothing else of that name is left, and ``self.name`` in its own class."""
        same = [key for key in self.project.by_name.get(name, ()) if key not in self.removed]
        remaining = any(not self._inside_removed(self.project.definitions[key]) for key in same)
        for other, use in self.project.uses_of(name):
            file = self.project.sources.get(other)
            if file is None or use.attribute_of is None or self.is_removed(other, use.node):
                continue
            own = use.attribute_of in ("self", "cls") and other == path
            if not remaining or (own and self._class_of(file, use.node) == owner):
                self._repair(file, use)

    def _repair(self, file: PythonFile, use: Use) -> None:
        """Remove the smallest thing around a use that can go without leaving a hole."""
        if self.is_removed(file.path, use.node):
            return
        node = use.node
        for parent in syntax.ancestors(use.node):
            if parent.type in _COLLECTIONS and self._is_registration(parent):
                self._of(file.path).remove_element(node)
                return
            if parent.type in ("if_statement", "elif_clause") and self._remove_branch(file, parent, node):
                return
            if parent.type == "expression_statement" and _at_top(parent):
                self._remove_statement(file, parent)
                return
            if parent.type == "decorated_definition":
                parent = parent.child_by_field_name("definition") or parent
            if parent.type in ("function_definition", "class_definition"):
                self._remove_user(file, parent, use)
                return
            node = parent
        raise Irreparable(f"{file.path}:{use.node.start_point[0] + 1} needs {use.name}")

    @staticmethod
    def _is_registration(collection: Node) -> bool:
        """A list of things (an export, a registry, the classes of isinstance), not a value that is unpacked."""
        parent = collection.parent
        return parent is not None and parent.type not in _NOT_REGISTRIES and collection.named_child_count > 1

    def _remove_branch(self, file: PythonFile, statement: Node, child: Node) -> bool:
        """Remove an if/elif branch that only the feature's tests enter; not if only an ``else`` would be left."""
        body = statement.child_by_field_name("consequence")
        if body is None or child.type in ("elif_clause", "else_clause"):
            return False
        if not self.exclusive(file.path, body.start_point[0] + 1, body.end_point[0] + 1):
            return False
        whole = statement if statement.type == "if_statement" else statement.parent
        assert whole is not None
        left = [c for c in [whole, *whole.children_by_field_name("alternative")] if not self._is_branch_gone(file, c)]
        others = [c for c in left if c != statement]
        if not others:
            self._of(file.path).remove_statement(whole)
        elif statement != left[0]:
            self._of(file.path).remove_statement(statement)
        elif others[0].type == "elif_clause":
            # The next branch becomes the first: drop everything up to its "el".
            self._of(file.path).cut(statement.start_byte, others[0].start_byte + 2)
        else:
            return False
        return True

    def _is_branch_gone(self, file: PythonFile, clause: Node) -> bool:
        body = clause.child_by_field_name("body" if clause.type == "else_clause" else "consequence")
        return body is not None and self.is_removed(file.path, body)

    def _remove_statement(self, file: PythonFile, statement: Node) -> None:
        """Remove a statement at module or class level, and forget the names that it assigned."""
        self._of(file.path).remove_statement(statement)
        inner = statement.named_children[0] if statement.named_child_count else None
        in_class = any(a.type == "class_definition" for a in syntax.ancestors(statement))
        owner = self._class_of(file, statement)
        while inner is not None and inner.type == "assignment":
            left = inner.child_by_field_name("left")
            if left is None or left.type != "identifier" or (in_class and not owner):
                raise Irreparable(f"{file.path}:{statement.start_point[0] + 1} assigns more than a name")
            if in_class:
                self._forget_attribute(file.path, owner, file.parsed.text(left))
            else:
                self._forget(Symbol(path=file.path, name=file.parsed.text(left)))
            inner = inner.child_by_field_name("right")

    def _remove_user(self, file: PythonFile, node: Node, use: Use) -> None:
        user = self._definition_at(file, node)
        if user is not None and self.exclusive(file.path, user.body_line, user.end_line):
            self.remove(user)
            return
        line = use.node.start_point[0] + 1
        raise Irreparable(f"{file.path}:{line} needs {use.name}", user)

    # -- where things are ------------------------------------------------------------------------

    def is_removed(self, path: str, node: Node) -> bool:
        """Whether a node lies in what was removed so far."""
        return self._covers(path, node.start_byte, node.end_byte)

    def _covers(self, path: str, start: int, end: int) -> bool:
        return path in self.edits and self.edits[path].covers(start, end)

    def _of(self, path: str) -> FileEdits:
        if path not in self.edits:
            self.edits[path] = FileEdits(self.project.sources[path])
        return self.edits[path]

    def _inside_removed(self, definition: Definition) -> bool:
        return self._covers(definition.path, definition.start_byte, definition.end_byte)

    def _covered_by_class(self, key: tuple[str, str]) -> bool:
        owner = key[1].rpartition(".")[0]
        return bool(owner) and self.removed.get((key[0], owner)) is Removal.WHOLE

    def _definition_at(self, file: PythonFile, node: Node) -> Definition | None:
        """The definition that this function or class is, or that it lies in."""
        for inner in (node, *syntax.ancestors(node)):
            if (name := file.names_by_node.get(inner.id)) is not None:
                return self.project.definitions[file.path, name]
        return None

    def _class_of(self, file: PythonFile, node: Node) -> str:
        for parent in syntax.ancestors(node):
            if parent.type == "class_definition":
                found = self._definition_at(file, parent)
                return found.qualified_name if found is not None else ""
        return ""


def _at_top(statement: Node) -> bool:
    """Whether a statement is in no function (module or class level, conditions included)."""
    return not any(a.type in ("function_definition", "lambda") for a in syntax.ancestors(statement))
