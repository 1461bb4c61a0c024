"""What the tests of the decoders of compiled code share: the fixtures, and how broken input is given to a decoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hypothesis import strategies as st

from taskgen.leaks.blob import Blob, Unreadable
from taskgen.leaks.decoder import Decoder
from taskgen.leaks.records import Problem, Symbol

DATA = Path(__file__).parent / "data" / "compiled"
Found = Blob | Symbol | Problem


def fixture(name: str) -> bytes:
    """A file that a compiler made."""
    return (DATA / name).read_bytes()


def blob(data: bytes, name: str = "file") -> Blob:
    return Blob.of_bytes(name, data)


def everything(root: Blob, *decoders: Decoder) -> Iterator[Found]:
    """All that is found in a blob and in what it holds, depth first."""
    decoder = next((d for d in decoders if d.matches(root.head, root.name)), None)
    if decoder is None:
        return
    for found in decoder.decode(root):
        yield found
        if isinstance(found, Blob):
            yield from everything(found, *decoders)


def symbols(root: Blob, *decoders: Decoder) -> dict[str, Symbol]:
    """The symbols by qualified name; of several the one that says most."""
    found: dict[str, Symbol] = {}
    for item in everything(root, *decoders):
        if isinstance(item, Symbol) and (item.qualified_name not in found or item.parameters):
            found[item.qualified_name] = item
    return found


def text(root: Blob, *decoders: Decoder) -> bytes:
    """All that blobs inside say, one behind the other."""
    return b"\n".join(item.read() for item in everything(root, *decoders) if isinstance(item, Blob))


def is_told(data: bytes, *decoders: Decoder) -> bool:
    """Whether decoding ends with a Problem or Unreadable; any other exception is the test's failure."""
    told = False
    try:
        for found in everything(blob(data), *decoders):
            told = told or isinstance(found, Problem)
    except Unreadable:
        return True
    return told


def lengths(data: bytes) -> list[int]:
    """Where to cut: everywhere in the first bytes, then here and there."""
    return [*range(min(len(data), 80)), *range(80, len(data), 37)]


@st.composite
def mutations(draw: st.DrawFn, data: bytes) -> bytes:
    """The data with some bytes changed, perhaps cut, perhaps with a piece put in twice."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 12))):
        changed[draw(st.integers(0, len(data) - 1))] = draw(
            st.integers(0, 255) | st.sampled_from((0, 1, 127, 128, 255))
        )
    if draw(st.booleans()):
        start, size = draw(st.integers(0, len(data))), draw(st.integers(0, 64))
        changed[start:start] = changed[start : start + size]
    return bytes(changed[: draw(st.integers(0, len(changed)) | st.just(len(changed)))])
