"""Which lines of a file a patch added or changed.

The patience method (Bram Cohen's): lines that are in both versions exactly once are anchors, as far as they keep their
order, and grow over the equal lines beside them. Never slower than sorting, whatever a hostile patch repeats; a line
that it calls unchanged is one, while a few unchanged ones may be called changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise


def changed_lines(old: bytes | None, new: bytes) -> frozenset[int]:
    """The lines of ``new``, from 1, that are not in ``old``; None: there was no file."""
    before, after = (old or b"").splitlines(), new.splitlines()
    kept: set[int] = set()
    # Both ends are anchors as well.
    anchors = [(-1, -1), *_anchors(before, after), (len(before), len(after))]
    for (i, j), (next_i, next_j) in pairwise(anchors):
        low_i, low_j = i + 1, j + 1
        while low_i < next_i and low_j < next_j and before[low_i] == after[low_j]:
            kept.add(low_j)
            low_i, low_j = low_i + 1, low_j + 1
        high_i, high_j = next_i - 1, next_j - 1
        while high_i >= low_i and high_j >= low_j and before[high_i] == after[high_j]:
            kept.add(high_j)
            high_i, high_j = high_i - 1, high_j - 1
        kept.add(next_j)
    return frozenset(n + 1 for n in range(len(after)) if n not in kept)


def _anchors(before: Sequence[bytes], after: Sequence[bytes]) -> list[tuple[int, int]]:
    """Pairs of equal lines, rising on both sides: the longest such run of lines that are unique on both sides."""
    once = {line for line, n in Counter(before).items() if n == 1} & {
        line for line, n in Counter(after).items() if n == 1
    }
    place = {line: n for n, line in enumerate(after) if line in once}
    pairs = [(n, place[line]) for n, line in enumerate(before) if line in once]
    ends: list[int] = []  # the smallest end of a rising run of each length, and which pair it is
    last: list[int] = []
    previous: list[int] = []
    for index, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        previous.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [j]
        last[length : length + 1] = [index]
    found = []
    index = last[-1] if last else -1
    while index >= 0:
        found.append(pairs[index])
        index = previous[index]
    return found[::-1]
