"""Rows of tokens made of documents, in an order that depends on the seed and on where the run stands alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Documents that are tokenized at one time.
AHEAD = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that see each other alone; those from ``counted`` on are learnt."""

    ids: tuple[int, ...]
    counted: int


Row = tuple[Piece, ...]


@dataclass(slots=True, kw_only=True)
class Place:
    """Where reading stands: in which pass over the documents, how many of it are read whole, and how many tokens of the
    next one are."""

    epoch: int = 0
    documents: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents by their numbers, from 0.

    Attributes:
        size: how many there are.
        pieces: some of them, by number, as tokens.
        cuts: a document that does not fit into a row goes on in the next one; without it, rows hold whole documents,
            and none may be longer than a row.
    """

    size: int
    pieces: Callable[[Sequence[int]], list[Piece]]
    cuts: bool


class Reader:
    """Goes through a corpus again and again, each time in another order, and moves ``place`` on as it does."""

    def __init__(self, corpus: Corpus, place: Place, *, length: int, seed: int) -> None:
        self.place = place
        self._corpus, self._length, self._seed = corpus, length, seed
        self._ready: dict[tuple[int, int], Piece] = {}
        self._order: tuple[int, list[int]] | None = None

    def rows(self, n: int) -> list[Row]:
        """The next ``n`` rows."""
        return [self._row() for _ in range(n)]

    def _row(self) -> Row:
        row: list[Piece] = []
        left = self._length
        while left > 1:
            piece, place = self._next(), self.place
            if not self._corpus.cuts and len(piece.ids) > left:
                break
            # The last token of a part is the first of the next one, as what stands before the rest.
            part = piece.ids[place.tokens : place.tokens + left]
            row.append(Piece(part, piece.counted))
            left -= len(part)
            if place.tokens + len(part) < len(piece.ids):
                place.tokens += len(part) - 1
            else:
                place.documents, place.tokens = place.documents + 1, 0
                if place.documents == self._corpus.size:
                    place.epoch, place.documents = place.epoch + 1, 0
        return tuple(row)

    def _next(self) -> Piece:
        key = self.place.epoch, self.place.documents
        if key not in self._ready:
            order = self._order_of(self.place.epoch)
            numbers = range(self.place.documents, min(self.place.documents + AHEAD, len(order)))
            pieces = self._corpus.pieces([order[i] for i in numbers])
            self._ready = {(self.place.epoch, i): piece for i, piece in zip(numbers, pieces, strict=True)}
        return self._ready[key]

    def _order_of(self, epoch: int) -> list[int]:
        if self._order is None or self._order[0] != epoch:
            order = list(range(self._corpus.size))
            random.Random(f"{self._seed} {epoch}").shuffle(order)
            self._order = epoch, order
        return self._order[1]


def rows_once(pieces: Sequence[Piece], *, length: int, n: int) -> list[Row]:
    """The first ``n`` rows of pieces in their order, each piece cut to ``length`` tokens."""
    rows: list[list[Piece]] = []
    left = 0
    for piece in pieces:
        part = Piece(piece.ids[:length], piece.counted)
        if len(part.ids) <= part.counted:
            continue  # nothing of it that counts is left
        if len(part.ids) > left:
            if len(rows) == n:
                break
            rows.append([])
            left = length
        rows[-1].append(part)
        left -= len(part.ids)
    return [tuple(row) for row in rows]
