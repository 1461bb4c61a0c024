"""Cutting pieces out of one Python file so that what is left is still a file somebody would write."""

from __future__ import annotations

from tree_sitter import Node

from taskgen import syntax
from taskgen.languages.python_syntax import ImportedName, PythonFile
from taskgen.syntax import Edit
from taskgen.types import Definition

BODY = "raise NotImplementedError"


class FileEdits:
    """The cuts of one file so far; ``result`` makes them."""

    def __init__(self, file: PythonFile) -> None:
        self.file = file
        self.gone = False
        self._spans: list[tuple[int, int]] = []
        self._edits: list[Edit] = []

    def copy(self) -> FileEdits:
        other = FileEdits(self.file)
        other.gone, other._spans, other._edits = self.gone, list(self._spans), list(self._edits)
        return other

    # -- asking ----------------------------------------------------------------------------------

    def is_removed(self, node: Node) -> bool:
        """Whether a node lies in what was removed so far."""
        return self.covers(node.start_byte, node.end_byte)

    def covers(self, start: int, end: int) -> bool:
        """Whether the bytes [start, end) lie in one removed span."""
        return any(first <= start and end <= last for first, last in self._spans)

    def removed_lines(self) -> frozenset[int]:
        """Numbers of the pristine lines (blank ones left out) that lost something."""
        lines = set()
        for start, end in self._spans:
            first = self.file.source.count(b"\n", 0, start) + 1
            for offset, text in enumerate(self.file.source[start:end].split(b"\n")):
                if text.strip():
                    lines.add(first + offset)
        return frozenset(lines)

    def result(self) -> bytes | None:
        """The file with all cuts made; None if the file goes."""
        return None if self.gone else syntax.apply_edits(self.file.source, [*self._edits, *self._fillers()])

    # -- cutting ---------------------------------------------------------------------------------

    def cut(self, start: int, end: int, text: bytes = b"") -> None:
        self._spans.append((start, end))
        self._edits.append(Edit(start=start, end=end, text=text))

    def remove_everything(self) -> None:
        self.gone = True
        self.cut(0, len(self.file.source))

    def remove_definition(self, node: Node) -> None:
        """Whole lines of a definition, with the comments right above it and the blank lines below."""
        inner = node.child_by_field_name("definition") or node
        source = self.file.source
        start, end = syntax.line_span(source, node.start_byte, self._end_with_comments(inner))
        while start > 0:
            previous = source.rfind(b"\n", 0, start - 1) + 1
            line = source[previous:start]
            indent = len(line) - len(line.lstrip())
            if not line.strip().startswith(b"#") or indent != node.start_point[1] or line.startswith(b"#!"):
                break
            start = previous
        while end < len(source):
            newline = source.find(b"\n", end)
            stop = len(source) if newline < 0 else newline + 1
            if source[end:stop].strip():
                break
            end = stop
        self.cut(start, end)

    def remove_body(self, definition: Definition, *, keep_docstring: bool) -> None:
        """Replace a function's body by ``raise NotImplementedError``."""
        node = self.file.nodes[definition.qualified_name]
        inner = node.child_by_field_name("definition") or node
        body = inner.child_by_field_name("body")
        assert body is not None
        colon = [c for c in inner.children if c.type == ":"][-1]
        newline = b"\r\n" if b"\r\n" in self.file.source else b"\n"
        own_line = body.start_point[0] > colon.end_point[0]
        indent = b" " * (inner.start_point[1] + 4)
        if own_line:
            line = self.file.source.rfind(b"\n", 0, body.start_byte) + 1
            indent = self.file.source[line : body.start_byte]
        text = newline + indent
        if keep_docstring and definition.docstring:
            text += self.file.source[definition.body_byte : definition.after_doc_byte] + newline + indent
        self.cut(colon.end_byte, self._end_with_comments(inner), text + BODY.encode())

    def remove_statement(self, statement: Node) -> None:
        self.cut(*syntax.line_span(self.file.source, statement.start_byte, statement.end_byte))

    def remove_element(self, element: Node) -> None:
        """An element of a comma-separated list, with its comma, and its lines if it has them alone."""
        source, end = self.file.source, element.end_byte
        following = element.next_sibling
        if following is not None and following.type == ",":
            end = following.end_byte
        start, stop = syntax.line_span(source, element.start_byte, end)
        while stop == end and source[end : end + 1] in (b" ", b"\t"):
            end = stop = end + 1
        self.cut(start, stop)

    def remove_import(self, imported: ImportedName) -> None:
        """One name of an import statement; the statement, if no name is left."""
        statement = imported.statement
        left = [
            part
            for part in statement.children_by_field_name("name")
            if part != imported.part and not self.is_removed(part)
        ]
        if not left:
            self.remove_statement(statement)
            return
        self.remove_element(imported.part)
        if statement.children[-1].type != ")" and all(p.start_byte < imported.part.start_byte for p in left):
            # `import a, b` without b must not end in a comma.
            comma = left[-1].next_sibling
            if comma is not None and comma.type == ",":
                self.cut(comma.start_byte, imported.part.end_byte)

    def _end_with_comments(self, node: Node) -> int:
        """The end of a definition, with comment lines that are indented deeper than it."""
        source, end, column = self.file.source, int(node.end_byte), int(node.start_point[1])
        position = source.find(b"\n", end)
        while 0 <= position < len(source) - 1:
            stop = source.find(b"\n", position + 1)
            line = source[position + 1 : stop if stop >= 0 else len(source)].rstrip(b"\r")
            text = line.strip()
            if text and not (text.startswith(b"#") and len(line) - len(line.lstrip()) > column):
                break
            if text:
                end = position + 1 + len(line)
            if stop < 0:
                break
            position = stop
        return end

    def _fillers(self) -> list[Edit]:
        """A ``pass`` for each block that lost all its statements and still stands."""
        edits = []
        for node in syntax.walk(self.file.parsed.root):
            if node.type != "block" or node.parent is None or self.is_removed(node.parent):
                continue
            if any(e.text and e.start <= node.start_byte and node.end_byte <= e.end for e in self._edits):
                continue  # a body that was replaced, not emptied
            statements = [c for c in node.named_children if c.type != "comment"]
            if statements and all(self.is_removed(s) for s in statements):
                last = statements[-1].start_byte
                at = max(end for start, end in self._spans if start <= last < end)
                edits.append(Edit(start=at, end=at, text=b" " * node.start_point[1] + b"pass\n"))
        return edits
