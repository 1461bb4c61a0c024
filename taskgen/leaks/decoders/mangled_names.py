"""The plain names in those that linkers use: of Rust (both manglings), of C++ (Itanium), and of Go.

Only as much of the grammars is followed as is needed to tell the function's own path from the types behind it.
See Rust RFC 2603 and the Itanium C++ ABI, 5.1.
"""

from __future__ import annotations

import re

_MAX_CHARS = 4096
_MAX_STEPS, _MAX_DEPTH = 2000, 60
_LENGTH = re.compile(r"\d{1,5}")
_WORD = re.compile(r"[^\W\d]\w*")
_HASH = re.compile(r"h[0-9a-f]{16}")
_ESCAPE = re.compile(r"\$u([0-9a-f]{1,6})\$|\$[A-Z]{1,2}\$")
_SUBSTITUTION = re.compile(r"S[0-9A-Z]{0,8}_|S[tabsiod]|T[0-9A-Z]{0,8}_|B\w{0,80}?(?=\d|E|$)")
_BASE_62 = re.compile(r"[0-9a-zA-Z]{0,14}_")
_OPENING, _QUALIFIERS = "INXJF", "rVKRO"
#: what compilers add to the names of copies that they specialise or split off
_COPIES = re.compile(r"(?:\.(?:isra|part|constprop|cold|lto_priv|llvm|clone|localalias|resolver)(?:\.\d+)*)+\Z")
_GO_INNER = re.compile(r"(?:func|gowrap|deferwrap|init|)\d+\Z")


class _Lost(Exception):
    """The name does not follow the grammar."""


def plain_name(name: str) -> str:
    """``_ZN5crate6module4name17h0123456789abcdefE`` and the like as ``crate.module.name``; others as they are."""
    name = name[:_MAX_CHARS]
    bare = name.removeprefix("_") if name.startswith("__") else name
    if not bare.startswith(("_Z", "_R")):
        name = _COPIES.sub("", name.partition("@")[0])
        return go_name(name) if "." in name[1:] else name
    try:
        parts = _Rust(bare[2:].partition(".")[0]).path(0) if bare.startswith("_R") else _itanium(bare[2:])
    except _Lost:
        parts = []
    return ".".join(parts or _any_parts(bare)) or name


def go_name(name: str) -> str:
    """``pkg.Type.Method`` of ``example.com/x/pkg.(*Type).Method.func1``: functions in functions count as the outer."""
    plain = name.partition("[")[0].replace("(*", "").replace(")", "").rpartition("/")[2]
    parts = [part for part in plain.split(".") if part]
    while len(parts) > 2 and _GO_INNER.match(parts[-1]):
        parts.pop()
    return ".".join(parts)


def _any_parts(text: str) -> list[str]:
    """Whatever stands behind its length."""
    parts, at = [], 0
    while found := _LENGTH.search(text, at):
        at = found.end()
        part = text[at : at + int(found[0])]
        if len(part) == int(found[0]) and part.isidentifier() and not _HASH.fullmatch(part):
            parts.append(part)
            at += len(part)
    return parts


def _part(text: str, at: int) -> tuple[str, int]:
    """The name behind its length at ``at``, and where it ends."""
    found = _LENGTH.match(text, at)
    end = found.end() + int(found[0]) if found else len(text) + 1
    if found is None or end > len(text):
        raise _Lost
    return text[found.end() : end], end


# --- C++, and Rust's older mangling, which looks the same -----------------------------------------


def _itanium(text: str) -> list[str]:
    """The function's path: what follows it are types."""
    at = 0
    while text[at : at + 1] in ("Z", "L") or text.startswith(("GV", "GR", "TV", "TI", "TS", "Th", "Tv"), at):
        at += 1 if text[at] in "ZL" else 2
    if text[at : at + 1] == "N":
        return _nested(text, at + 1)
    if text.startswith("St", at):
        at += 2
    part, _ = _part(text, at)
    return _words(part)


def _nested(text: str, at: int) -> list[str]:
    parts: list[str] = []
    while at < len(text) and text[at] != "E":
        if text[at].isdigit():
            part, at = _part(text, at)
            if not _HASH.fullmatch(part):
                parts += _words(part)
        elif found := _SUBSTITUTION.match(text, at):
            at = found.end()
        elif text[at] == "I":
            at = _after_group(text, at)
        elif text[at] in "CD" and text[at + 1 : at + 2].isdigit():
            parts += parts[-1:]
            at += 2
        elif text[at] in _QUALIFIERS or text[at] == "L":
            at += 1
        else:  # an operator: two letters
            at += 2
    return parts


def _after_group(text: str, at: int) -> int:
    """Where template arguments end, which end with an E as all that can be nested in them does."""
    depth = 0
    while at < len(text):
        letter = text[at]
        if letter.isdigit():
            _, at = _part(text, at)
            continue
        if letter == "L" and not text.startswith("L_Z", at):
            at = text.find("E", at)
            if at < 0:
                raise _Lost
        elif letter in "ST" and (found := _SUBSTITUTION.match(text, at)):
            at = found.end()
            continue
        elif letter in _OPENING or letter == "L":
            depth += 1
        elif letter == "E":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    raise _Lost


def _words(part: str) -> list[str]:
    """``_$LT$a..B$u20$as$u20$c..D$GT$`` (a type inside a path, in Rust) -> a, B, c, D; other parts as they are."""
    if "$" not in part and ".." not in part:
        return [part]
    if not part.startswith(("_$", "$")):
        part = part.partition("$LT$")[0]  # what follows are arguments of a generic function
    plain = _ESCAPE.sub(lambda found: chr(min(int(found[1], 16), 0xFFFF)) if found[1] else " ", part)
    return [word for word in _WORD.findall(plain.replace("..", " ")) if word.strip("_") and word not in ("as", "impl")]


# --- Rust -----------------------------------------------------------------------------------------


class _Rust:
    """Reads a path and passes over types."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._steps = text, 0, 0

    def path(self, depth: int) -> list[str]:
        kind = self._take(depth)
        if kind == "C":
            return [self._identifier()]
        if kind == "N":
            self._take(depth)
            parts = self.path(depth + 1)
            own = self._identifier()
            return [*parts, own] if own else parts
        if kind in "MX":
            self._disambiguator()
            self.path(depth + 1)
            owner = self._type(depth + 1)
            if kind == "X":
                self.path(depth + 1)
            return owner
        if kind == "Y":
            owner = self._type(depth + 1)
            self.path(depth + 1)
            return owner
        if kind == "I":
            parts = self.path(depth + 1)
            while self._peek() != "E":
                self._argument(depth + 1)
            self._take(depth)
            return parts
        if kind == "B":
            return self._back(depth, self.path)
        raise _Lost

    def _type(self, depth: int) -> list[str]:
        kind = self._peek()
        if kind in "CNMXYI":
            return self.path(depth)
        self._take(depth)
        if kind == "B":
            return self._back(depth, self._type)
        if kind in "SPO":
            return self._type(depth + 1)
        if kind in "RQ":
            if self._peek() == "L":
                self._argument(depth + 1)
            return self._type(depth + 1)
        if kind == "A":
            owner = self._type(depth + 1)
            self._constant(depth + 1)
            return owner
        if kind == "T":
            while self._peek() != "E":
                self._type(depth + 1)
            self._take(depth)
            return []
        if kind.islower():
            return []
        raise _Lost  # functions and traits as types: their names are found by their lengths

    def _argument(self, depth: int) -> None:
        kind = self._peek()
        if kind == "L":
            self._take(depth)
            self._number()
        elif kind == "K":
            self._take(depth)
            self._constant(depth)
        else:
            self._type(depth)

    def _constant(self, depth: int) -> None:
        if self._take(depth) == "B":
            self._number()
        elif self._text[self._at - 1] != "p":
            self._at = self._text.find("_", self._at) + 1
            if not self._at:
                raise _Lost

    def _back(self, depth: int, read: object) -> list[str]:
        target = self._number()
        kept, self._at = self._at, target
        parts: list[str] = read(depth + 1)  # type: ignore[operator]
        self._at = kept
        return parts

    def _identifier(self) -> str:
        self._disambiguator()
        is_punycode = self._peek() == "u"
        self._at += is_punycode
        found = _LENGTH.match(self._text, self._at)
        if not found:
            raise _Lost
        begin = found.end() + (self._text[found.end() : found.end() + 1] == "_")
        self._at = begin + int(found[0])
        if self._at > len(self._text):
            raise _Lost
        return self._text[begin : self._at]

    def _disambiguator(self) -> None:
        if self._peek() == "s":
            self._at += 1
            self._number()

    def _number(self) -> int:
        found = _BASE_62.match(self._text, self._at)
        if found is None:
            raise _Lost
        self._at = found.end()
        digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
        value = 0
        for letter in found[0][:-1]:
            value = 62 * value + digits.index(letter)
        return value + 1 if len(found[0]) > 1 else 0

    def _peek(self) -> str:
        letter = self._text[self._at : self._at + 1]
        if not letter:
            raise _Lost
        return letter

    def _take(self, depth: int) -> str:
        self._steps += 1
        if depth > _MAX_DEPTH or self._steps > _MAX_STEPS:
            raise _Lost
        letter = self._peek()
        self._at += 1
        return letter
