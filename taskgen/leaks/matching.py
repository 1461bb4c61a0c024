"""What of the deleted definitions a text or a decoded symbol gives away."""

from __future__ import annotations

import builtins
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ahocorasick_rs import BytesAhoCorasick, Implementation

from taskgen.leaks import tokens
from taskgen.leaks.fingerprints import MIN_LINE_BYTES, Fingerprint
from taskgen.leaks.headers import defines
from taskgen.leaks.records import CodeForm, Level, Likeness, Symbol

#: A body counts as copied when this share of its telling lines (and at least MIN_LINES of them) is there.
MIN_SHARE = 0.7
MIN_LINES = 6
#: The same for a text that defines the very name.
MIN_LINES_NAMED, MIN_NAMED_BYTES = 2, 40
#: Shorter bodies are nobody's: ``pass``, ``...``
MIN_TWIN_BYTES = 10
#: A whole body of this many lines and bytes is no coincidence.
MIN_WHOLE_LINES, MIN_WHOLE_BYTES = 5, 120
#: Renamed and reformatted copies: share of the winnowed hashes, of at least this many, within a bounded stretch.
MIN_GRAM_SHARE, MIN_GRAMS = 0.5, 14
MIN_DOC_SHARE, LONG_DOC_LINE_BYTES = 0.6, 40
MIN_USED, MIN_USED_SHARE = 3, 0.75
#: So many names that a body uses, in one text, are a hint.
MIN_WORDS = 3
_NEEDLES_A_UNIT = 8
#: Names that every program may use.
_EVERYDAY = (
    frozenset(
        name
        for source in (builtins, str, bytes, bytearray, dict, list, set, frozenset, int, float, tuple, BaseException)
        for name in dir(source)
    )
    | sys.stdlib_module_names
)
_NEEDLE_BYTES = 40
#: An automaton with few states is worth its full table.
_DFA_PATTERNS = 2000
_EXCERPT_LINES, _EXCERPT_CHARS = 6, 600
_BLANKS = re.compile(rb"[ \t\r\f]+")
_INDENT = re.compile(rb"\n\s*")
_SPACE = re.compile(rb"\s+")
_WORD_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A deleted definition recognised somewhere.

    Attributes:
        fingerprint: index into the matcher's fingerprints.
        likeness: how a body was recognised; None below that level.
        share: how much of the body's lines or tokens is there, from 0 to 1.
        line: where the excerpt begins, from 1; 0 if lines mean nothing there.
        machine: the body is there too, as machine code.
    """

    fingerprint: int
    level: Level
    excerpt: str
    likeness: Likeness | None = None
    share: float = 0.0
    line: int = 0
    machine: bool = False


class _Text:
    """A text in the forms that it is compared in, each made once and only if it is needed."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def blanks(self) -> bytes:
        return _BLANKS.sub(b" ", self.data)

    @cached_property
    def squeezed(self) -> bytes:
        return _INDENT.sub(b"\n", self.blanks.replace(b" \n", b"\n"))

    @cached_property
    def words(self) -> bytes:
        return _SPACE.sub(b" ", self.data)

    @cached_property
    def grams(self) -> list[tuple[int, int]]:
        return tokens.grams(self.data)


class Matcher:
    """Recognises fingerprints. One automaton finds all of them, so the cost hardly grows with their number.

    Args:
        known: names and words that stand in the workspace anyway, and so give nothing away.
        sparing: look only where two needles of a definition stand, and not for names that many programs have. In a
            large tree one needle is everywhere; a body that is there has several.
    """

    def __init__(
        self,
        fingerprints: Sequence[Fingerprint],
        known: frozenset[str] = frozenset(),
        *,
        sparing: bool = False,
    ) -> None:
        self.fingerprints = tuple(fingerprints)
        self.known = known
        owners: dict[bytes, list[int]] = defaultdict(list)
        self._strong: set[bytes] = set()
        for index, fingerprint in enumerate(self.fingerprints):
            strong = set(_telling_needles(fingerprint, sparing=sparing))
            self._strong |= strong
            for needle in strong | set(_words(fingerprint)):
                owners[needle].append(index)
        self._sparing = sparing
        self._needles = sorted(owners)
        self._owners = [tuple(owners[needle]) for needle in self._needles]
        few = len(self._needles) <= _DFA_PATTERNS
        self._automaton = BytesAhoCorasick(
            self._needles, implementation=Implementation.DFA if few else Implementation.ContiguousNFA
        )
        self._names: dict[str, list[int]] = defaultdict(list)
        self._users: dict[str, list[int]] = defaultdict(list)
        for index, fingerprint in enumerate(self.fingerprints):
            if fingerprint.name:
                self._names[fingerprint.name].append(index)
            for word in fingerprint.used:
                self._users[word].append(index)

    def hits(self, data: bytes) -> dict[int, set[int]]:
        """Fingerprint -> its needles that stand in the bytes. Empty: there is nothing to look at.

        Words that a body uses count only together: MIN_WORDS of them.
        """
        if not self._needles:
            return {}
        found: dict[int, set[int]] = defaultdict(set)
        for needle in {index for index, _, _ in self._automaton.find_matches_as_indexes(data, overlapping=True)}:
            for owner in self._owners[needle]:
                found[owner].add(needle)
        return {owner: needles for owner, needles in found.items() if self._is_enough(needles)}

    def _is_enough(self, needles: set[int]) -> bool:
        if len(needles) >= MIN_WORDS:
            return True
        n_strong = sum(self._needles[n] in self._strong for n in needles)
        return n_strong >= (2 if self._sparing else 1)

    def match_text(self, data: bytes, *, thorough: bool = False) -> list[Match]:
        """What a text gives away. ``thorough``: look for renamed copies even where nothing else hints at them."""
        found = self.hits(data)
        text = _Text(data)
        matches = [m for index in sorted(found) if (m := self._in_text(index, text))]
        sure = {m.fingerprint for m in matches if m.level is Level.BODY}
        hinted = range(len(self.fingerprints)) if thorough else (i for i, n in found.items() if len(n) > MIN_WORDS)
        alike = [m for index in hinted if index not in sure and (m := self._alike(index, text))]
        better = {m.fingerprint for m in alike}
        return [m for m in matches if m.fingerprint not in better] + alike

    def _in_text(self, index: int, text: _Text) -> Match | None:
        wanted = self.fingerprints[index]
        name = wanted.name.encode()
        at = _find_word(text.data, name) if name else -1
        named = at >= 0
        header = defines(text.data, wanted, at) if named else None
        present = [line for line in wanted.lines if line in text.blanks]
        is_ours = header is not None and self._is_particular(wanted, text.data)
        if likeness := _likeness(wanted, text, len(present), is_ours=is_ours):
            share = 1.0 if likeness in (Likeness.WHOLE, Likeness.TWIN) else len(present) / max(1, len(wanted.lines))
            found = self._match(index, Level.BODY, text, present or [name])
            return replace(found, likeness=likeness, share=share)
        if is_ours and header is not None:
            return self._match(index, Level.SIGNATURE, text, [header])
        docs = [line for line in wanted.doc_lines if line in text.words]
        if docs and len(docs) >= MIN_DOC_SHARE * len(wanted.doc_lines) and sum(map(len, docs)) >= LONG_DOC_LINE_BYTES:
            return self._match(index, Level.DOCSTRING, text, docs)
        strings = [s.encode() for s in wanted.strings if s.encode() in text.data]
        if len(strings) >= (1 if named else 2) and not all(s.decode() in self.known for s in strings):
            return self._match(index, Level.CONSTANTS, text, strings)
        if named and self._is_rare(wanted.name):
            return self._match(index, Level.NAME, text, [name])
        return None

    def _is_rare(self, name: str) -> bool:
        """Whether a name is its own evidence: particular by its form, and defined nowhere else in the workspace."""
        return name not in self.known and _is_distinctive(name)

    def _is_particular(self, wanted: Fingerprint, data: bytes) -> bool:
        """Whether a header of this name can hardly be somebody else's: the name is particular, or what it belongs
        to (class, module) is named too."""
        if self._is_rare(wanted.name):
            return True
        owner = wanted.qualified_name.rpartition(".")[0].rpartition(".")[2]
        owner = owner or wanted.path.rpartition("/")[2].partition(".")[0]
        return len(wanted.parameters or ()) >= 2 and _is_distinctive(owner) and _find_word(data, owner.encode()) >= 0

    def _alike(self, index: int, text: _Text) -> Match | None:
        wanted = self.fingerprints[index]
        if len(wanted.grams) < MIN_GRAMS or len(text.data) > 4 << 20:
            return None
        places = [(offset, value) for value, offset in text.grams if value in wanted.grams]
        if len(places) < MIN_GRAM_SHARE * len(wanted.grams):
            return None
        start, count = _densest(places, 3 * max(len(wanted.body), 200))
        if count < MIN_GRAM_SHARE * len(wanted.grams):
            return None
        line = text.data.count(b"\n", 0, start) + 1
        return Match(
            fingerprint=index, level=Level.BODY, excerpt=_excerpt(text.data, line), line=line,
            likeness=Likeness.RENAMED, share=count / len(wanted.grams),
        )  # fmt: skip

    def _match(self, index: int, level: Level, text: _Text, shown: Sequence[bytes]) -> Match:
        at = min((p for s in shown if (p := text.data.find(s)) >= 0), default=-1)
        line = text.data.count(b"\n", 0, at) + 1 if at >= 0 else 0
        excerpt = _excerpt(text.data, line) if at >= 0 else b"\n".join(shown).decode("utf-8", "replace")
        return Match(fingerprint=index, level=level, excerpt=excerpt[:_EXCERPT_CHARS], line=line)

    # -- symbols ---------------------------------------------------------------------------------

    def match_symbol(self, symbol: Symbol) -> Iterator[Match]:
        """What a definition without source text gives away: of those it is called like, or uses the same names as."""
        candidates = set(self._names.get(symbol.name, ()))
        if symbol.code is CodeForm.BYTECODE:
            shared: dict[int, int] = defaultdict(int)
            for word in symbol.identifiers:
                for index in self._users.get(word, ()):
                    shared[index] += 1
            candidates |= {i for i, n in shared.items() if n >= 2 * MIN_USED}
        for index in sorted(candidates):
            if match := self._symbol(index, symbol):
                yield match

    def _symbol(self, index: int, symbol: Symbol) -> Match | None:
        wanted = self.fingerprints[index]
        named = wanted.name == symbol.name and _owners_agree(wanted, symbol)
        same_call = named and symbol.parameters is not None and _same(symbol.parameters, wanted.parameters)
        strings = [s for s in wanted.strings if s in symbol.constants]
        level: Level | None = None
        if symbol.code is CodeForm.BYTECODE and self._same_code(wanted, symbol, named=named, same_call=same_call):
            level = Level.BODY
        elif not named:
            return None
        elif (same_call and wanted.parameters) or (symbol.signature and symbol.parameters is None):
            level = Level.SIGNATURE if self._is_symbol_particular(wanted, symbol) else None
        elif symbol.docstring and all(line.decode() in " ".join(symbol.docstring.split()) for line in wanted.doc_lines):
            level = Level.DOCSTRING if wanted.doc_lines else None
        if level is None and strings:
            level = Level.CONSTANTS
        if level is None:
            level = Level.NAME if self._is_rare(wanted.name) else None
        if level is None:
            return None
        return Match(
            fingerprint=index, level=level, excerpt=_describe(symbol)[:_EXCERPT_CHARS],
            likeness=Likeness.COMPILED if level is Level.BODY else None, share=1.0,
            machine=symbol.code is CodeForm.MACHINE,
        )  # fmt: skip

    def _same_code(self, wanted: Fingerprint, symbol: Symbol, *, named: bool, same_call: bool) -> bool:
        there = symbol.identifiers | set(symbol.constants)
        shared = len(wanted.used & there)
        if named and same_call and len(wanted.used) < MIN_USED:
            return shared == len(wanted.used) and all(s in symbol.constants for s in wanted.strings)
        least = MIN_USED if named else 2 * MIN_USED
        share = MIN_USED_SHARE if named else 0.9
        if shared < max(least, share * len(wanted.used)):
            return False
        return named or any(s in symbol.constants for s in wanted.strings)

    def _is_symbol_particular(self, wanted: Fingerprint, symbol: Symbol) -> bool:
        if self._is_rare(wanted.name):
            return True
        owner = wanted.qualified_name.rpartition(".")[0] or wanted.path.rpartition("/")[2].partition(".")[0]
        return owner.rpartition(".")[2] in symbol.qualified_name.split(".")


def _likeness(wanted: Fingerprint, text: _Text, n_present: int, *, is_ours: bool) -> Likeness | None:
    """How the body of ``wanted`` is in the text, of whose telling lines ``n_present`` are there; None: it is not."""
    is_long = wanted.body.count(b"\n") >= MIN_WHOLE_LINES - 1 and len(wanted.body) >= MIN_WHOLE_BYTES
    if is_long and wanted.body in text.squeezed:
        return Likeness.WHOLE
    if wanted.definition and len(wanted.body) >= MIN_TWIN_BYTES and wanted.definition in text.squeezed:
        return Likeness.WHOLE if is_ours and len(wanted.body) >= MIN_NAMED_BYTES else Likeness.TWIN
    enough = MIN_SHARE * len(wanted.lines)
    named = is_ours and len(wanted.body) >= MIN_NAMED_BYTES
    if named and (wanted.body in text.squeezed or n_present >= max(MIN_LINES_NAMED, enough)):
        return Likeness.NAMED
    return Likeness.ALIKE if n_present >= max(MIN_LINES, enough) else None


def _telling_needles(fingerprint: Fingerprint, *, sparing: bool) -> Iterator[bytes]:
    """What proves something by itself: the longest lines and strings, and the name."""
    least = 2 * MIN_LINE_BYTES if sparing else 0
    lines = sorted(fingerprint.lines, key=len, reverse=True)[:_NEEDLES_A_UNIT]
    docs = sorted(fingerprint.doc_lines, key=len, reverse=True)[:3]
    strings = sorted(fingerprint.strings, key=len, reverse=True)[:6]
    for needle in (*lines, *docs, *(s.encode() for s in strings)):
        if len(needle) >= least:
            yield needle[:_NEEDLE_BYTES]
    if len(fingerprint.name) >= 3 and (not sparing or _is_distinctive(fingerprint.name)):
        yield fingerprint.name.encode()[:_NEEDLE_BYTES]


def _words(fingerprint: Fingerprint) -> list[bytes]:
    """Names that the body uses, and few other programs."""
    return [w.encode()[:_NEEDLE_BYTES] for w in sorted(fingerprint.used) if _is_distinctive(w)][:8]


def _is_distinctive(name: str) -> bool:
    """Whether a name is long enough, or of enough parts, not to be used by many programs."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    bare = name.strip("_")
    if name in _EVERYDAY or (name.startswith("__") and name.endswith("__")):
        return False
    return len(bare) >= 10 or (len(bare) >= 8 and len(parts) >= 2)


def _find_word(data: bytes, word: bytes, start: int = 0) -> int:
    """The first place of a word that is no part of a longer one; -1 if there is none."""
    at = data.find(word, start)
    while at >= 0:
        end = at + len(word)
        before = data[at - 1] if at else 32
        after = data[end] if end < len(data) else 32
        if before not in _WORD_BYTES and after not in _WORD_BYTES:
            return at
        at = data.find(word, at + 1)
    return -1


def _densest(places: Sequence[tuple[int, int]], width: int) -> tuple[int, int]:
    """(start, count) of the stretch of ``width`` bytes with the most different values; places are (offset, value)."""
    best, first = (0, 0), 0
    inside: Counter[int] = Counter()
    for offset, value in places:
        inside[value] += 1
        while offset - places[first][0] > width:
            gone = places[first][1]
            inside[gone] -= 1
            if not inside[gone]:
                del inside[gone]
            first += 1
        best = max(best, (len(inside), -places[first][0]))
    return -best[1], best[0]


def _excerpt(data: bytes, line: int) -> str:
    lines = data.split(b"\n")[max(0, line - 1) : line - 1 + _EXCERPT_LINES]
    return b"\n".join(text[:200] for text in lines).decode("utf-8", "replace")


def _owners_agree(wanted: Fingerprint, symbol: Symbol) -> bool:
    """Whether the classes around both have the same name, as far as both say."""
    owner = wanted.qualified_name.rpartition(".")[0].rpartition(".")[2]
    return not owner or "." not in symbol.qualified_name or owner in symbol.qualified_name.split(".")


def _same(found: Iterable[str], wanted: Iterable[str] | None) -> bool:
    def bare(names: Iterable[str]) -> list[str]:
        return [name.lstrip("*") for name in names if name not in ("self", "cls", "this")]

    return wanted is not None and bare(found) == bare(wanted)


def _describe(symbol: Symbol) -> str:
    called = symbol.signature or (
        f"{symbol.name}({', '.join(symbol.parameters)})" if symbol.parameters is not None else symbol.name
    )
    constants = ", ".join(repr(c) for c in symbol.constants[:5])
    names = ", ".join(sorted(symbol.identifiers)[:10])
    form = f" as {symbol.code.value}" if symbol.code else ""
    return f"{symbol.qualified_name or symbol.name}{form}: {called}; names: {names}; constants: {constants}"
