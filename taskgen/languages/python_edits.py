"""Cutting pieces out of one Python file so that what is left is still a file somebody would write."""

from __future__ import annotations

from bisect import bisect_right

from tree_sitter import Node

from taskgen import syntax
from taskgen.languages.python_syntax import Block, ImportedName, PythonFile
from taskgen.syntax import Edit
from taskgen.types import Definition

BODY = "raise NotImplementedError"


class Spans:
    """Disjoint spans of bytes in order; spans that touch become one."""

    def __init__(self) -> None:
        self.all: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        """Add [start, end)."""
        first = bisect_right(self.all, (start, start)) - 1
        if first < 0 or self.all[first][1] < start:
            first += 1
        last = first
        while last < len(self.all) and self.all[last][0] <= end:
            start, end = min(start, self.all[last][0]), max(end, self.all[last][1])
            last += 1
        self.all[first:last] = [(start, end)]

    def around(self, start: int, end: int) -> tuple[int, int] | None:
        """The span that [start, end) lies in."""
        at = bisect_right(self.all, start, key=lambda span: span[0]) - 1
        return self.all[at] if at >= 0 and end <= self.all[at][1] else None


class FileEdits:
    """The cuts of one file so far; ``result`` makes them."""

    def __init__(self, file: PythonFile) -> None:
        self.file = file
        self.gone = False
        self._spans = Spans()
        self._edits: list[Edit] = []
        self._tuples: list[Node] = []

    def copy(self) -> FileEdits:
        other = FileEdits(self.file)
        other.gone, other._spans.all = self.gone, list(self._spans.all)
        other._edits, other._tuples = list(self._edits), list(self._tuples)
        return other

    # -- asking ----------------------------------------------------------------------------------

    def is_removed(self, node: Node) -> bool:
        """Whether a node lies in what was removed so far."""
        return self.covers(node.start_byte, node.end_byte)

    def covers(self, start: int, end: int) -> bool:
        """Whether all bytes of [start, end) were removed so far."""
        return self._spans.around(start, end) is not None

    def removed_lines(self) -> frozenset[int]:
        """Numbers of the pristine lines (blank ones left out) that lost something."""
        lines = set()
        for start, end in self._spans.all:
            first = self.file.source.count(b"\n", 0, start) + 1
            for offset, text in enumerate(self.file.source[start:end].split(b"\n")):
                if text.strip():
                    lines.add(first + offset)
        return frozenset(lines)

    def result(self) -> bytes | None:
        """The file with all cuts made; None if the file goes."""
        if self.gone:
            return None
        return syntax.apply_edits(self.file.source, [*self._edits, *self._fillers(), *self._commas()])

    # -- cutting ---------------------------------------------------------------------------------

    def cut(self, start: int, end: int, text: bytes = b"") -> None:
        self._spans.add(start, end)
        self._edits.append(Edit(start=start, end=end, text=text))

    def remove_everything(self) -> None:
        self.gone = True
        self.cut(0, len(self.file.source))

    def remove_definition(self, node: Node) -> None:
        """Whole lines of a definition, with the comments right above it and the blank lines that separated it."""
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
        self.cut(*self._with_blank_lines(start, end, node.start_point[1]))

    def _with_blank_lines(self, start: int, end: int, column: int) -> tuple[int, int]:
        """Add blank lines around whole lines [start, end), so that the wider of the two gaps is left; at the end of
        the file none. ``column`` is that of the definition."""
        source = self.file.source
        stops = [end]
        while stops[-1] < len(source):
            newline = source.find(b"\n", stops[-1])
            stop = len(source) if newline < 0 else newline + 1
            if source[stops[-1] : stop].strip():
                break
            stops.append(stop)
        before = len(source[:start].rstrip())
        if stops[-1] == len(source):
            return (source.find(b"\n", before, start) + 1 if before else 0), stops[-1]
        above = source.count(b"\n", before, start) - 1
        following = source[stops[-1] : stops[-1] + column + 1]
        ends_block = len(following) - len(following.lstrip(b" \t")) < column
        if above <= 0 and not ends_block:
            return start, stops[-1]
        return start, stops[min(max(above, 0), len(stops) - 1)]

    def remove_body(self, definition: Definition, *, keep_docstring: bool) -> None:
        """Replace a function's body by ``raise NotImplementedError``."""
        node = self.file.nodes[definition.qualified_name]
        inner = node.child_by_field_name("definition") or node
        body = inner.child_by_field_name("body")
        assert body is not None
        colon = [c for c in inner.children if c.type == ":"][-1]
        newline = b"\r\n" if b"\r\n" in self.file.source else b"\n"
        start = colon.end_byte
        if colon.next_sibling is not None and colon.next_sibling.type == "comment":
            comment = colon.next_sibling
            start = comment.end_byte if comment.start_point[0] == colon.end_point[0] else start
        indent = self._indent(body.start_byte)
        if indent is None:
            indent = (self._indent(inner.start_byte) or b"") + b"    "
        text = newline + indent
        if keep_docstring and definition.docstring and self._indent(body.start_byte) is not None:
            start = definition.after_doc_byte
        elif keep_docstring and definition.docstring:
            text += self.file.source[definition.body_byte : definition.after_doc_byte] + newline + indent
        self.cut(start, self._end_with_comments(inner), text + BODY.encode())

    def remove_statement(self, statement: Node) -> None:
        """A statement with its semicolon and the comment behind it; its lines, if it has them alone."""
        start, end = statement.start_byte, statement.end_byte
        before, behind = statement.prev_sibling, statement.next_sibling
        if behind is not None and behind.type == ";":
            end = behind.end_byte
        elif before is not None and before.type == ";":
            start = before.start_byte
        self.cut(*self._lines(start, end))

    def remove_element(self, element: Node) -> None:
        """An element of a comma-separated list, with its comma, and its lines if it has them alone."""
        source, end = self.file.source, element.end_byte
        following = element.next_sibling
        if following is not None and following.type == ",":
            end = following.end_byte
        start, stop = self._lines(element.start_byte, end)
        while stop == end and source[end : end + 1] in (b" ", b"\t"):
            end = stop = end + 1
        before = element.prev_sibling
        if start == element.start_byte and following is not None and following.type in (")", "]", "}"):
            # The last one on a line that stays: the comma before it goes in place of its own.
            start = before.start_byte if before is not None and before.type == "," else start
        self.cut(start, stop)
        if element.parent is not None and element.parent.type == "tuple":
            self._tuples.append(element.parent)

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
        comma = left[-1].next_sibling
        if statement.children[-1].type == ")" or left[-1].start_byte > imported.part.start_byte:
            self.remove_element(imported.part)
        elif comma is not None:
            # `import a, b` without b must not end in a comma.
            self.cut(comma.start_byte, imported.part.end_byte)

    # -- spans and fillers -----------------------------------------------------------------------

    def _indent(self, start: int) -> bytes | None:
        """The blanks before ``start`` on its line; None if something else stands there."""
        line = self.file.source.rfind(b"\n", 0, start) + 1
        before = self.file.source[line:start]
        return None if before.strip() else before

    def _lines(self, start: int, end: int) -> tuple[int, int]:
        """A span widened to its lines and the comment behind it, if nothing else stands on them."""
        newline = self.file.source.find(b"\n", end)
        stop = len(self.file.source) if newline < 0 else newline
        if self._indent(start) is not None and self.file.source[end:stop].strip().startswith(b"#"):
            end = stop
        return syntax.line_span(self.file.source, start, end)

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
        return [self._filler(block) for block in self.file.blocks if self._is_hollow(block)]

    def _is_hollow(self, block: Block) -> bool:
        if not block.statements or not all(self.covers(*statement) for statement in block.statements):
            return False
        replaced = any(e.text and e.start <= block.start and block.end <= e.end for e in self._edits)
        return not replaced and not self.covers(block.header, block.header + 1)

    def _filler(self, block: Block) -> Edit:
        last, source = block.statements[-1][0], self.file.source
        span = self._spans.around(last, last)
        at = span[1] if span is not None else block.end
        indent = self._indent(block.start)
        if indent is None or (at and source[at - 1 : at] != b"\n"):
            return Edit(start=at, end=at, text=b"pass")
        return Edit(start=at, end=at, text=indent + (b"pass\r\n" if b"\r\n" in source else b"pass\n"))

    def _commas(self) -> list[Edit]:
        """The comma that makes a tuple of the only element left in brackets."""
        edits = set()
        for node in self._tuples:
            left = [c for c in node.named_children if c.type != "comment" and not self.is_removed(c)]
            comma = left[0].next_sibling if len(left) == 1 else None
            if comma is not None and (comma.type != "," or self.is_removed(comma)):
                edits.add(Edit(start=left[0].end_byte, end=left[0].end_byte, text=b","))
        return sorted(edits, key=lambda e: e.start)
