"""What rules say of programs that read, write, list, copy, remove or decode files."""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from collections.abc import Sequence

from taskgen.monitor import edits, tables
from taskgen.monitor.machine import DECODED, UNKNOWN, Machine
from taskgen.monitor.tables import Access, words_of

#: Options of readers and searchers that take the next word, which is no path.
_VALUES = words_of(
    "-n -m -A -B -C -c -d -f -t -k -s -g --glob --iglob -T --type --include --exclude --exclude-dir -j -N -w -W -l -o "
    "-e --lines --bytes --max-count --regexp --file --style --theme -H -O -I -L -P -U --context"
)


def decode(machine: Machine, name: str, words: list[str], stdin: str | None) -> str | None:
    """The text that a decoder makes of its input: DECODED if that is not known, None if it does not decode."""
    text = _decoded(machine, name, words, stdin)
    if text is not None and text != DECODED:
        machine.decoded.add(text.strip())
    return text


def _decoded(machine: Machine, name: str, words: list[str], stdin: str | None) -> str | None:
    paths = [word for word in words if not word.startswith("-")]
    text = stdin
    if text is None and paths and name not in ("tr", "openssl"):
        text = machine.read(paths[-1])
    if text is None or UNKNOWN in text:
        decodes = any(re.fullmatch(r"-\w*[dDr]\w*|--decode", word) for word in words)
        return DECODED if decodes and name in ("base64", "base32", "xxd", "openssl") else None
    data = text.strip().encode("utf-8", "replace")
    try:
        if name == "base64" and any(w in ("-d", "-D", "--decode", "-di") for w in words):
            return base64.b64decode(data).decode("utf-8", "replace")
        if name == "base32" and any(w in ("-d", "--decode") for w in words):
            return base64.b32decode(data).decode("utf-8", "replace")
        if name == "xxd" and any("r" in w for w in words if w.startswith("-")):
            return bytes.fromhex(data.decode("ascii", "ignore")).decode("utf-8", "replace")
        if name == "openssl" and "base64" in words:
            return base64.b64decode(data).decode("utf-8", "replace")
    except (ValueError, binascii.Error):
        return None
    if name == "rev":
        return "".join(f"{line[::-1]}\n" for line in text.splitlines())
    if name == "tr" and len(paths) == 2:
        return _translated(text, *paths)
    return None


def _translated(text: str, old: str, new: str) -> str | None:
    def spelled(group: str) -> str:
        return re.sub(r"(\w)-(\w)", lambda m: "".join(map(chr, range(ord(m[1]), min(ord(m[2]), 0x7F) + 1))), group)

    before, after = spelled(old), spelled(new)
    if not before or not after:
        return None
    after += after[-1] * max(0, len(before) - len(after))
    return text.translate(dict(zip(map(ord, before), after, strict=False)))


def in_place(machine: Machine, words: Sequence[str]) -> str | None:
    plain = [word for word in words if not word.startswith("-")]
    takes = [i for i, word in enumerate(words) if word in ("-e", "--expression") or re.fullmatch(r"-\w*e", word)]
    scripts = [words[i + 1] for i in takes if i + 1 < len(words)] or plain[:1]
    for path in plain:
        if path not in scripts:
            edits.change(machine, path, "; ".join(scripts))
    return ""


def run_files(machine: Machine, name: str, words: list[str], stdin: str | None) -> str | None:
    if name in ("sed", "gsed") and any(
        word.startswith(("-i", "--in-place")) or word in ("-ni", "-Ei", "-ri") for word in words
    ):
        return in_place(machine, words)
    if name in tables.REMOVERS:
        for word in words:
            if not word.startswith("-"):
                edits.remove(machine, word)
        return ""
    paths = _paths(words, skips_first=name in tables.SEARCHERS)
    if name in tables.WRITERS:
        for path in paths:
            if name != "touch":
                edits.write(machine, path, stdin, adds="-a" in words)
            else:
                edits.touch(machine, path)
        return stdin if name == "tee" else ""
    if name in tables.COPIERS:
        return _copied(machine, name, paths)
    if name in tables.LISTERS:
        for path in paths:
            machine.touch(Access.LIST, path)
        return None
    if name in tables.READERS or name in tables.SEARCHERS:
        return _read(machine, name, words, paths, stdin)
    return None


def _read(machine: Machine, name: str, words: list[str], paths: list[str], stdin: str | None) -> str | None:
    included = [word.partition("=")[2] for word in words if word.startswith("--include=")]
    for pattern in included:
        machine.touch(Access.READ, pattern)
    texts = [machine.read(path) for path in paths]
    if name in ("cat", "head", "tail", "sort", "uniq", "grep", "egrep", "fgrep"):
        if paths:
            return None if any(text is None for text in texts) else "".join(text or "" for text in texts)
        return stdin
    return None


def _copied(machine: Machine, name: str, paths: list[str]) -> str | None:
    if len(paths) < 2:
        return ""
    *sources, target = paths
    for source in sources:
        text = machine.read(source)
        into = target.endswith("/") or len(sources) > 1 or target in (".", "..")
        to = f"{target.rstrip('/')}/{posixpath.basename(source)}" if into else target
        if name == "mv":
            edits.remove(machine, source)
        if not (":" in target and name in ("scp", "rsync")):
            edits.write(machine, to, text)
    return ""


def _paths(words: Sequence[str], *, skips_first: bool) -> list[str]:
    """The words that are paths: no options, no values of options, and not a searcher's pattern."""
    paths: list[str] = []
    skip, given, ended = False, not skips_first, False
    for word in words:
        if skip:
            skip = False
        elif word == "--" and not ended:
            ended = True
        elif word.startswith("-") and len(word) > 1 and not ended:
            skip = word in _VALUES and not (
                word in ("-l", "-o", "-c", "-w", "-L", "-H", "-I", "-n", "-s") and skips_first
            )
            if skips_first and (word in ("-e", "-f", "--regexp", "--file") or word.startswith(("-e", "--regexp="))):
                given = True
        elif not given:
            given = True
        else:
            paths.append(word)
    return paths
