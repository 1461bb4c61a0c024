"""Fingerprints of deleted code: everything by which it could be recognised somewhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchedFile, PatchSet

from taskgen.errors import FormatError
from taskgen.leaks import code, tokens
from taskgen.leaks.code import CodeUnit

#: Lines shorter than this are everywhere and prove nothing.
MIN_LINE_BYTES = 12
MIN_STRING_CHARS = 8
MIN_DOC_LINE_CHARS = 16
MIN_NUMBER_CHARS = 4
#: A unit counts as deleted when the patch adds this share of its body's lines.
_DELETED_SHARE = 0.6
_COMMON_STARTS = (b"#", b"//", b"*", b"import ", b"from ", b"return self", b"raise Not", b"@", b"package ", b"use ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """One deleted definition (or, with an empty name, the other lines that went from a file).

    Attributes:
        path: the file it was deleted from.
        header: its header on one line; empty if the workspace still has it.
        lines: telling lines of the body, blanks squeezed, without indentation, in order.
        body: the whole body so squeezed; definition: the same with its header and docstring.
        doc_lines: telling lines of the docstring.
        strings, numbers: constants that are rare enough to tell.
        used: names that the body calls or takes from behind a dot; compiling keeps them.
        grams: winnowed token hashes of the body.
        n_body_lines: lines of the body that are not blank.
    """

    path: str
    qualified_name: str
    parameters: tuple[str, ...] | None
    header: str
    lines: tuple[bytes, ...]
    body: bytes
    definition: bytes
    doc_lines: tuple[bytes, ...]
    strings: tuple[str, ...]
    numbers: tuple[str, ...]
    used: frozenset[str]
    grams: frozenset[int]
    n_body_lines: int

    @property
    def name(self) -> str:
        return self.qualified_name.rpartition(".")[2]

    @property
    def label(self) -> str:
        return self.qualified_name or f"lines of {self.path}"


def squeeze(line: bytes) -> bytes:
    """A line without indentation, with single blanks."""
    return b" ".join(line.split())


def telling(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The squeezed lines that are long and particular enough to prove something."""
    for line in lines:
        text = squeeze(line)
        if len(text) >= MIN_LINE_BYTES and not text.startswith(_COMMON_STARTS):
            yield text


def from_patch(patch: str, solved: Callable[[str], bytes | None]) -> list[Fingerprint]:
    """Fingerprints of what a gold patch (workspace -> solved) adds.

    Args:
        patch: unified diff.
        solved: the content of a file with the patch applied, by path; None if it is not known (then the patch's own
            lines and their context are all there is).

    Raises:
        FormatError: the patch cannot be read.
    """
    try:
        files = PatchSet(patch)
    except UnidiffParseError as error:
        raise FormatError(f"the patch cannot be read: {error}", hint="give a unified diff (git diff)") from error
    found: list[Fingerprint] = []
    for file in files:
        if file.is_removed_file or file.is_binary_file:
            continue
        added = {line.target_line_no for hunk in file for line in hunk if line.is_added}
        source = solved(file.path)
        if source is None:
            source, added = _new_side(file)
        if added:
            found += of_file(file.path, source, {number for number in added if number is not None})
    return found


def _new_side(file: PatchedFile) -> tuple[bytes, set[int | None]]:
    """The new side of the hunks, one behind the other, and the numbers of the added lines in it."""
    text: list[str] = []
    added: set[int | None] = set()
    for hunk in file:
        for line in hunk:
            if line.is_added or line.is_context:
                text.append(line.value)
                if line.is_added:
                    added.add(len(text))
    return "".join(text).encode("utf-8", "surrogateescape"), added


def of_file(path: str, source: bytes, added: Set[int]) -> list[Fingerprint]:
    """Fingerprints of the units of a file whose bodies are among the lines ``added`` (from 1), and of the rest."""
    lines = source.split(b"\n")
    language = code.language_of(path)
    gone = [u for u in code.units(source, language) if _is_deleted(u, lines, added)] if language else []
    found = [_of_unit(path, unit, lines, added) for unit in gone]
    inside = {number for unit in gone for number in range(unit.first_line, unit.last_line + 1)}
    rest = sorted(added - inside)
    if loose := _of_lines(path, [lines[number - 1] for number in rest if number <= len(lines)]):
        found.append(loose)
    return found


def _is_deleted(unit: CodeUnit, lines: Sequence[bytes], added: Set[int]) -> bool:
    body = [n for n in range(unit.body_line, unit.last_line + 1) if lines[n - 1].strip()]
    return bool(body) and sum(number in added for number in body) >= _DELETED_SHARE * len(body)


def _of_unit(path: str, unit: CodeUnit, lines: Sequence[bytes], added: Set[int]) -> Fingerprint:
    # What is inside a class is listed itself: the class as such is its name.
    body = [] if unit.is_container else [line for line in lines[unit.body_line - 1 : unit.last_line] if line.strip()]
    text = b"\n".join(body)
    strings = () if unit.is_container else tuple(s for s in unit.strings if s not in unit.docstring)
    return Fingerprint(
        path=path,
        qualified_name=unit.qualified_name,
        parameters=unit.parameters,
        header=unit.header if unit.first_line in added or unit.body_line - 1 in added else "",
        lines=tuple(dict.fromkeys(telling(body))),
        body=_squeezed(body),
        definition=b"" if unit.is_container else _squeezed(lines[unit.name_line - 1 : unit.last_line]),
        doc_lines=_doc_lines(unit.docstring),
        strings=tuple(s for s in strings if len(s) >= MIN_STRING_CHARS),
        numbers=() if unit.is_container else tuple(n for n in unit.numbers if len(n) >= MIN_NUMBER_CHARS),
        used=frozenset(w.decode("utf-8", "replace") for w in tokens.kept_words(text)),
        grams=tokens.winnow(code.without_types(text, code.language_of(path) or "")),
        n_body_lines=len(body),
    )


def _squeezed(lines: Iterable[bytes]) -> bytes:
    return b"\n".join(filter(None, map(squeeze, lines)))


def _doc_lines(text: str) -> tuple[bytes, ...]:
    squeezed = (" ".join(line.split()) for line in text.splitlines())
    return tuple(dict.fromkeys(line.encode() for line in squeezed if len(line) >= MIN_DOC_LINE_CHARS))


def _of_lines(path: str, lines: Sequence[bytes]) -> Fingerprint | None:
    particular = tuple(dict.fromkeys(telling(lines)))
    if not particular:
        return None
    return Fingerprint(
        path=path, qualified_name="", parameters=None, header="", lines=particular,
        body=_squeezed(lines), definition=b"", doc_lines=(), strings=(), numbers=(),
        used=frozenset(), grams=frozenset(), n_body_lines=len([line for line in lines if line.strip()]),
    )  # fmt: skip
