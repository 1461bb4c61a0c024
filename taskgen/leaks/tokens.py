"""Tokens of source text in any language, and fingerprints of them that survive reformatting and renaming.

Winnowing after Schleimer, Wilkerson and Aiken (SIGMOD 2003): of each window of WINDOW successive hashes of K tokens
the smallest is kept, so that any common run of at least ``K + WINDOW - 1`` tokens shares one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from zlib import crc32

K = 7
WINDOW = 3

_TOKEN = re.compile(
    rb"(?P<comment>(?:(?<=\s)|^)#(?!include|define|if|endif|else)[^\n]*|//[^\n]*|/\*.*?\*/)"
    rb"|(?P<string>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\\n]|\\.)*`)"
    rb"|(?P<word>[A-Za-z_$\x80-\xff][\w$\x80-\xff]*)"
    rb"|(?P<number>\d[\w.]*)"
    rb"|(?P<mark>[^\s\w(){}\[\],;])",
    re.MULTILINE | re.DOTALL,
)
_CALLED = re.compile(rb"\s*\(")
# Words of the languages: they stay as they are, whatever stands around them.
_KEYWORDS = frozenset(
    b"""and as assert async await break case catch class const continue def default defer del do elif else enum except
    false final finally fn for from func function global go if impl import in instanceof interface is lambda let loop
    match mod mut new nil none None not null or package pass pub raise range return self static struct super switch
    this throw throws trait true True False try type typeof undefined use var void where while with yield""".split()
)
# Types and modifiers that one form of a program has and another lacks.
_DROPPED = frozenset(b"const let var final public private protected static export".split())


def tokens(source: bytes) -> Iterator[tuple[bytes, int]]:
    """(token, offset). Brackets, commas, semicolons and comments are left out, since formatters move them; a name
    that is neither used behind a dot nor called is ``I``; strings lose their quotes."""
    behind_dot = behind_def = False
    for found in _TOKEN.finditer(source):
        kind, text = found.lastgroup, found.group()
        if kind == "comment":
            continue
        if kind == "string":
            text = b"'" + text[1:-1]
        elif kind == "word":
            if text in _DROPPED:
                continue
            if text not in _KEYWORDS and (behind_def or not (behind_dot or _CALLED.match(source, found.end()))):
                text = b"I"
        yield text, found.start()
        behind_dot = kind == "mark" and text == b"."
        behind_def = text in (b"def", b"function", b"fn", b"func", b"class")


def kept_words(source: bytes) -> frozenset[bytes]:
    """The names in the text that renaming locals does not change: called, or behind a dot."""
    words = (text for text, _ in tokens(source) if text[:1].isalpha() or text[:1] in b"_$")
    return frozenset(words) - _KEYWORDS - {b"I"}


def grams(source: bytes) -> list[tuple[int, int]]:
    """(hash, offset) of every K successive tokens."""
    found = list(tokens(source))
    joined = [text for text, _ in found]
    return [(crc32(b" ".join(joined[i : i + K])), found[i][1]) for i in range(len(found) - K + 1)]


@lru_cache(maxsize=4096)
def winnow(source: bytes) -> frozenset[int]:
    """The hashes that stand for the text."""
    hashes = [value for value, _ in grams(source)]
    if len(hashes) <= WINDOW:
        return frozenset(hashes)
    return frozenset(min(hashes[i : i + WINDOW]) for i in range(len(hashes) - WINDOW + 1))
