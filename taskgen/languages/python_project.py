"""All Python files of a tree together: which name in which file means which definition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from taskgen import syntax
from taskgen.language import Reader
from taskgen.languages.python_syntax import ImportedName, PythonFile, Use, parse_python
from taskgen.types import Definition

#: Larger files are generated tables or worse; they are left alone (and are no source of features).
MAX_FILE_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A name at the top level of a file."""

    path: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """An import that gives a symbol another place to be used from."""

    path: str
    imported: ImportedName


class PythonProject:
    """The sources (features come from them) and the tests of a tree, parsed.

    ``sources`` and ``tests`` map paths to files; ``unreadable`` names files with syntax errors, foreign
    encodings or unreasonable sizes, which are left exactly as they are.
    """

    def __init__(self, tree: Reader, modules: Mapping[str, str], test_paths: tuple[str, ...]) -> None:
        self.unreadable: dict[str, str] = {}
        self.sources = self._parse(tree, dict(modules))
        self.tests = self._parse(tree, dict.fromkeys(test_paths, ""))
        self.paths = {file.module: path for path, file in self.sources.items()}
        #: What may use a source besides the sources themselves, apart from tests: other Python files.
        rest = [p for p in tree.paths if p.endswith(".py") and p not in self.sources and p not in self.tests]
        self.others = self._parse(tree, dict.fromkeys(rest, ""))

    def _parse(self, tree: Reader, modules: Mapping[str, str]) -> dict[str, PythonFile]:
        parsed = {}
        for path, module in modules.items():
            source = tree.read(path)
            problem = _unreadable(source)
            if not problem:
                file = parse_python(path, module, source)
                problem = "syntax error" if file.parsed.root.has_error else ""
            if problem:
                self.unreadable[path] = problem
            else:
                parsed[path] = file
        return parsed

    @cached_property
    def definitions(self) -> dict[tuple[str, str], Definition]:
        """(path, qualified name) -> definition, of the sources."""
        return {(d.path, d.qualified_name): d for f in self.sources.values() for d in f.definitions}

    @cached_property
    def by_name(self) -> dict[str, list[tuple[str, str]]]:
        """Bare name -> the definitions of the sources that have it."""
        found: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for key, definition in self.definitions.items():
            found[definition.name].append(key)
        return dict(found)

    @cached_property
    def names(self) -> dict[str, int]:
        """Bare name -> how many definitions of the sources have it."""
        return {name: len(keys) for name, keys in self.by_name.items()}

    @cached_property
    def _uses(self) -> dict[str, list[tuple[str, Use]]]:
        found: dict[str, list[tuple[str, Use]]] = defaultdict(list)
        for file in self.everything():
            for name, uses in file.uses.items():
                found[name] += [(file.path, use) for use in uses]
        return dict(found)

    def uses_of(self, name: str) -> Sequence[tuple[str, Use]]:
        """Uses of a bare name in all files: path, use."""
        return self._uses.get(name, ())

    @cached_property
    def private(self) -> tuple[tuple[Definition, tuple[tuple[str, Use], ...]], ...]:
        """The definitions of the sources with a leading underscore, each with the uses of its name outside itself."""
        return tuple(
            (d, tuple((p, u) for p, u in self.uses_of(d.name) if not _lies_in(d, p, u)))
            for d in self.definitions.values()
            if d.name.startswith("_") and not d.name.endswith("__")
        )

    def absolute(self, file: PythonFile, module: str) -> str:
        """The absolute name of a module as written in an import of ``file``."""
        dots = len(module) - len(module.lstrip("."))
        if not dots:
            return module
        package = file.module.split(".") if file.is_package else file.module.split(".")[:-1]
        package = package[: len(package) - (dots - 1)] if dots > 1 else package
        return ".".join([*package, module.lstrip(".")]).strip(".")

    @cached_property
    def bindings(self) -> dict[Symbol, list[Binding]]:
        """For each symbol of a source, the ``from m import name`` bindings in all files."""
        found: dict[Symbol, list[Binding]] = defaultdict(list)
        for file in self.everything():
            for imported in file.imports:
                path = self.paths.get(self.absolute(file, imported.module))
                if imported.name is not None and path is not None:
                    found[Symbol(path=path, name=imported.name)].append(Binding(path=file.path, imported=imported))
        return found

    @cached_property
    def star_importers(self) -> dict[str, list[str]]:
        """Path of a source -> paths of files that import * from it."""
        found: dict[str, list[str]] = defaultdict(list)
        for file in self.everything():
            for module in star_modules(file):
                path = self.paths.get(self.absolute(file, module))
                if path is not None:
                    found[path].append(file.path)
        return found

    def everything(self) -> Iterator[PythonFile]:
        yield from self.sources.values()
        yield from self.tests.values()
        yield from self.others.values()

    def file(self, path: str) -> PythonFile:
        """A parsed file of any kind. Raises KeyError."""
        return self.sources.get(path) or self.tests.get(path) or self.others[path]

    @cached_property
    def module_aliases(self) -> dict[str, dict[str, str]]:
        """file -> text that names a module there (``m``, ``a.b``) -> path of that module."""
        found: dict[str, dict[str, str]] = {}
        for file in self.everything():
            aliases = found.setdefault(file.path, {})
            for imported in file.imports:
                module = self.absolute(file, imported.module)
                if imported.name is not None:
                    target, text = f"{module}.{imported.name}", imported.local
                else:
                    target, text = module, imported.local if "." not in imported.local else module
                    if imported.part.type != "aliased_import":
                        text = imported.module
                if target in self.paths:
                    aliases[text] = self.paths[target]
        return found

    def attribute_uses(self, symbol: Symbol) -> Iterator[tuple[str, Use]]:
        """Uses of a symbol as an attribute of its module (``m.name``)."""
        for path, use in self.uses_of(symbol.name):
            if use.attribute_of is not None and self.module_aliases[path].get(use.attribute_of) == symbol.path:
                yield path, use

    def aliases(self, symbol: Symbol) -> dict[Symbol, ImportedName | None]:
        """The symbol and every symbol that re-exports it, each with the import that binds it (None: itself)."""
        found: dict[Symbol, ImportedName | None] = {symbol: None}
        queue = [symbol]
        while queue:
            current = queue.pop()
            for binding in self.bindings.get(current, ()):
                again = Symbol(path=binding.path, name=binding.imported.local)
                if again not in found:
                    found[again] = binding.imported
                    queue.append(again)
            for path in self.star_importers.get(current.path, ()):
                again = Symbol(path=path, name=current.name)
                if not current.name.startswith("_") and again not in found:
                    found[again] = None
                    queue.append(again)
        return found

    def importers(self, symbol: Symbol) -> frozenset[str]:
        """Test files that cannot be loaded without a symbol.

        They import it by name, directly or through a re-export, or take it from its module outside of functions.
        """
        aliases = self.aliases(symbol)
        found = {alias.path for alias in aliases if alias.path in self.tests}
        taken = (place for alias in aliases for place in self.attribute_uses(alias) if place[0] in self.tests)
        late = ("function_definition", "lambda")
        found |= {path for path, use in taken if not any(a.type in late for a in syntax.ancestors(use.node))}
        return frozenset(found)


def star_modules(file: PythonFile) -> Iterator[str]:
    """Modules (as written) that a file imports * from."""
    for node in file.parsed.root.named_children:
        if node.type == "import_from_statement" and any(c.type == "wildcard_import" for c in node.named_children):
            module = node.child_by_field_name("module_name")
            if module is not None:
                yield file.parsed.text(module)


def _lies_in(definition: Definition, path: str, use: Use) -> bool:
    return path == definition.path and definition.start_byte <= use.node.start_byte < definition.end_byte


def _unreadable(source: bytes) -> str:
    if len(source) > MAX_FILE_BYTES:
        return f"larger than {MAX_FILE_BYTES} bytes"
    try:
        source.decode("utf-8")
    except UnicodeDecodeError:
        return "not UTF-8"
    return ""
