"""How much of the gold patch a patch repeats: a measure of copying from memory, and of nothing else.

Runs of tokens (shingles: Broder 1997) rather than a longest common subsequence: they cost linear time on hostile input,
do not care in which order or file the pieces stand, and padding does not dilute them.
"""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import lru_cache

from taskgen.grading.changed_lines import changed_lines
from taskgen.languages.python_source import PYTHON_SUFFIXES, parse

#: Files of gold patches of which what was found is kept for the next patch of their task. Never of what is handed in:
#: that comes from a hostile place, and may be large.
KEPT = 64
#: Tokens in a run. Shorter ones are the small change of the language: two unrelated functions share them.
SHINGLE = 6

_SKIPPED = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER, tokenize.ERRORTOKEN,
}  # fmt: skip
_WORDS = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A file before and after a patch; None: there is none."""

    old: bytes | None
    new: bytes | None


def similarity(changes: Mapping[str, Change], gold: Mapping[str, bytes]) -> float:
    """The share, 0 to 1, of what the gold files add to the old ones that the patch adds too.

    Compared are runs of tokens of added lines; comments, layout and the names of local variables do not count. 1.0 is
    the original restored, whatever else was added. A gold file without an entry in ``changes`` counts as new as a
    whole; enter the files that the patch leaves alone with ``new`` the same as ``old``.
    """
    wanted: Counter[tuple[str, ...]] = Counter()
    for path, new in gold.items():
        change = changes.get(path)
        wanted += _of_gold(path, change.old if change is not None else None, new)
    given: Counter[tuple[str, ...]] = Counter()
    for path, change in changes.items():
        if change.new is not None:
            given += _shingles(path, change.old, change.new)
    total = wanted.total()
    return (wanted & given).total() / total if total else 0.0


@lru_cache(maxsize=KEPT)
def _of_gold(path: str, old: bytes | None, new: bytes) -> Counter[tuple[str, ...]]:
    """The same as ``_shingles``; nobody may change what it returns."""
    return _shingles(path, old, new)


def _shingles(path: str, old: bytes | None, new: bytes) -> Counter[tuple[str, ...]]:
    changed = changed_lines(old, new)
    if not changed:
        return Counter()
    found = _python_tokens(new, changed) if path.endswith(PYTHON_SUFFIXES) else _words(new, changed)
    # A change of a few tokens is one run.
    size = min(SHINGLE, len(found))
    return Counter(tuple(found[i : i + size]) for i in range(len(found) - size + 1)) if size else Counter()


def _python_tokens(source: bytes, changed: Set[int]) -> list[str]:
    try:
        parse(source)  # of what is no Python, tokenize takes quadratic time to say so
        tokens = [t for t in tokenize.tokenize(io.BytesIO(source).readline) if t.type not in _SKIPPED]
    except (tokenize.TokenError, SyntaxError, ValueError, RecursionError):
        return _words(source, changed)
    found = []
    before = ""
    for index, token in enumerate(tokens):
        after = tokens[index + 1].string if index + 1 < len(tokens) else ""
        if any(line in changed for line in range(token.start[0], token.end[0] + 1)):
            found.append("name" if _is_local(token, before, after) else token.string)
        before = token.string
    return found


def _is_local(token: tokenize.TokenInfo, before: str, after: str) -> bool:
    """Whether a name may be one that the author chose for a variable: neither called nor behind a dot."""
    return (
        token.type == tokenize.NAME
        and not keyword.iskeyword(token.string)
        and before not in (".", "def", "class")
        and after != "("
    )


def _words(source: bytes, changed: Set[int]) -> list[str]:
    lines = source.splitlines()
    text = b"\n".join(lines[number - 1] for number in sorted(changed))
    return _WORDS.findall(text.decode("utf-8", "replace"))
