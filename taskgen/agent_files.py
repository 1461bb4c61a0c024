"""Reading and editing files of the workspace. Runs inside of the sandbox, as ``python -I -c``: the standard library
alone, and nothing of taskgen.

One JSON object on stdin (``root``, ``do``: read or edit, and that tool's arguments), one on stdout: ``text`` and
``is_error``.
"""

import json
import stat
import sys
from os import O_NONBLOCK, O_RDONLY, fstat
from os import open as open_handle
from pathlib import Path

#: A file that is read or edited.
MAX_BYTES = 8 << 20
#: Characters of a line that are shown.
MAX_LINE_CHARS = 2000


class Refused(Exception):
    """A message to the policy."""


def place_of(root: str, path: str) -> Path:
    """The file that a path means. Raises Refused for one outside of the workspace, by links, too."""
    top = Path(root).resolve()
    place = (top / path).resolve()
    if not place.is_relative_to(top):
        raise Refused(f"{path}: outside of the workspace ({top})")
    return place


def content_of(place: Path, path: str) -> bytes:
    """The bytes of a regular file. Raises Refused."""
    if place.is_dir():
        listed = ", ".join(sorted(entry.name for entry in place.iterdir())[:50])
        raise Refused(f"{path}: a folder, which has: {listed}")
    # A pipe would be waited for, and a device may have no end.
    handle = open_handle(place, O_RDONLY | O_NONBLOCK)
    with open(handle, "rb") as stream:
        if not stat.S_ISREG(fstat(handle).st_mode):
            raise Refused(f"{path}: not a regular file")
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise Refused(f"{path}: larger than {MAX_BYTES} bytes; use bash")
    return data


def read(root: str, path: str, start: int, end: int | None, max_chars: int) -> str:
    """Lines ``start`` to ``end`` (from 1, both included) with their numbers, as many as fit."""
    text = content_of(place_of(root, path), path).decode("utf-8", "replace")
    if not text:
        return f"{path} is empty"
    lines = text.removesuffix("\n").replace("\r\n", "\n").split("\n")
    if start > len(lines):
        raise Refused(f"{path} has {len(lines)} lines; line {start} was asked for")
    last = min(len(lines), end or len(lines))
    shown: list[str] = []
    size = 0
    for number in range(start, last + 1):
        line = f"{number:6}\t{lines[number - 1][:MAX_LINE_CHARS]}"
        size += len(line) + 1
        if size > max_chars and shown:
            last = number - 1
            break
        shown.append(line)
    if last < len(lines):
        shown.append(f"[lines {start} to {last} of {len(lines)}]")
    return "\n".join(shown)


def edit(root: str, path: str, old: str, new: str) -> str:
    """Put ``new`` where ``old`` is, which must be there once; with ``old`` empty, make the file."""
    place = place_of(root, path)
    before, after = (text.encode("utf-8", "surrogateescape") for text in (old, new))
    there = place.exists()
    content = content_of(place, path) if there else b""
    if not before:
        if content:
            raise Refused(f"{path} is there already; give the text to replace as old")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(after)
        return f"{path}: written, {len(after)} bytes" if there else f"{path}: created, {len(after)} bytes"
    if not there:
        raise Refused(f"{path}: no such file; give an empty old to create it")
    if b"\r\n" in content and b"\r\n" not in before:  # which lines end so is not shown by read
        before, after = before.replace(b"\n", b"\r\n"), after.replace(b"\n", b"\r\n")
    found = content.count(before)
    if found != 1:
        what = "is not in the file" if not found else f"is there {found} times; add lines around it until it is unique"
        raise Refused(f"{path}: old {what}")
    place.write_bytes(content.replace(before, after))
    line = content.partition(before)[0].count(b"\n") + 1
    return f"{path}: replaced at line {line}"


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    is_read = request.pop("do") == "read"
    try:
        answer = {"text": read(**request) if is_read else edit(**request), "is_error": False}
    except Refused as error:
        answer = {"text": str(error), "is_error": True}
    except OSError as error:
        answer = {"text": f"{request['path']}: {error.strerror}", "is_error": True}
    except (ValueError, RuntimeError) as error:  # RuntimeError: a loop of links
        answer = {"text": f"{request['path']}: {error}", "is_error": True}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
