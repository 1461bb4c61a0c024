"""The thief: rebuilds deleted code from what can be decoded, and hands it in. The proof of an audit.

It knows what an agent knows: the statement's names and paths, and the workspace. Three ways, the surest first: put
another copy of the file in its place; run the bytecode of another copy; lift single definitions out of other texts.
"""

from __future__ import annotations

import base64
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from taskgen import patches, safepath
from taskgen.leaks import code
from taskgen.leaks.blob import Blob
from taskgen.leaks.loot import COPY_SHARE, Loot, StolenBytecode, StolenText, Want, collect, overlap, remaining_lines

#: How many different thefts are handed in at most.
MAX_TRIES = 6
_LOADER = """\
import base64, marshal
exec(marshal.loads(base64.b64decode({payload!r})[{header}:]))
"""
_PYC_HEADER_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Theft:
    """Stolen code as a patch, and as the files that it changes; and where it came from."""

    patch: bytes
    files: Mapping[str, bytes]
    sources: tuple[str, ...]
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Haul:
    """What a thief got: its best reward (0 or 1), and the theft that earned it. ``tries``: patches handed in."""

    reward: float
    tries: int
    theft: Theft | None = None


def rob(
    blobs: Iterable[Blob], wants: Sequence[Want], workspace: Mapping[str, bytes], submit: Callable[[Theft], float]
) -> Haul:
    """Steal from the blobs, hand in what was stolen, and say what it earned.

    Args:
        workspace: the files of the workspace, by path.
        submit: grades a theft against the workspace; 1.0 for a resolved task.
    """
    tries = 0
    for theft in thefts(list(collect(blobs, wants, workspace)), wants, workspace):
        if tries >= MAX_TRIES:
            break
        tries += 1
        if (reward := submit(theft)) > 0:
            return Haul(reward=reward, tries=tries, theft=theft)
    return Haul(reward=0.0, tries=tries)


def thefts(loot: Sequence[Loot], wants: Sequence[Want], workspace: Mapping[str, bytes]) -> Iterator[Theft]:
    """Different patches from the same loot, the most promising first."""
    seen: set[bytes] = set()
    paths = sorted({want.path for want in wants})
    texts = [piece for piece in loot if isinstance(piece, StolenText)]
    compiled = [piece for piece in loot if isinstance(piece, StolenBytecode)]
    for how, made in (
        ("another copy of the file", _swapped(paths, wants, texts, workspace)),
        ("bytecode of the module", _loaded(paths, wants, compiled, workspace)),
        ("single definitions", _lifted(paths, wants, texts, workspace)),
    ):
        for files, sources in made:
            changed = {path: data for path, data in files.items() if data != workspace.get(path)}
            if not changed:
                continue
            completed = _with_exports(files, wants, workspace)
            changed = {path: data for path, data in completed.items() if data != workspace.get(path)}
            patch = _patch(workspace, changed)
            if patch not in seen:
                seen.add(patch)
                yield Theft(patch=patch, files=changed, sources=tuple(dict.fromkeys(sources)), how=how)


Plan = tuple[dict[str, bytes], list[str]]


def _swapped(
    paths: Sequence[str], wants: Sequence[Want], texts: Sequence[StolenText], workspace: Mapping[str, bytes]
) -> Iterator[Plan]:
    """Whole files: for each path the copies that have all its names, the nearest to what is left first."""
    ranked: dict[str, list[StolenText]] = {}
    for path in paths:
        names = {want.qualified_name for want in wants if want.path == path and want.name}
        rest = remaining_lines(workspace.get(path, b""))
        fitting = [t for t in texts if names <= {u.qualified_name for u in t.units}]
        fitting = [t for t in fitting if not rest or overlap(t.data, rest) >= COPY_SHARE]
        # Of two that fit as well, the shorter has less that is not of this file.
        ranked[path] = sorted(fitting, key=lambda t: (-round(overlap(t.data, rest), 2), len(t.data)))
    for number in range(max((len(found) for found in ranked.values()), default=0)):
        files, sources = {}, []
        for path, found in ranked.items():
            if found:
                text = found[min(number, len(found) - 1)]
                files[path] = text.data
                sources.append("!".join(text.trail))
        yield files, sources


def _loaded(
    paths: Sequence[str], wants: Sequence[Want], compiled: Sequence[StolenBytecode], workspace: Mapping[str, bytes]
) -> Iterator[Plan]:
    """Bytecode, run in the place of the file; a patch is text, but text can carry anything."""
    for piece in compiled:
        files = {}
        for path in paths:
            names = {want.name for want in wants if want.path == path and want.name}
            if names and names <= piece.names:
                payload = base64.b64encode(piece.payload).decode()
                files[path] = _LOADER.format(payload=payload, header=_PYC_HEADER_BYTES).encode()
        if files:
            yield files, ["!".join(piece.trail)]


def _lifted(
    paths: Sequence[str], wants: Sequence[Want], texts: Sequence[StolenText], workspace: Mapping[str, bytes]
) -> Iterator[Plan]:
    """Definitions one by one, each put where it belongs."""
    files = {path: workspace.get(path, b"") for path in paths}
    sources: list[str] = []
    for want in wants:
        found = _definition(want, texts)
        if found is None:
            continue
        text, cut = found
        files[want.path] = _inserted(files[want.path], want, cut)
        sources.append("!".join(text.trail))
    yield files, sources


def _definition(want: Want, texts: Sequence[StolenText]) -> tuple[StolenText, bytes] | None:
    """The best text for a name: with the same qualified name, else the same name; long rather than a stub."""
    found = []
    for text in texts if want.name else ():
        lines = text.data.split(b"\n")
        for unit in text.units:
            if unit.name == want.name:
                cut = b"\n".join(lines[unit.first_line - 1 : unit.last_line])
                found.append((unit.qualified_name == want.qualified_name, len(cut), text, cut))
        # Pages and patches are no programs: there, what is indented below the header is the definition.
        found += [(False, len(cut), text, cut) for cut in _cut_out(lines, want.name)]
    if not found:
        return None
    _, _, text, cut = max(found, key=lambda entry: entry[:2])
    return text, cut


def _cut_out(lines: Sequence[bytes], name: str) -> Iterator[bytes]:
    header = re.compile(rb"(?:async\s+)?(?:def|class)\s+" + re.escape(name.encode()) + rb"\b")
    for number, line in enumerate(lines):
        if (begun := header.search(line)) is None:
            continue
        column = begun.start()
        kept = [line[column:]]
        for after in lines[number + 1 :]:
            text = after[column:]
            if text.strip() and not text[:1].isspace() and not text.startswith(b")"):
                break
            kept.append(text)
        yield b"\n".join(kept).rstrip()


def _with_exports(
    files: Mapping[str, bytes], wants: Sequence[Want], workspace: Mapping[str, bytes]
) -> dict[str, bytes]:
    """A package's ``__init__`` that lost lines, and of which there is no copy: it surely exported what its modules
    define, and the statement says so."""
    result = dict(files)
    for path in {want.path for want in wants if want.path.endswith("/__init__.py") and not want.name}:
        if result.get(path, workspace.get(path)) != workspace.get(path):
            continue
        folder = path.removesuffix("__init__.py")
        lines = [
            f"from .{want.path.removeprefix(folder).removesuffix('.py').replace('/', '.')} import {want.qualified_name}"
            for want in wants
            if want.path.startswith(folder) and want.path != path and want.name and "." not in want.qualified_name
        ]
        result[path] = workspace.get(path, b"") + "\n".join(["", *lines, ""]).encode()
    return result


def _inserted(source: bytes, want: Want, definition: bytes) -> bytes:
    """A file with a definition in the place of its stub, or at the end of its class or of the file."""
    lines = source.split(b"\n")
    known = {unit.qualified_name: unit for unit in code.units(source, "python")}
    flat = textwrap.dedent(definition.decode("utf-8", "replace"))
    owner = known.get(want.qualified_name.rpartition(".")[0])
    depth = _indent(lines[owner.first_line - 1]) + 4 if owner is not None else 0
    text = textwrap.indent(flat, " " * depth).encode().split(b"\n")
    if (stub := known.get(want.qualified_name)) is not None:
        return b"\n".join([*lines[: stub.first_line - 1], *text, *lines[stub.last_line :]])
    if owner is not None:
        return b"\n".join([*lines[: owner.last_line], b"", *text, *lines[owner.last_line :]])
    return b"\n".join([*lines, b"", *text, b""])


def _indent(line: bytes) -> int:
    return len(line) - len(line.lstrip())


def _patch(workspace: Mapping[str, bytes], changed: Mapping[str, bytes]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="taskgen-thief-") as folder:
        old, new = Path(folder, "old"), Path(folder, "new")
        old.mkdir()
        new.mkdir()
        for path, data in changed.items():
            if path in workspace:
                safepath.write_file(old, path, workspace[path], executable=False)
            safepath.write_file(new, path, data, executable=False)
        return patches.patch_bytes(patches.diff_directories(old, new))
