"""How values are laid out in DWARF 2 to 5, and the abbreviations that say which values an entry has.

Layout: The DWARF Debugging Information Format, version 5, chapter 7.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskgen.leaks.blob import Unreadable

COMPILE_UNIT, PARTIAL_UNIT, SKELETON_UNIT, SUBPROGRAM, PARAMETER, VARIABLE = 0x11, 0x3C, 0x4A, 0x2E, 0x05, 0x34
BLOCK, INLINED = 0x0B, 0x1D
#: class, enumeration, structure, union, namespace, module, interface: what a name can be inside
SCOPES = frozenset((0x02, 0x04, 0x13, 0x17, 0x39, 0x1E, 0x38))
_READ_TAGS = SCOPES | {COMPILE_UNIT, PARTIAL_UNIT, SKELETON_UNIT, SUBPROGRAM, PARAMETER, VARIABLE}
NAME, LANGUAGE, SPECIFICATION, DECLARATION, OUTPUT, STRINGS_BASE = 0x03, 0x13, 0x47, 0x3C, 0x4B, 0x72
_READ_ATTRIBUTES = frozenset((NAME, LANGUAGE, SPECIFICATION, DECLARATION, OUTPUT, STRINGS_BASE))
GO = 0x16

STRING, INDIRECT, IMPLICIT = 0x08, 0x16, 0x21
STRING_PLACE, LINE_STRING_PLACE, STRING_INDEX, REFERENCE_FAR, FLAG_PRESENT = 0x0E, 0x1F, 0x1A, 0x10, 0x19
STRING_INDICES = frozenset((0x1A, 0x25, 0x26, 0x27, 0x28, 0x1F02))
REFERENCES = frozenset((0x11, 0x12, 0x13, 0x14, 0x15))
_FIXED = {
    0x05: 2, 0x06: 4, 0x07: 8, 0x0B: 1, 0x0C: 1, 0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8, 0x19: 0, 0x1C: 4, 0x1E: 16,
    0x20: 8, 0x21: 0, 0x24: 8, 0x25: 1, 0x26: 2, 0x27: 3, 0x28: 4, 0x29: 1, 0x2A: 2, 0x2B: 3, 0x2C: 4,
}  # fmt: skip
_OFFSETS = frozenset((0x0E, 0x17, 0x1D, 0x1F, 0x1F20, 0x1F21))
VARIABLE_LENGTH = frozenset((0x0D, 0x0F, 0x15, 0x1A, 0x1B, 0x22, 0x23, 0x1F01, 0x1F02))
#: blocks: bytes of the number that says how long they are; 0 for LEB128
BLOCKS = {0x03: 2, 0x04: 4, 0x09: 0, 0x0A: 1, 0x18: 0}
_MAX_CODES, _MAX_PAIRS = 1 << 16, 1 << 19
_MAX_ATTRIBUTES = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What differs between units: bytes of an address, of an offset, of a reference to another unit; byte order."""

    address: int
    offset: int
    far: int

    def of(self, form: int) -> int | None:
        """Bytes of a value; None if that is for the value itself to say."""
        if form == 0x01:
            return self.address
        if form in _OFFSETS:
            return self.offset
        return self.far if form == REFERENCE_FAR else _FIXED.get(form)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abbreviation:
    """The layout of an entry.

    Attributes:
        skip: its bytes, where they are always as many and nothing in them is of use; else -1.
        steps: (attribute, form) to be read; (0, -n): n bytes to be passed over.
    """

    tag: int
    has_children: bool
    skip: int
    steps: tuple[tuple[int, int], ...]


def uleb(data: bytes, at: int) -> tuple[int, int]:
    """The number in LEB128 at ``at``, and where it ends. Raises IndexError, Unreadable."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 70:
            raise Unreadable("broken debug information: a number without end")


def abbreviations(data: bytes, at: int, sizes: Sizes) -> dict[int, Abbreviation]:
    """The table that begins at ``at``. Raises IndexError and Unreadable if it is broken."""
    found: dict[int, Abbreviation] = {}
    n_pairs = 0
    while len(found) < _MAX_CODES and n_pairs < _MAX_PAIRS:
        code, at = uleb(data, at)
        if not code:
            return found
        tag, at = uleb(data, at)
        has_children = bool(data[at])
        pairs, at = _pairs(data, at + 1)
        n_pairs += 1 + len(pairs)
        found[code] = _abbreviation(tag, has_children, pairs, sizes)
    raise Unreadable("broken debug information: a table of abbreviations without end")


def _pairs(data: bytes, at: int) -> tuple[list[tuple[int, int]], int]:
    pairs: list[tuple[int, int]] = []
    while len(pairs) < _MAX_ATTRIBUTES:
        attribute, at = uleb(data, at)
        form, at = uleb(data, at)
        if form == IMPLICIT:
            _, at = uleb(data, at)
        if not attribute and not form:
            return pairs, at
        pairs.append((attribute, form))
    raise Unreadable("broken debug information: an abbreviation without end")


def _abbreviation(tag: int, has_children: bool, pairs: list[tuple[int, int]], sizes: Sizes) -> Abbreviation:
    steps: list[tuple[int, int]] = []
    passed = 0
    for attribute, form in pairs:
        size = sizes.of(form)
        if size is not None and not (tag in _READ_TAGS and attribute in _READ_ATTRIBUTES):
            passed += size
            continue
        if passed:
            steps.append((0, -passed))
            passed = 0
        steps.append((attribute, form))
    if not steps:
        return Abbreviation(tag=tag, has_children=has_children, skip=passed, steps=())
    if passed:
        steps.append((0, -passed))
    return Abbreviation(tag=tag, has_children=has_children, skip=-1, steps=tuple(steps))
