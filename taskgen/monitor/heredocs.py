"""Heredocs are cut out of shell text before it is parsed: tree-sitter-bash loses track of what stands behind them on
their line (``<<A <<B``, ``<<EOF 2>&1 | head``). Each becomes a redirection from a file whose name stands for its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Begins the names of those files.
PREFIX = "__taskgen_heredoc_"
_OPERATOR = re.compile(r"<<(?P<dash>-?)[ \t]*(?P<word>(?:'[^'\n]*'|\"[^\"\n]*\"|\\.|[^\s;&|<>()'\"\\])+)")
_QUOTES = re.compile(r"['\"\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heredoc:
    """A heredoc's text. ``expands``: ``$`` and backquotes in it mean something."""

    text: str
    expands: bool


def cut(script: str) -> tuple[str, dict[str, Heredoc]]:
    """The script without bodies of heredocs, and these by the name that stands for each."""
    found: dict[str, Heredoc] = {}
    out: list[str] = []
    pending: list[tuple[str, bool, bool, str]] = []  # delimiter, strips tabs, expands, variable
    at, n = 0, len(script)
    quote = ""
    while at < n:
        char = script[at]
        if char == "\n" and pending and not quote:
            out.append("\n")
            at += 1
            for delimiter, strips, expands, name in pending:
                text, at = _body(script, at, delimiter, strips)
                found[name] = Heredoc(text=text, expands=expands)
            pending.clear()
            continue
        if char == "\\" and quote != "'":
            out.append(script[at : at + 2])
            at += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (at == 0 or script[at - 1] in " \t\n;&|("):
            end = script.find("\n", at)
            at = n if end < 0 else end
            continue
        elif char == "<" and (match := _heredoc_at(script, at)):
            word = match["word"]
            name = f"{PREFIX}{len(found) + len(pending)}"
            pending.append((_QUOTES.sub("", word), bool(match["dash"]), not _QUOTES.search(word), name))
            out.append(f" < {name} ")
            at = match.end()
            continue
        out.append(char)
        at += 1
    for _, _, expands, name in pending:
        found[name] = Heredoc(text="", expands=expands)
    return "".join(out), found


def _heredoc_at(script: str, at: int) -> re.Match[str] | None:
    if script.startswith("<<<", at) or (at and script[at - 1] == "<"):
        return None
    # $((1 << 2)) shifts.
    line = script[script.rfind("\n", 0, at) + 1 : at]
    if line.count("((") > line.count("))"):
        return None
    return _OPERATOR.match(script, at)


def _body(script: str, at: int, delimiter: str, strips: bool) -> tuple[str, int]:
    """The lines up to the delimiter, or to the end as shells do, and where what follows begins."""
    lines: list[str] = []
    while at < len(script):
        end = script.find("\n", at)
        end = len(script) if end < 0 else end
        line = script[at:end].lstrip("\t") if strips else script[at:end]
        at = end + 1
        if line == delimiter:
            return "".join(f"{text}\n" for text in lines), at
        lines.append(line)
    return "".join(f"{text}\n" for text in lines), at
