"""What the instructions of a Java method refer to.

Lengths of instructions: The Java Virtual Machine Specification, chapter 6.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from taskgen.leaks.blob import Unreadable
from taskgen.leaks.decoders.java_pool import Pool

_TABLE_SWITCH, _LOOKUP_SWITCH, _WIDE, _WIDE_INCREMENT = 170, 171, 196, 132
_BYTE, _SHORT, _LOAD, _LAST = 16, 17, 18, 201
#: ldc_w and ldc2_w, field access, calls, new, anewarray, checkcast, instanceof, multianewarray
_REFERENCES = frozenset((19, 20, *range(178, 187), 187, 189, 192, 193, 197))
_LENGTHS = bytearray([1]) * (_LAST + 1)
for _opcodes, _length in (
    ((16, 18, 169, 188, *range(21, 26), *range(54, 59)), 2),
    ((17, 19, 20, 132, 187, 189, 192, 193, 198, 199, *range(153, 169), *range(178, 185)), 3),
    ((197,), 4),
    ((185, 186, 200, 201), 5),
):
    for _opcode in _opcodes:
        _LENGTHS[_opcode] = _length


@dataclass(slots=True, kw_only=True)
class Uses:
    """What code uses: names of fields, methods and classes, and constants in their order."""

    names: set[str] = field(default_factory=set)
    constants: dict[str, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names) + len(self.constants)

    def add(self, other: Uses) -> None:
        """Count what other code uses as used here, too."""
        self.names |= other.names
        self.constants |= other.constants

    def refer(self, pool: Pool, index: int) -> None:
        """Add what a constant says."""
        self.names.update(name for name in pool.names(index) if name)
        if value := pool.value(index):
            self.constants[value] = None


def walk(pool: Pool, start: int, end: int, dynamic: Sequence[Uses]) -> Uses:
    """What the instructions in ``data[start:end]`` use; ``dynamic`` is what each bootstrap method uses.

    Raises:
        Unreadable: they are broken. LookupError, struct.error: likewise.
    """
    data, uses, seen, at = pool.data, Uses(), set(), start
    while at < end:
        op = data[at]
        if op in _REFERENCES:
            seen.add(data[at + 1] << 8 | data[at + 2])
        elif op == _LOAD:
            seen.add(data[at + 1])
        elif op == _BYTE:
            uses.constants[str(struct.unpack_from(">b", data, at + 1)[0])] = None
        elif op == _SHORT:
            uses.constants[str(struct.unpack_from(">h", data, at + 1)[0])] = None
        elif op in (_TABLE_SWITCH, _LOOKUP_SWITCH):
            at = _after_switch(data, at, start, end)
            continue
        elif op == _WIDE:
            at += 6 if data[at + 1] == _WIDE_INCREMENT else 4
            continue
        elif op > _LAST:
            raise Unreadable(f"no instruction has the code {op}")
        at += _LENGTHS[op]
    if at != end:
        raise Unreadable("the last instruction is cut short")
    for index in sorted(seen):
        uses.refer(pool, index)
        method = pool.dynamic(index)
        if method is not None:
            uses.add(dynamic[method])
    return uses


def _after_switch(data: bytes, at: int, start: int, end: int) -> int:
    """Where the instruction behind a switch begins. Its numbers begin at a multiple of four."""
    is_table = data[at] == _TABLE_SWITCH
    at += 4 - (at - start) % 4
    _, first, last = struct.unpack_from(">iii", data, at) if is_table else (*struct.unpack_from(">ii", data, at), 0)
    words: int = 3 + last - first + 1 if is_table else 2 + 2 * first
    if not 0 <= words <= (end - at) // 4:
        raise Unreadable("a switch without end")
    return at + 4 * words
