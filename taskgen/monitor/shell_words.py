"""Words of shell: what quotes, variables and substitutions make of them, as far as that is known."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from taskgen.monitor.heredocs import Heredoc
from taskgen.monitor.machine import MAX_TEXT, UNKNOWN, Machine

PARSER = Parser(Language(tree_sitter_bash.language()))
#: Nesting of the syntax tree that is followed; Python's own stack bounds it.
MAX_NESTING = 60
#: Stands for UNKNOWN in text that is parsed.
_OPEN_BOX = "\u2423"
_ANSI = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|([0-7]{1,3})|(.))", re.DOTALL)
_ANSI_NAMES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}


class Follow(Protocol):
    """Follow the commands of a substitution in a shell of their own; returns what they print, None if unknown."""

    def __call__(self, frame: Frame, node: Node, depth: int) -> str | None: ...


@dataclass(slots=True)
class Frame:
    """What one text of shell knows."""

    machine: Machine
    source: bytes
    documents: dict[str, Heredoc]
    follow: Follow
    functions: dict[str, Node] = field(default_factory=dict)
    calls: int = 0


def source_of(text: str) -> bytes:
    """Text as it is parsed."""
    return text.replace(UNKNOWN, _OPEN_BOX).encode("utf-8", "replace")


def text_of(frame: Frame, node: Node) -> str:
    return frame.source[node.start_byte : node.end_byte].decode("utf-8", "replace").replace(_OPEN_BOX, UNKNOWN)


def words_of(frame: Frame, node: Node, depth: int) -> list[str]:
    """The words that a node becomes: an unquoted expansion may be several."""
    if node.type == "array":
        return [word for child in node.named_children for word in words_of(frame, child, depth)]
    value = word_of(frame, node, depth)
    if node.type in ("simple_expansion", "command_substitution", "expansion"):
        return value.split() or [UNKNOWN]
    return [value]


def word_of(frame: Frame, node: Node, depth: int) -> str:
    if depth > MAX_NESTING:
        return UNKNOWN
    handler = _WORDS.get(node.type)
    if handler is not None:
        return handler(frame, node, depth + 1)[:MAX_TEXT]
    if not node.named_children:
        return text_of(frame, node)
    return UNKNOWN


def _plain(frame: Frame, node: Node, depth: int) -> str:
    text = text_of(frame, node)
    if node.named_children and node.type == "word":
        return _concatenation(frame, node, depth)
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL) if "\\" in text else text


def _string(frame: Frame, node: Node, depth: int) -> str:
    """A double-quoted string: its gaps between parts are text, too."""
    parts: list[str] = []
    at, end = node.start_byte + 1, node.end_byte - 1
    for child in node.named_children:
        parts.append(_unescaped(frame, at, child.start_byte))
        text = _unescaped(frame, child.start_byte, child.end_byte)
        if child.type != "string_content":  # white space before an expansion is in its node
            text = text[: len(text) - len(text.lstrip())] + word_of(frame, child, depth)
        parts.append(text)
        at = child.end_byte
    parts.append(_unescaped(frame, at, end))
    return "".join(parts)


def _unescaped(frame: Frame, start: int, end: int) -> str:
    text = frame.source[start:end].decode("utf-8", "replace").replace(_OPEN_BOX, UNKNOWN)
    return re.sub(r"\\([$`\"\\\n])", lambda m: "" if m[1] == "\n" else m[1], text)


def _raw(frame: Frame, node: Node, depth: int) -> str:
    return text_of(frame, node)[1:-1]


def _ansi(frame: Frame, node: Node, depth: int) -> str:
    def character(match: re.Match[str]) -> str:
        if match[1] or match[2]:
            return chr(int(match[1] or match[2], 16))
        return chr(int(match[3], 8) & 0xFF) if match[3] else _ANSI_NAMES.get(match[4], match[4])

    return _ANSI.sub(character, text_of(frame, node)[2:-1])


def _concatenation(frame: Frame, node: Node, depth: int) -> str:
    return "".join(word_of(frame, child, depth) for child in node.named_children)


def _simple(frame: Frame, node: Node, depth: int) -> str:
    return _variable(frame, text_of(frame, node).lstrip()[1:], depth)


def _variable(frame: Frame, name: str, depth: int) -> str:
    if name == "HOME":
        return frame.machine.variables.get(name, "~")
    if name == "PWD":
        return frame.machine.cwd or "."
    return frame.machine.variables.get(name, UNKNOWN)


def document_of(frame: Frame, document: Heredoc, depth: int) -> str:
    if not document.expands or not re.search(r"[$`\\]", document.text):
        return document.text.removesuffix("\n")
    quoted = '"' + document.text.removesuffix("\n").replace('"', '\\"') + '"'
    source = source_of(f"x {quoted}")
    inner = Frame(frame.machine, source, {}, frame.follow, frame.functions)
    command = next(iter(PARSER.parse(source).root_node.named_children), None)
    if command is None or command.type != "command" or len(command.named_children) != 2:
        return document.text
    return word_of(inner, command.named_children[1], depth)


def _expansion(frame: Frame, node: Node, depth: int) -> str:
    """``${x}``, ``${x:-default}``; what else is done to a value is not followed."""
    names = [child for child in node.named_children if child.type in ("variable_name", "subscript")]
    if not names:
        return UNKNOWN
    name = text_of(frame, names[0]).partition("[")[0]
    value = _variable(frame, name, depth)
    operator = next((text_of(frame, c) for c in node.children if not c.is_named and c.type not in ("${", "}")), "")
    rest = [child for child in node.named_children if child not in names]
    if operator in (":-", "-", ":=", "=") and rest:
        return value if value not in (UNKNOWN, "") else word_of(frame, rest[0], depth)
    return value if not operator or (operator.startswith(("%", "#", "[")) and not rest) else UNKNOWN


def _substitution(frame: Frame, node: Node, depth: int) -> str:
    machine = frame.machine
    outer = machine.command, machine.hidden_output
    machine.hidden_output = True
    printed = frame.follow(frame, node, depth)
    machine.command, machine.hidden_output = outer
    return UNKNOWN if printed is None else printed.rstrip("\n")


def _process(frame: Frame, node: Node, depth: int) -> str:
    """``<(command)``: a file whose text is what the command prints."""
    printed = frame.follow(frame, node, depth)
    path = f"/dev/fd/{node.start_byte}"
    frame.machine.created.add(path)
    if printed is not None:
        frame.machine.files[path] = printed
    return path


_Word = Callable[[Frame, Node, int], str]
_WORDS: dict[str, _Word] = {
    "word": _plain,
    "command_name": _concatenation,
    "string": _string,
    "translated_string": _concatenation,
    "raw_string": _raw,
    "ansi_c_string": _ansi,
    "concatenation": _concatenation,
    "simple_expansion": _simple,
    "expansion": _expansion,
    "command_substitution": _substitution,
    "process_substitution": _process,
    "array": lambda frame, node, depth: " ".join(words_of(frame, node, depth)),
}
