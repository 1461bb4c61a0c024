"""Shell text, followed without running it: which words each command would get, as far as that is known.

The text is parsed by tree-sitter-bash. Variables, functions, substitutions of known output, heredocs, here-strings,
pipes, sub-shells and redirections are followed; both sides of every condition, and the body of a loop once for each
known word (at most ``MAX_WORDS``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from taskgen.monitor import edits, heredocs
from taskgen.monitor.machine import MAX_TEXT, UNKNOWN, Machine
from taskgen.monitor.shell_words import MAX_NESTING, PARSER, Frame, document_of, source_of, text_of, word_of, words_of
from taskgen.monitor.tables import Access

#: A loop's body is followed for this many words of its list.
MAX_WORDS = 8
#: The kinds of nodes that hold no command of their own.
_PASSIVE = frozenset({"comment", "word", "number", "heredoc_end", "heredoc_start", "variable_name"})


@dataclass(frozen=True, slots=True)
class _Io:
    """Input of a command (None: unknown), and whether its output goes to a file or another program."""

    stdin: str | None = None
    captured: bool = False


def run_shell(machine: Machine, text: str, stdin: str | None = None) -> str | None:
    """Follow a shell text; what it would print is returned where it is known."""
    with machine.deeper() as may:
        if not may or len(text) > MAX_TEXT:
            machine.hit("unread-code", "shell text that is too long or too deep")
            return None
        machine.run_decoded(text, "shell")
        script, documents = heredocs.cut(text.replace("\r\n", "\n"))
        source = source_of(script)
        frame = Frame(machine, source, documents, _substitute)
        outer = machine.command
        try:
            return _join(_node(frame, child, _Io(stdin), 0) for child in PARSER.parse(source).root_node.named_children)
        finally:
            machine.command = outer


def _join(parts: Iterator[str | None]) -> str | None:
    """What all of several commands print: known if all that print something are."""
    known = list(parts)
    return None if any(part is None for part in known) else "".join(part or "" for part in known)[:MAX_TEXT]


def _node(frame: Frame, node: Node, io: _Io, depth: int) -> str | None:
    """Follow one statement."""
    if depth > MAX_NESTING or node.type in _PASSIVE:
        if depth > MAX_NESTING:
            frame.machine.hit("unread-code", "shell text nested too deep")
        return ""
    handler = _HANDLERS.get(node.type)
    if handler is not None:
        return handler(frame, node, io, depth + 1)
    if node.type == "ERROR" and not node.named_children and text_of(frame, node).strip(" \n;&|"):
        frame.machine.hit("unread-code", f"shell text that does not parse: {text_of(frame, node)[:60]}")
    return _children(frame, node, io, depth + 1)


def _children(frame: Frame, node: Node, io: _Io, depth: int) -> str | None:
    return _join(_node(frame, child, io, depth) for child in node.named_children)


# --- Statements ---------------------------------------------------------------------------------------


def _command(frame: Frame, node: Node, io: _Io, depth: int) -> str | None:
    machine = frame.machine
    whole = node.parent if node.parent is not None and node.parent.type == "redirected_statement" else node
    machine.command = _original(frame, whole)
    words: list[str] = []
    assigned: list[tuple[str, str]] = []
    redirects = [child for child in node.named_children if child.type.endswith("_redirect")]
    for child in node.named_children:
        if child.type == "variable_assignment":
            assigned.append(_assignment(frame, child, depth))
        elif not child.type.endswith("_redirect") and child.type != "comment":
            inner = child.named_children[0] if child.type == "command_name" and child.named_children else child
            words += words_of(frame, inner, depth)
    io, written = _redirected(frame, redirects, io, depth)
    machine.command = _original(frame, whole)
    if not words:
        machine.variables.update(assigned)
        return ""
    if (body := frame.functions.get(words[0])) is not None and frame.calls < 50:
        frame.calls += 1
        for i, word in enumerate(words[1:], 1):
            machine.variables[str(i)] = word
        machine.variables["@"] = " ".join(words[1:])
        return _node(frame, body, io, depth)
    for name, value in assigned:
        _environment(machine, name, value)
    return _printed(machine, written, _run(machine, words, io))


def _run(machine: Machine, words: Sequence[str], io: _Io) -> str | None:
    outer = machine.hidden_output
    machine.hidden_output = outer or io.captured
    try:
        return machine.run_words(machine, words, io.stdin)
    finally:
        machine.hidden_output = outer


def _environment(machine: Machine, name: str, value: str) -> None:
    if name in ("LD_PRELOAD", "BASH_ENV", "PYTHONSTARTUP", "GIT_SSH_COMMAND") and value:
        machine.hit("start-files", f"sets {name}", name)
    if name in ("GIT_DIR", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"):
        machine.variables[name] = value


def _redirected_statement(frame: Frame, node: Node, io: _Io, depth: int) -> str | None:
    redirects = [child for child in node.named_children if child.type.endswith("_redirect")]
    io, written = _redirected(frame, redirects, io, depth)
    machine, outer = frame.machine, frame.machine.hidden_output
    machine.hidden_output = outer or io.captured
    bodies = [child for child in node.named_children if not child.type.endswith("_redirect")]
    try:
        printed = _join(_node(frame, body, io, depth) for body in bodies)
    finally:
        machine.hidden_output = outer
    machine.command = _original(frame, node)
    return _printed(machine, written, printed)


def _redirected(frame: Frame, redirects: Sequence[Node], io: _Io, depth: int) -> tuple[_Io, list[tuple[str, bool]]]:
    """Input after redirections, and files that output goes to, with whether it is added to them."""
    written: list[tuple[str, bool]] = []
    for node in redirects:
        if node.type == "herestring_redirect":
            io = _Io(
                word_of(frame, node.named_children[-1], depth) + "\n" if node.named_children else None, io.captured
            )
            continue
        target = node.child_by_field_name("destination")
        if target is None:
            continue
        mark = next((text_of(frame, child) for child in node.children if not child.is_named), ">")
        path = word_of(frame, target, depth)
        if (document := frame.documents.get(path)) is not None:
            io = _Io(document_of(frame, document, depth) + "\n", io.captured)
        elif mark.startswith("<"):
            io = _Io(frame.machine.read(path), io.captured)
        elif mark not in (">&", "<&") or not path.isdigit():
            descriptor = node.child_by_field_name("descriptor")
            if descriptor is not None and text_of(frame, descriptor) == "2":
                continue
            if path not in ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"):
                written.append((path, mark.endswith(">>")))
                io = _Io(io.stdin, True)
            elif path == "/dev/null":
                io = _Io(io.stdin, io.captured)
    return io, written


def _printed(machine: Machine, written: Sequence[tuple[str, bool]], text: str | None) -> str | None:
    if not written:
        return text
    for path, adds in written:
        edits.write(machine, path, text, adds=adds)
    return ""


def _pipeline(frame: Frame, node: Node, io: _Io, depth: int) -> str | None:
    text = io.stdin
    children = [child for child in node.named_children if child.type != "comment"]
    for i, child in enumerate(children):
        last = i == len(children) - 1
        # What reads only the head or the lines of its input still shows them.
        text = _node(frame, child, _Io(text, io.captured), depth)
        if last:
            return text
    return text


def _subshell(frame: Frame, node: Node, io: _Io, depth: int) -> str | None:
    machine = frame.machine
    cwd, variables = machine.cwd, dict(machine.variables)
    try:
        return _children(frame, node, io, depth)
    finally:
        machine.cwd, machine.variables = cwd, variables


def _substitute(frame: Frame, node: Node, depth: int) -> str | None:
    return _subshell(frame, node, _Io(), depth)


def _for(frame: Frame, node: Node, io: _Io, depth: int) -> str | None:
    name = node.child_by_field_name("variable")
    body = node.child_by_field_name("body")
    listed = [c for c in node.named_children if c not in (name, body) and c.type != "comment"]
    words = [word for child in listed for word in words_of(frame, child, depth)] or [UNKNOWN]
    parts: list[str | None] = []
    for word in words[:MAX_WORDS]:
        if name is not None:
            frame.machine.variables[text_of(frame, name)] = word
        if body is not None:
            parts.append(_node(frame, body, io, depth))
    return _join(iter(parts)) if len(words) <= MAX_WORDS else None


def _while(frame: Frame, node: Node, io: _Io, depth: int) -> str | None:
    """``while read x``: x is each line of the input."""
    condition = node.child_by_field_name("condition")
    names = _names_read(frame, node) if condition is not None else []
    lines = (io.stdin if io.stdin is not None else UNKNOWN).splitlines() or [UNKNOWN]
    parts: list[str | None] = []
    for line in lines[:MAX_WORDS] if names else [UNKNOWN]:
        values = line.split(None, max(0, len(names) - 1))
        for i, name in enumerate(names):
            frame.machine.variables[name] = values[i] if i < len(values) else UNKNOWN
        parts.append(_children(frame, node, io, depth))
    return _join(iter(parts))


def _names_read(frame: Frame, node: Node) -> list[str]:
    condition = node.child_by_field_name("condition")
    words = text_of(frame, condition).split() if condition is not None and condition.type == "command" else []
    if "read" not in words:
        return []
    return [w for w in words[words.index("read") + 1 :] if w.isidentifier()] or ["REPLY"]


def _function(frame: Frame, node: Node, io: _Io, depth: int) -> str | None:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is not None and body is not None:
        frame.functions[text_of(frame, name)] = body
        _node(frame, body, _Io(), depth)  # what it does counts where it stands, too
    return ""


def _assign(frame: Frame, node: Node, io: _Io, depth: int) -> str | None:
    name, value = _assignment(frame, node, depth)
    frame.machine.variables[name] = value
    _environment(frame.machine, name, value)
    return ""


def _assignment(frame: Frame, node: Node, depth: int) -> tuple[str, str]:
    target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    name = text_of(frame, target) if target is not None else ""
    text = word_of(frame, value, depth) if value is not None else ""
    if any(text_of(frame, child) == "+=" for child in node.children if not child.is_named):
        text = frame.machine.variables.get(name, "") + text
    return name, text[:MAX_TEXT]


def _test(frame: Frame, node: Node, io: _Io, depth: int) -> str | None:
    for child in _walk(node):
        if child.type in ("word", "string", "raw_string", "concatenation", "simple_expansion", "command_substitution"):
            path = word_of(frame, child, depth)
            if "/" in path or "." in path:
                frame.machine.touch(Access.LIST, path)
    return ""


def _walk(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        if current.type not in ("string", "concatenation", "command_substitution"):
            stack.extend(current.named_children)


_Handler = Callable[[Frame, Node, _Io, int], str | None]
_HANDLERS: dict[str, _Handler] = {
    "command": _command,
    "redirected_statement": _redirected_statement,
    "pipeline": _pipeline,
    "subshell": _subshell,
    "for_statement": _for,
    "while_statement": _while,
    "function_definition": _function,
    "variable_assignment": _assign,
    "test_command": _test,
}


def _original(frame: Frame, node: Node) -> str:
    text = text_of(frame, node)
    for name, document in frame.documents.items():
        if name in text:
            text = text.replace(f" < {name}", f"<<EOF\n{document.text[:300]}EOF")
    return text[:1000]
