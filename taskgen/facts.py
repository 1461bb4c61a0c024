"""What a problem statement may say: interfaces, wiring, names that tests use, call sites, documentation.

Everything comes from signatures, docstrings, the remaining code and the docs. Of the hidden tests only the
names that they use are taken (and the exceptions that they expect), never what they assert.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tree_sitter import Node

from taskgen import syntax
from taskgen.languages.python_project import PythonProject, Symbol
from taskgen.languages.python_syntax import PythonFile, Use
from taskgen.types import Definition, Deleted, Deletion, Removal

MAX_CALL_SITES = 5
MAX_MENTIONS = 3
MAX_HINTED_NAMES = 12
MAX_PARAGRAPH_LINES = 14
_EXPECTS = {"raises", "assertRaises", "assertRaisesRegex", "warns", "assertWarns", "assertWarnsRegex"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A definition to write: ``outline`` is its signature and docstring (for a class: of its public members too)."""

    path: str
    qualified_name: str
    kind: str
    outline: str
    whole: bool
    file_gone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """An import, export or reference that went with a definition."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSymbol:
    """A name that the hidden tests use. ``where`` says what it is."""

    name: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """A line of the remaining code that uses what is gone."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """A paragraph of the documentation."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """How the deleted code of a piece was done: its length, and in alphabetical order what it called and raised."""

    qualified_name: str
    n_lines: int
    calls: tuple[str, ...]
    raises: tuple[str, ...]


def names_in_tests(files: Mapping[str, PythonFile], tests: Iterable[str]) -> frozenset[str]:
    """Identifiers that hidden tests import, call or read: those of their files, less those of other tests there."""
    wanted = {(test.split("::")[0], ".".join(test.split("[")[0].split("::")[1:])) for test in tests}
    found: set[str] = set()
    for path in sorted({path for path, _ in wanted} & set(files)):
        file = files[path]
        others = [
            (d.start_byte, d.end_byte)
            for d in file.definitions
            if d.kind != "class" and d.name.startswith("test") and (path, d.qualified_name) not in wanted
        ]
        for node in syntax.walk(file.parsed.root):
            if node.type != "identifier" or any(a <= node.start_byte < b for a, b in others):
                continue
            if not any(a.type.startswith("import") for a in syntax.ancestors(node)):
                found.add(file.parsed.text(node))
    return frozenset(found)


def expected_exceptions(files: Mapping[str, PythonFile], tests: Iterable[str]) -> list[str]:
    """Exceptions and warnings that the tests expect, by the name they use."""
    found: set[str] = set()
    for file, node in _test_nodes(files, tests):
        for call in syntax.walk(node):
            function = call.child_by_field_name("function") if call.type == "call" else None
            if function is None or file.parsed.text(function).rpartition(".")[2] not in _EXPECTS:
                continue
            arguments = call.child_by_field_name("arguments")
            first = arguments.named_children[0] if arguments is not None and arguments.named_children else None
            for part in syntax.walk(first) if first is not None else ():
                if part.type in ("identifier", "attribute") and (
                    part.parent is None or part.parent.type != "attribute"
                ):
                    found.add(file.parsed.text(part))
    return sorted(found)


def _test_nodes(files: Mapping[str, PythonFile], tests: Iterable[str]) -> Iterator[tuple[PythonFile, Node]]:
    for path, name in sorted({(t.split("::")[0], ".".join(t.split("[")[0].split("::")[1:])) for t in tests}):
        if path in files and name in files[path].nodes:
            yield files[path], files[path].nodes[name]


def defined_names(project: PythonProject, deletion: Deletion) -> frozenset[str]:
    """Every name that the deleted code defines: definitions, members, and attributes set on ``self`` or a class."""
    found: set[str] = set()
    for deleted in deletion.deleted:
        definition = deleted.definition
        file = project.sources[definition.path]
        found.add(definition.name)
        node = file.nodes[definition.qualified_name]
        found |= {d.name for d in file.definitions if d.qualified_name.startswith(definition.qualified_name + ".")}
        found |= set(_assigned_attributes(file, node))
    for path, data in deletion.files.items():
        if data is None:
            found |= project.sources[path].constants
    return frozenset(found)


def _assigned_attributes(file: PythonFile, node: Node) -> Iterator[str]:
    for inner in syntax.walk(node):
        left = inner.child_by_field_name("left") if inner.type in ("assignment", "augmented_assignment") else None
        if left is None:
            continue
        if left.type == "attribute" and file.parsed.text(left).startswith(("self.", "cls.")):
            yield file.parsed.text(left).split(".")[1]
        elif left.type == "identifier" and _directly_in_class(inner):
            yield file.parsed.text(left)


def _directly_in_class(node: Node) -> bool:
    kinds = ("function_definition", "class_definition", "module")
    scope = next(a.type for a in syntax.ancestors(node) if a.type in kinds)
    return scope == "class_definition"


# -- pieces ------------------------------------------------------------------------------------------


def pieces(project: PythonProject, deletion: Deletion, used: frozenset[str]) -> list[Piece]:
    """The definitions to describe: all that keep a signature, and those gone entirely that somebody can see."""
    found = []
    for deleted in sorted(deletion.deleted, key=lambda d: (d.definition.path, d.definition.start_line)):
        definition = deleted.definition
        whole = deleted.removal is Removal.WHOLE
        if whole and _is_private(definition) and definition.name not in used:
            continue
        found.append(
            Piece(
                path=definition.path,
                qualified_name=definition.qualified_name,
                kind=definition.kind,
                outline=outline(project.sources[definition.path], definition, used),
                whole=whole,
                file_gone=deletion.files.get(definition.path, b"") is None,
            )
        )
    return found


def _is_private(definition: Definition) -> bool:
    return definition.name.startswith("_") and not definition.name.endswith("__")


def outline(file: PythonFile, definition: Definition, used: frozenset[str], indent: str = "") -> str:
    """Signature and docstring; for a class those of its members, private ones only if tests use them."""
    lines = [indent + line for line in definition.signature.splitlines()]
    lines[-1] += ":"
    inner = indent + "    "
    if definition.docstring:
        doc = definition.docstring.replace('"""', "'''").splitlines()
        lines += [f'{inner}"""{doc[0]}', *(f"{inner}{line}".rstrip() for line in doc[1:])]
        lines[-1] += '"""' if len(doc) == 1 else ""
        lines += [f'{inner}"""'] if len(doc) > 1 else []
    members = [d for d in file.definitions if definition.kind == "class" and d.owner == definition.qualified_name]
    shown = [member for member in members if not _is_private(member) or member.name in used]
    for member in shown:
        lines += ["", outline(file, member, used, inner)]
    if definition.kind != "class" or not (definition.docstring or shown):
        lines.append(f"{inner}...")
    return "\n".join(lines)


def hints(project: PythonProject, deletion: Deletion, described: Iterable[Piece]) -> list[Hint]:
    """What helps to write the pieces again. Names that are gone and not described are left out: nobody has them."""
    shown = list(described)
    known = {piece.qualified_name.rpartition(".")[2] for piece in shown}
    gone = {d.definition.name for d in deletion.deleted} - known
    found = []
    for piece in shown:
        file = project.sources[piece.path]
        definition = project.definitions[piece.path, piece.qualified_name]
        node = file.nodes[piece.qualified_name]
        calls, raises = _called(file, node), _raised(file, node)
        found.append(
            Hint(
                qualified_name=piece.qualified_name,
                n_lines=definition.body_lines,
                calls=tuple(sorted(calls - raises - gone)[:MAX_HINTED_NAMES]),
                raises=tuple(sorted(raises - gone)[:MAX_HINTED_NAMES]),
            )
        )
    return found


def _called(file: PythonFile, node: Node) -> set[str]:
    functions = [n.child_by_field_name("function") for n in syntax.walk(node) if n.type == "call"]
    return {_last_name(file, n) for n in functions if n is not None and n.type in ("identifier", "attribute")}


def _raised(file: PythonFile, node: Node) -> set[str]:
    found = set()
    for statement in syntax.walk(node):
        raised = (
            statement.named_children[0] if statement.type == "raise_statement" and statement.named_children else None
        )
        if raised is not None and raised.type == "call":
            raised = raised.child_by_field_name("function")
        if raised is not None and raised.type in ("identifier", "attribute"):
            found.add(_last_name(file, raised))
    return found


def _last_name(file: PythonFile, node: Node) -> str:
    return file.parsed.text(node).rpartition(".")[2].strip()


# -- wiring and names --------------------------------------------------------------------------------


def wiring(project: PythonProject, deletion: Deletion) -> list[Wiring]:
    """Imports, exports and references to what is gone that were removed elsewhere."""
    gone = [d.definition for d in deletion.deleted if d.removal is Removal.WHOLE and not d.definition.owner]
    found: dict[tuple[str, str], None] = {}
    for definition in gone:
        for alias in sorted(project.aliases(Symbol(path=definition.path, name=definition.name)), key=lambda a: a.path):
            if alias.path in deletion.files and deletion.files[alias.path] is not None:
                for text in _wired(project.sources[alias.path], alias.name, deletion):
                    found.setdefault((alias.path, text))
    return [Wiring(path=path, text=text) for path, text in found]


def _wired(file: PythonFile, name: str, deletion: Deletion) -> Iterator[str]:
    lines = deletion.removed_lines[file.path]
    own = [d.definition for d in deletion.deleted if d.definition.path == file.path]

    def elsewhere(node: Node) -> bool:
        inside = any(d.start_byte <= node.start_byte < d.end_byte for d in own)
        return node.start_point[0] + 1 in lines and not inside

    for imported in file.imports:
        if imported.local == name and elsewhere(imported.part):
            what = f"`{imported.name}`" if imported.name is not None else "it"
            yield f"imports {what} from `{imported.module}`" + (f" as `{name}`" if imported.name != name else "")
    if name in file.exported and elsewhere(file.exported[name]):
        yield f"lists `{name}` in `__all__`"
    for use in file.uses.get(name, ()):
        if use.node.type != "string" and use.attribute_of is None and elsewhere(use.node):
            yield f"referred to `{name}` at line {use.node.start_point[0] + 1} of the original file"


def symbols(
    project: PythonProject, deletion: Deletion, tests: Iterable[str], used: frozenset[str]
) -> list[NamedSymbol]:
    """Names that the hidden tests use: of the deleted code, and imported from the project."""
    tests = list(tests)
    found: dict[str, str] = {}
    for name in sorted(defined_names(project, deletion) & used):
        found[name] = "to be written"
    for path in sorted({test.split("::")[0] for test in tests}):
        file = project.tests.get(path)
        for imported in file.imports if file is not None else ():
            own = file is not None and project.absolute(file, imported.module) in project.paths
            if own and imported.name is not None and imported.local in used:
                found.setdefault(imported.name, f"imported from `{imported.module}`")
    for name in expected_exceptions(project.tests, tests):
        found.setdefault(name, "expected to be raised or warned of")
    return [NamedSymbol(name=name, where=where) for name, where in found.items()]


def call_sites(project: PythonProject, deletion: Deletion) -> list[CallSite]:
    """Lines of the remaining sources that use what lost its body."""
    found: dict[CallSite, None] = {}
    for deleted in deletion.deleted:
        definition = deleted.definition
        for path, file in project.sources.items():
            lines = file.source.splitlines()
            for use in file.uses.get(definition.name, ()):
                row = use.node.start_point[0]
                gone = row + 1 in deletion.removed_lines.get(path, ()) or use.node.type == "string"
                if not gone and _means(project, path, use, definition):
                    text = lines[row].strip().decode("utf-8", "replace").replace("`", "'")[:160]
                    found.setdefault(CallSite(path=path, text=text))
    return list(found)[:MAX_CALL_SITES]


def _means(project: PythonProject, path: str, use: Use, definition: Definition) -> bool:
    """Whether a use is of this definition, as far as names tell: methods only if their name is theirs alone."""
    if definition.owner:
        return use.attribute_of is not None and project.names[definition.name] == 1
    if use.attribute_of is not None:
        return project.module_aliases[path].get(use.attribute_of) == definition.path
    return Symbol(path=path, name=use.name) in project.aliases(Symbol(path=definition.path, name=definition.name))


def mentions(documents: Mapping[str, str], deleted: Iterable[Deleted]) -> list[Mention]:
    """Paragraphs of the documentation that speak of what is gone."""
    names = [d.definition.name for d in deleted if len(d.definition.name) > 3 and not d.definition.name.startswith("_")]
    if not names:
        return []
    wanted = re.compile(r"(?<!\w)(" + "|".join(map(re.escape, names)) + r")(?!\w)")
    found = []
    for path, text in documents.items():
        for paragraph in re.split(r"\n\s*\n", text):
            if wanted.search(paragraph) and "```" not in paragraph:
                lines = paragraph.strip("\n").splitlines()[:MAX_PARAGRAPH_LINES]
                found.append(Mention(path=path, text="\n".join(line[:200] for line in lines)))
                if len(found) == MAX_MENTIONS:
                    return found
                break
    return found


def documentation(paths: Iterable[str], read: Mapping[str, bytes]) -> dict[str, str]:
    """README files and what lies in docs folders, as text; change logs and licences left out."""
    found = {}
    for path in paths:
        name = path.rpartition("/")[2].lower()
        is_document = name.startswith("readme") or path.startswith(("docs/", "doc/"))
        is_text = name.endswith((".md", ".rst", ".txt")) or name == "readme"
        if is_document and is_text and not re.match(r"(change|history|news|licen[cs]e|authors)", name):
            found[path] = read[path].decode("utf-8", "replace")
    return found
