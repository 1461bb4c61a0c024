"""Gold sources that report their calls: one statement more a function, one behind each class.

The statements find what records in ``builtins`` and do nothing where there is none, in subprocesses for one.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from taskgen.languages.python_source import parse
from taskgen.languages.python_syntax import PythonFile
from taskgen.syntax import Edit, apply_edits
from taskgen.types import Definition

_HOOK = '__import__("builtins").__dict__.get("{name}", lambda *_: None)({args})'


def instrumented(file: PythonFile, targets: Mapping[int, Definition]) -> bytes:
    """A file whose definitions report to the recorder under their numbers."""
    edits = []
    for number, definition in targets.items():
        if definition.kind == "class":
            line = file.source.rfind(b"\n", 0, definition.start_byte) + 1
            indent = file.source[line : definition.start_byte]
            text = _HOOK.format(name="_taskgen_class", args=f"{number}, {definition.name}")
            edits.append(Edit(start=definition.end_byte, end=definition.end_byte, text=b"\n" + indent + text.encode()))
        elif arguments := _arguments(definition):
            text = _HOOK.format(name="_taskgen_call", args=f"{number}, {arguments}")
            edits.append(_at_start(file.source, definition, text.encode()))
    return apply_edits(file.source, edits)


def _at_start(source: bytes, definition: Definition, text: bytes) -> Edit:
    """The statement in front of the body, behind a docstring."""
    line = source.rfind(b"\n", 0, definition.body_byte) + 1
    blank = source[line : definition.body_byte]
    one_line = bool(blank.strip())
    if definition.docstring:
        place = definition.after_doc_byte
        return Edit(start=place, end=place, text=(b"; " if one_line else b"\n" + blank) + text)
    place = definition.body_byte
    return Edit(start=place, end=place, text=text + (b"; " if one_line else b"\n" + blank))


def _arguments(definition: Definition) -> str:
    """``(a, b, *rest), {"k": k, **more}``: the arguments as they can be given again; '' if they cannot be told."""
    header = definition.signature.splitlines()[-1]
    try:
        node = parse(f"{header}: pass".encode()).body[0]
    except SyntaxError:
        return ""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    if "@classmethod" in definition.signature:
        names = names[1:]
    positional = "".join(f"{name}, " for name in names) + (f"*{node.args.vararg.arg}, " if node.args.vararg else "")
    keywords = [f'"{a.arg}": {a.arg}' for a in node.args.kwonlyargs]
    keywords += [f"**{node.args.kwarg.arg}"] if node.args.kwarg else []
    return f"({positional}), {{{', '.join(keywords)}}}"


def recordable(definitions: Sequence[Definition]) -> list[Definition]:
    """What of the deleted definitions can be called by name: not what lies in a function, and methods of a class that
    goes as a whole only through their class."""
    classes = {(d.path, d.qualified_name) for d in definitions if d.kind == "class"}
    return [
        d
        for d in definitions
        if (d.path, d.owner) not in classes and "<locals>" not in d.qualified_name and not _is_overload(d)
    ]


def _is_overload(definition: Definition) -> bool:
    return "overload" in definition.signature or ".setter" in definition.signature or ".deleter" in definition.signature
