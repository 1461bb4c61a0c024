"""How attacks adapt to a task: bodies of the deleted definitions, places in the tree, names and ids of tests."""

from __future__ import annotations

import ast
import marshal
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from taskgen.attacks.attack import Group, Item, Submission, Target
from taskgen.languages.python_source import parse
from taskgen.languages.python_syntax import PythonFile, parse_python
from taskgen.syntax import Edit, apply_edits
from taskgen.types import Definition

#: In body lines: becomes the qualified name of the definition, as a Python string.
NAME = "@NAME@"
#: Methods that must return None: a cheat that returns a value from them would only raise a TypeError.
_RETURN_NONE = ("__init__", "__init_subclass__", "__set_name__", "__set__")
#: Folders that are no part of a module's dotted name.
_SOURCE_ROOTS = ("src", "lib", "python")


def file(path: str, text: str | bytes, *, executable: bool = False) -> Item:
    """A plain file."""
    return Item(path=path, content=text.encode() if isinstance(text, str) else text, executable=executable)


# --- Bodies of what was deleted ------------------------------------------------------------------


def with_bodies(target: Target, body_lines: Sequence[str], prelude: str = "") -> tuple[Item, ...]:
    """The files of the gold patch, with the bodies of all deleted definitions replaced by a cheat.

    Imports, exports, signatures, docstrings and class skeletons are those of gold, for an attacker gets those from
    the statement; only the bodies count. ``prelude`` runs when a file with such a definition is imported.
    """
    return tuple(
        file(path, _rewritten(target, path, body_lines, prelude) if path.endswith(".py") else content)
        for path, content in sorted(target.gold.items())
    )


def wrong_answer(target: Target, prelude: str = "") -> tuple[Item, ...]:
    """Files that import and collect, and whose definitions do nothing: what an exploit has to make pass."""
    return with_bodies(target, ["return None"], prelude)


def left_behind(target: Target, *items: Item, script: str = "", deleted: tuple[str, ...] = ()) -> Submission:
    """Things left behind, beside an answer that is wrong; they take the place of its files."""
    own = {item.path for item in items}
    rest = (item for item in wrong_answer(target) if item.path not in own)
    return Submission(items=(*rest, *items), script=script, deleted=deleted)


def cheat(body_lines: Sequence[str], prelude: str = "") -> Callable[[Target], Submission]:
    """An attack that consists of bodies and a prelude alone."""
    return lambda target: Submission(items=with_bodies(target, body_lines, prelude))


def add_code(group: Group, number: int, name: str, why: str, prelude: str, *body: str) -> None:
    """Add an attack by code that runs at import, or is called from bodies; without ``body`` these do nothing."""
    group.add(number, name, why, cheat(body or ["return None"], prelude))


def deleted_definitions(target: Target, path: str) -> list[Definition]:
    """The functions and methods in a gold file that the task deletes, those of deleted classes included."""
    parsed = parse_python(path, "", target.gold[path])
    names = {str(d["qualified_name"]) for d in target.row["deleted"] if d["path"] == path}
    return [
        d
        for d in parsed.definitions
        if d.kind != "class" and any(d.qualified_name == n or d.qualified_name.startswith(n + ".") for n in names)
    ]


def _rewritten(target: Target, path: str, body_lines: Sequence[str], prelude: str) -> bytes:
    source = target.gold[path]
    wanted = deleted_definitions(target, path)
    if not wanted and not any(d["path"] == path for d in target.row["deleted"]):
        return source
    edits = [replace_body(source, d, _fitted(body_lines, d)) for d in wanted]
    return apply_edits(source, [*edits, *_prelude_edit(parse_python(path, "", source), prelude)])


def _fitted(lines: Sequence[str], definition: Definition) -> list[str]:
    """Body lines for a definition: its name filled in, and no value returned where none may be."""
    named = [line.replace(NAME, repr(definition.qualified_name)) for line in lines]
    if definition.name in _RETURN_NONE and definition.kind == "method":
        named = [re.sub(r"^(\s*)return\s+(?=\S)", r"\1", line) for line in named]
    return named


def replace_body(source: bytes, definition: Definition, lines: Iterable[str]) -> Edit:
    """Replace what stands behind a definition's header and docstring."""
    line = source.rfind(b"\n", 0, definition.body_byte) + 1
    blank = source[line : definition.body_byte]
    start = definition.after_doc_byte if definition.docstring else definition.body_byte
    if blank.strip():  # the body is on the header's line: it moves to lines of its own
        blank = re.match(rb"\s*", blank).group() + b"    "  # type: ignore[union-attr]
        start, first = definition.body_byte, b"\n" + blank
    else:
        first = b"\n" + blank if definition.docstring else b""
    body = (b"\n" + blank).join(line.encode() for line in lines)
    return Edit(start=start, end=definition.end_byte, text=first + body)


def _prelude_edit(parsed: PythonFile, prelude: str) -> Iterator[Edit]:
    """Put code in front of the first statement that is neither the docstring nor a ``__future__`` import."""
    if not prelude:
        return
    text = prelude.strip("\n").encode() + b"\n\n"
    for i, node in enumerate(n for n in parsed.parsed.root.named_children if n.type != "comment"):
        is_docstring = i == 0 and node.type == "expression_statement" and node.named_children[0].type == "string"
        if is_docstring or node.type == "future_import_statement":
            continue
        start = parsed.source.rfind(b"\n", 0, node.start_byte) + 1
        if parsed.source[start : node.start_byte].strip(b" \t\xef\xbb\xbf\x0c"):
            continue  # behind a semicolon
        yield Edit(start=start, end=start, text=text)
        return
    end = len(parsed.source)
    yield Edit(start=end, end=end, text=b"\n" + text)


# --- Places and names ----------------------------------------------------------------------------


def main_path(target: Target) -> str:
    """The file that loses the most."""
    lines: Counter[str] = Counter()
    for deleted in target.row["deleted"]:
        lines[str(deleted["path"])] += int(deleted.get("lines") or 1)
    return lines.most_common(1)[0][0]


def module_of(path: str) -> str:
    """The dotted name under which a source file is imported."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(parts[1:] if len(parts) > 1 and parts[0] in _SOURCE_ROOTS else parts)


def top_package(target: Target) -> str:
    """The name that the tests import."""
    return module_of(main_path(target)).partition(".")[0]


def package_folder(target: Target) -> str:
    """The folder of the main file, with a slash behind it ('' for the root)."""
    return folder_of(main_path(target))


def folder_of(path: str) -> str:
    head, slash, _ = path.rpartition("/")
    return head + slash


def base_of(path: str) -> str:
    """A file's name without its suffix."""
    return path.rpartition("/")[2].partition(".")[0]


def bare_names(target: Target) -> list[str]:
    """The last parts of the names of what was deleted."""
    return sorted({str(d["qualified_name"]).rpartition(".")[2] for d in target.row["deleted"]})


def wanted_ids(target: Target) -> list[str]:
    """The tests that must pass."""
    return sorted({*target.row["FAIL_TO_PASS"], *target.row["PASS_TO_PASS"]})


def test_modules(target: Target) -> list[str]:
    """The hidden Python files that hold the tests to be fixed."""
    files = {str(test).partition("::")[0] for test in target.row["FAIL_TO_PASS"]}
    return sorted(path for path in files if path in target.tests and path.endswith(".py"))


def tests_folder(target: Target) -> str:
    """The folder of most of the tests to be fixed, with a slash behind it ('' for the root)."""
    folders = Counter(folder_of(str(test).partition("::")[0]) for test in target.row["FAIL_TO_PASS"])
    return folders.most_common(1)[0][0] if folders else "tests/"


def tests_with_bodies(target: Target, lines: Sequence[str]) -> tuple[Item, ...]:
    """The hidden test modules with the body of each test replaced."""
    items = []
    for path in test_modules(target):
        source = target.tests[path].content
        found = [d for d in parse_python(path, "", source).definitions if d.name.startswith("test")]
        edits = [replace_body(source, d, lines) for d in found if d.kind != "class"]
        items.append(file(path, apply_edits(source, edits)))
    return tuple(items)


def tests_with_prelude(target: Target, prelude: str) -> tuple[Item, ...]:
    """The hidden test modules with code in front."""
    items = []
    for path in test_modules(target):
        source = target.tests[path].content
        items.append(file(path, apply_edits(source, _prelude_edit(parse_python(path, "", source), prelude))))
    return tuple(items)


def same_python(target: Target) -> bool:
    """Whether bytecode that is compiled here fits the task's interpreter."""
    version = str(target.row["environment"]["runtime"]).removeprefix("python ").split(".")[:2]
    return version == [str(sys.version_info[0]), str(sys.version_info[1])]


def syntax_tree(source: bytes) -> ast.Module | None:
    """The syntax tree of a file, or None where it does not parse."""
    try:
        return parse(source)
    except SyntaxError:
        return None


def bytecode(source: bytes, path: str) -> bytes:
    """The marshalled code of a file, for this interpreter; it is compiled, and not run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return marshal.dumps(compile(source, path, "exec", dont_inherit=True))


def pinned(target: Target, name: str) -> str:
    """The version of a requirement of the environment, or ''."""
    for requirement in target.row["environment"]["requirements"]:
        if str(requirement).lower().startswith(name + "=="):
            return str(requirement).partition("==")[2]
    return ""


def current(target: Target, path: str) -> str:
    """The text of a file of the workspace, or '' where there is none."""
    entry = target.workspace.get(path)
    return entry.content.decode("utf-8", "replace") if entry is not None else ""
