"""What a thief carries off: texts and bytecode that define a deleted name, or are another copy of its file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from taskgen.leaks import code
from taskgen.leaks.blob import Blob, Unreadable
from taskgen.leaks.code import CodeUnit
from taskgen.leaks.decoding import Text, unfold
from taskgen.leaks.fingerprints import squeeze
from taskgen.leaks.records import Symbol

#: A text is another copy of a file when it has this share of the lines that are left of it.
COPY_SHARE = 0.6
MAX_TEXT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a thief looks for; the statement tells as much. An empty name: whatever else is gone from the file."""

    path: str
    qualified_name: str

    @property
    def name(self) -> str:
        return self.qualified_name.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class StolenText:
    """A text that was decoded somewhere, and the units in it."""

    trail: tuple[str, ...]
    data: bytes
    units: tuple[CodeUnit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StolenBytecode:
    """A marshalled module, with the header that a .pyc has."""

    trail: tuple[str, ...]
    payload: bytes
    names: frozenset[str]


Loot = StolenText | StolenBytecode


def collect(blobs: Iterable[Blob], wants: Collection[Want], workspace: Mapping[str, bytes]) -> Iterator[Loot]:
    """Everything worth taking from the blobs. ``workspace``: what is left of the files, by path."""
    names = {want.name.encode() for want in wants if want.name}
    left = {want.path: _lines(workspace.get(want.path, b"")) for want in wants}
    for blob in blobs:
        if blob.trail[0] in left:
            continue  # the workspace's own file
        try:
            yield from _from_blob(blob, names, left)
        except (Unreadable, OSError):
            continue  # a thief takes what it can get; the audit reports what is unreadable


def _from_blob(blob: Blob, names: Collection[bytes], left: Mapping[str, frozenset[bytes]]) -> Iterator[Loot]:
    modules: dict[tuple[str, ...], tuple[bytes, set[str]]] = {}
    for item in unfold(blob, lambda data: any(name in data for name in names) or len(data) <= MAX_TEXT_BYTES):
        content = item.content
        if isinstance(content, Symbol):
            payload, defined = modules.setdefault(item.trail, (b"", set()))
            if content.code is not None:
                defined.add(content.name)
            modules[item.trail] = (payload or content.payload, defined)
        elif isinstance(content, Text) and not content.is_binary and len(content.data) <= MAX_TEXT_BYTES:
            is_wanted = any(name in content.data for name in names)
            if is_wanted or any(_is_copy(content.data, rest) for rest in left.values()):
                yield StolenText(trail=item.trail, data=content.data, units=code.units(content.data, "python"))
    for trail, (payload, defined) in modules.items():
        if payload and any(name.decode() in defined for name in names):
            yield StolenBytecode(trail=trail, payload=payload, names=frozenset(defined))


def _is_copy(data: bytes, rest: frozenset[bytes]) -> bool:
    return len(rest) >= 5 and overlap(data, rest) >= COPY_SHARE


def overlap(data: bytes, rest: frozenset[bytes]) -> float:
    """The share of a file's remaining lines that stand in a text."""
    return len(rest & _lines(data)) / len(rest) if rest else 0.0


def _lines(data: bytes) -> frozenset[bytes]:
    return frozenset(line for raw in data.split(b"\n") if len(line := squeeze(raw)) > 3)


def remaining_lines(data: bytes) -> frozenset[bytes]:
    """The lines by which another copy of a file is known."""
    return _lines(data)
