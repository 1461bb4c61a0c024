"""ctags' tags files and etags' TAGS: names, and the lines that define them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from taskgen.leaks.blob import Blob
from taskgen.leaks.records import Symbol

NAME = "tags"
RAW_STRINGS = True
_SIGNATURE = re.compile(r"\tsignature:(\([^\t]*\))")
_SCOPE = re.compile(r"\t(?:class|function|namespace|member|struct):([^\t]+)")
_NAME = re.compile(r"[A-Za-z_$][\w$]*")


def matches(head: bytes, name: str) -> bool:
    """The pseudo-tags at the beginning, or etags' form feed."""
    return head.startswith((b"!_TAG_", b"\x0c\n"))


def decode(blob: Blob) -> Iterator[Blob | Symbol]:
    """A symbol for each tag that has a signature; the patterns as the lines that they are."""
    lines: list[str] = []
    for line in blob.read().decode("utf-8", "replace").splitlines():
        blob.budget.check_time()
        if "\x7f" in line:  # etags: the line, then the name
            lines.append(line.partition("\x7f")[0])
        elif "\t/^" in line:
            lines.append(line.partition("\t/^")[2].partition('/;"')[0].rstrip("$").replace("\\/", "/"))
        if found := _SIGNATURE.search(line):
            name = line.partition("\t")[0]
            scope = _SCOPE.search(line)
            names = [m.group() for part in found.group(1)[1:-1].split(",") if (m := _NAME.search(part))]
            yield Symbol(
                name=name,
                qualified_name=f"{scope.group(1)}.{name}" if scope else name,
                parameters=tuple(names),
                signature=f"{name}{found.group(1)}",
            )
    yield blob.child("(lines)", "\n".join(lines).encode("utf-8", "replace"))
