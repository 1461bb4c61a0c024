"""Attempts of one turn: the policy is shown what stands before a deleted body, and writes the body.

Of the gold patch, only the place is used: which file, and which line the body takes. What a policy writes becomes a
patch against the workspace, and is graded like any other.
"""

from __future__ import annotations

import re
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unidiff.patch import PatchSet

from taskgen import patches, safepath
from taskgen.grading.task import Task
from taskgen.languages.python_syntax import parse_python
from taskgen.policies.policy import Completion, Form, Prompt, Sampling
from taskgen.types import Deletion, Turn

STUB = "raise NotImplementedError"
#: Characters of the definition's own head (decorators, signature, docstring) that a policy sees, at most.
HEAD_CHARS = 6000
#: Of the context, at most, for the beginning of a method's class.
FRONT_SHARE = 0.7
_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_SYSTEM = """\
You write Python. You are given a function or method whose body has been removed. Answer with one fenced Python code \
block that holds this one definition, with its signature and the whole new body, and nothing else. Imports that the \
body needs beyond those of the file go inside of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a body was deleted.

    Attributes:
        name: of the function or method, without its class.
        line: index (from 0) of the stub's line in the file.
        indent: white space before the body's lines.
        newline: how lines of the file end.
    """

    path: str
    name: str
    lines: tuple[str, ...]
    line: int
    indent: str
    newline: str


@dataclass(frozen=True, slots=True)
class CannotFill:
    """Why a task cannot be attempted by writing one body."""

    reason: str


def site_of(task: Task) -> Site | CannotFill:
    """The place of the only deleted body of a task, or why there is no such place."""
    deleted = task.row["deleted"]
    if len(deleted) != 1:
        return CannotFill(f"{len(deleted)} definitions were deleted; one body is not enough")
    if deleted[0]["kind"] not in ("function", "method"):
        return CannotFill(f"a {deleted[0]['kind']} was deleted, not the body of a function")
    hunks = [(file.path, hunk) for file in PatchSet(task.row["patch"]) for hunk in file]
    if len(hunks) != 1:
        return CannotFill("the deletion took other lines, too (imports, exports); a body does not bring them back")
    path, hunk = hunks[0]
    removed = [line for line in hunk if line.is_removed]
    number = removed[0].source_line_no if len(removed) == 1 and removed[0].value.strip() == STUB else None
    if number is None or path not in task.workspace:
        return CannotFill("the definition is gone with its signature; only a body can be written")
    try:
        text = task.workspace[path].content.decode("utf-8")
    except UnicodeDecodeError:
        return CannotFill(f"{path} is not UTF-8")
    return _site(path, str(deleted[0]["qualified_name"]).rpartition(".")[2], text.split("\n"), number - 1)


def _site(path: str, name: str, lines: Sequence[str], at: int) -> Site:
    stub = lines[at]
    return Site(
        path=path,
        name=name,
        lines=tuple(lines),
        line=at,
        indent=stub[: len(stub) - len(stub.lstrip())],
        newline="\r\n" if stub.endswith("\r") else "\n",
    )


def site_of_deletion(deletion: Deletion, pristine: bytes) -> tuple[Site, str] | CannotFill:
    """The place of the only deleted body of what may become a task, and the body that stood there.

    Args:
        pristine: the file that it was deleted from.
    """
    (path, content), *others = deletion.files.items()
    if others or content is None or len(deletion.deleted) != 1:
        return CannotFill("more than one body goes")
    try:
        before, after = pristine.decode("utf-8").split("\n"), content.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return CannotFill(f"{path} is not UTF-8")
    at = next((i for i, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(after))
    n_behind = len(after) - at - 1
    definition = deletion.deleted[0].definition
    if at >= len(after) or after[at].strip() != STUB or before[len(before) - n_behind :] != after[at + 1 :]:
        return CannotFill("other lines go, too")
    body = before[definition.body_line - 1 : len(before) - n_behind]
    return _site(path, definition.name, after, at), "\n".join(line.removesuffix("\r") for line in body)


def gold_body(task: Task) -> str:
    """The lines of the gold body, for policies whose results are known beforehand. The task must have a site."""
    return "".join(
        line.value for file in PatchSet(task.row["patch"]) for hunk in file for line in hunk if line.is_added
    )


def prompt_of(task: Task, folder: Path, site: Site, context_chars: int = Sampling().context_chars) -> Prompt:
    """What a policy is asked: the file up to the body, and the same as a conversation.

    Args:
        context_chars: of the file before the definition, at most; whole lines. 0: the definition alone. Of a method
            whose class begins further above, the class's first line and its ``__init__`` come first: they name what
            the method works with.
    """
    text = text_before(site, context_chars)
    asked = (
        f"{task.row['problem_statement'].strip()}\n\nThe end of what stands before it in `{site.path}`, and the "
        f"definition that is to be completed:\n\n```python\n{text}\n{site.indent}...\n```\n"
    )
    return Prompt(
        instance_id=str(task.row["instance_id"]),
        folder=folder,
        text=text,
        indent=site.indent,
        messages=(Turn(role="system", text=_SYSTEM), Turn(role="user", text=asked)),
    )


def text_before(site: Site, context_chars: int) -> str:
    """A file up to the deleted body, as prompts hold it."""
    before = [line.removesuffix("\r") for line in site.lines[: site.line]]
    start, parts = _around(before, site)
    head = _tail("\n".join(before[start:]), HEAD_CHARS)
    context = _context(before[:start], parts, context_chars)
    return f"{context}\n{head}" if context else head


def _around(before: list[str], site: Site) -> tuple[int, list[range]]:
    """The line on which the definition begins, decorators included; the lines of its class's header and ``__init__``,
    of those that stand before it."""
    parsed = parse_python(site.path, "", "\n".join([*before, site.indent + STUB, ""]).encode())
    mine = [d for d in parsed.definitions if d.start_line - 1 <= site.line <= d.end_line - 1 and d.kind != "class"]
    if not mine:
        return max(0, len(before) - 1), []
    start, owner = mine[-1].start_line - 1, mine[-1].owner
    source = parsed.source
    parts = []
    for found in (d for d in parsed.definitions if owner):
        if found.qualified_name == owner:
            parts = [range(found.start_line - 1, source.count(b"\n", 0, found.body_byte))]
        elif found.qualified_name == f"{owner}.__init__" and found.end_line <= start:
            parts = [*parts[:1], range(found.start_line - 1, found.end_line)]  # the last one: others are overloads
    return start, parts


def _context(lines: list[str], parts: list[range], limit: int) -> str:
    """The last lines before a definition; where its class begins above them, the parts of it that fit go in front."""
    tail = _tail("\n".join(lines), limit)
    first = len(lines) - (tail.count("\n") + 1 if tail else 0)
    if not parts or parts[0].start >= first:
        return tail
    front: list[str] = []
    end = 0
    for part in parts:
        longer = [*front, *lines[part.start : part.stop]]
        if len("\n".join(longer)) <= FRONT_SHARE * limit:
            front, end = longer, part.stop
    if not front:
        return tail
    rest = _tail("\n".join(lines[end:]), limit - len("\n".join(front)) - 2)
    return "\n".join([*front, "", *([rest.lstrip("\n")] if rest.strip() else [])])


def _tail(text: str, limit: int) -> str:
    """The last whole lines of a text that fit into ``limit`` characters."""
    if len(text) <= limit:
        return text
    # The character before what fits tells whether its first line is whole.
    return text[len(text) - max(0, limit) - 1 :].partition("\n")[2]


# --- What was written -> a patch ------------------------------------------------------------------------


def patch_of(task: Task, site: Site, completion: Completion) -> bytes:
    """The patch against the workspace that a completion is; empty if it holds no body."""
    if completion.form is Form.CONTINUATION:
        body = body_of_continuation(completion.text, site.indent)
    else:
        body = body_of_answer(completion.text, site.name, site.indent)
    if not body.strip():
        return b""
    written = [line + "\r" * (site.newline == "\r\n") for line in body.rstrip().split("\n")]
    lines = [*site.lines[: site.line], *written, *site.lines[site.line + 1 :]]
    return _patch(task, site, "\n".join(lines).encode("utf-8", "replace"))


def _patch(task: Task, site: Site, content: bytes) -> bytes:
    entry = task.workspace[site.path]
    with tempfile.TemporaryDirectory(prefix="taskgen-fill-") as folder:
        for side, data in (("old", entry.content), ("new", content)):
            (Path(folder) / side).mkdir()
            safepath.write_file(Path(folder) / side, site.path, data, executable=entry.executable)
        return patches.patch_bytes(patches.diff_directories(Path(folder) / "old", Path(folder) / "new"))


def body_of_continuation(text: str, indent: str) -> str:
    """The body's lines of a text that goes on behind the line before it: up to the first line left of ``indent``.

    What stands on the prompt's own last line makes it another line: then there is no body.
    """
    first, *lines = text.split("\n")
    if first.strip():
        return ""
    body = []
    for line in lines:
        if line.strip() and not line.startswith(indent):
            break
        body.append(line.rstrip("\r"))
    return "\n".join(body).rstrip()


def body_of_answer(text: str, name: str, indent: str) -> str:
    """The body's lines of a message: of the definition ``name`` in its code, or its code if there is no definition."""
    blocks = [textwrap.dedent(block) for block in _FENCE.findall(text.replace("\r\n", "\n"))] or [text]
    for block in reversed(blocks):
        if (body := _body_in(block, name)) is not None:
            return textwrap.indent(textwrap.dedent(body), indent).rstrip()
    code = blocks[-1]
    return "" if re.search(r"^\s*(async\s+)?def\s", code, re.MULTILINE) else textwrap.indent(code, indent).rstrip()


def _body_in(code: str, name: str) -> str | None:
    """The lines behind the docstring of the last definition called ``name``; None if there is none."""
    # Parsed by tree-sitter: what a model wrote need not be Python.
    source = code.encode("utf-8", "replace")
    found = [d for d in parse_python("answer.py", "", source).definitions if d.name == name and d.kind != "class"]
    if not found:
        return None
    last = found[-1]
    lines = source.decode("utf-8", "replace").split("\n")[last.body_line - 1 : last.end_line]
    if last.body_line == source.count(b"\n", 0, last.start_byte) + 1:  # def f(): return 1
        return source[last.after_doc_byte if last.docstring else last.body_byte : last.end_byte].decode()
    return "\n".join(lines)
