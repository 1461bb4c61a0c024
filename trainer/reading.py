"""One step of reading: cross-entropy over the tokens of packed rows, on one process or many.

    L = - sum of log p(token | those before it in its piece) / (number of counted tokens, on all ranks)

Rows are divided over ranks by whoever calls; counts and gradients are added over ranks, so that the step is the same
however they were divided. Of repository text every token counts but a piece's first, of a rollout its answer alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from trainer.collectives import all_reduce
from trainer.moe import Decoder
from trainer.muon import Muon
from trainer.packing import CHUNK, Packed, Piece, hidden_of, pack_apart
from trainer.parallel import clip_gradients

#: Ends a document in the models that have it; others have the end of a turn alone.
_ENDS = ("<|endoftext|>", "<|end_of_text|>")
#: What a rank without a row puts in its place.
_BLANK = Piece(ids=(0, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Of all ranks together. ``loss``: mean cross-entropy in nats; ``tokens``: counted ones; ``gradient_norm``: before
    clipping, 0 where nothing was learnt."""

    loss: float
    tokens: int
    gradient_norm: float = 0.0


def read(
    model: Decoder, optimizer: Muon, rows: Sequence[Sequence[Piece]], *, max_norm: float, lr_factor: float = 1.0
) -> Reading:
    """Update ``model`` by this rank's ``rows``, which may be none. All ranks call it together. ``lr_factor``: what the
    optimizer's learning rates are multiplied by, in this step alone.

    Raises ValueError if no rank has a row; CollectiveFailed when another rank fails; NonFiniteGradient before anything
    is changed.
    """
    packed, count = _in_step(rows)
    total = 0.0
    for row in packed:
        surprise = _surprise(model, row)
        share = surprise / count
        torch.autograd.backward(share)
        total += share.item()
    norm = clip_gradients(model.parameters(), max_norm)
    with _scaled(optimizer, lr_factor):
        optimizer.step()
    optimizer.zero_grad()
    return Reading(loss=_sum(total, "all-reduce of the loss"), tokens=int(count), gradient_norm=norm.item())


@torch.no_grad()
def measure(model: Decoder, rows: Sequence[Sequence[Piece]]) -> Reading:
    """The loss on this rank's ``rows``, without learning from them. Raises as ``read``."""
    packed, count = _in_step(rows)
    total = sum((_surprise(model, row) / count).item() for row in packed)
    return Reading(loss=_sum(total, "all-reduce of the loss"), tokens=int(count))


def _in_step(rows: Sequence[Sequence[Piece]]) -> tuple[list[Packed | None], float]:
    """This rank's rows, filled up with None to as many as any rank has, and the counted tokens of all ranks: passes of
    a sharded model are collectives."""
    packed: list[Packed | None] = [pack_apart(row) for row in rows]
    count = _sum(sum(len(row.target_N) for row in packed if row), "all-reduce of the number of tokens")
    if not count:
        raise ValueError("reading: no row has a token that counts")
    most = all_reduce(torch.tensor(len(packed)), "all-reduce of the number of rows", dist.ReduceOp.MAX)
    return packed + [None] * (int(most) - len(packed)), count


def _surprise(model: Decoder, row: Packed | None) -> Tensor:
    """Sum of -log p over the row's counted tokens; nothing, after the passes of a blank one, where there is no row.
    Never more than one chunk of logits is kept."""

    def of_chunk(head: Callable[[Tensor], Tensor], hidden: Tensor, target: Tensor) -> tuple[Tensor]:
        return (functional.cross_entropy(head(hidden).float(), target, reduction="none"),)

    packed = row or pack_apart([_BLANK])
    (loss_N,) = model.in_chunks(of_chunk, CHUNK, hidden_of(model, packed), packed.target_N)
    return loss_N.sum() if row else 0.0 * loss_N.sum()


def _sum(value: float, what: str) -> float:
    return float(all_reduce(torch.tensor(float(value), dtype=torch.float64), what))


@contextmanager
def _scaled(optimizer: Muon, factor: float) -> Iterator[None]:
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


# --- Requests ----------------------------------------------------------------------------------------------


def rows_of(request: Mapping[str, Any], vocabulary: int) -> list[list[Piece]]:
    """The rows of a request: lists of ``{"ids", "counted"}``. Raises ValueError for ids that the model does not have,
    and for a piece without a counted token."""
    rows = [[Piece(ids=tuple(piece["ids"]), counted=int(piece["counted"])) for piece in r] for r in request["rows"]]
    for row in rows:
        if not row:
            raise ValueError("a row without a piece")
        for piece in row:
            if not 0 <= min(piece.ids) <= max(piece.ids) < vocabulary:
                raise ValueError(f"token {max(piece.ids)}: the model has those from 0 to {vocabulary - 1}")
    return rows


def encoded(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Documents as tokens, each with its end (and its beginning, where the tokenizer marks that). What looks like a
    special token in a text is text. Raises ValueError if the tokenizer has no token that ends a text."""
    start = [i for i in tokenizer("")["input_ids"] if i == tokenizer.bos_token_id][:1]
    end = end_of_text(tokenizer)
    return [
        [*start, *tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"], end]
        for text in texts
    ]


def end_of_text(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that ends a document. Raises ValueError if there is none."""
    named = [token for token in _ENDS if token in tokenizer.all_special_tokens]
    found = tokenizer.convert_tokens_to_ids(named[0]) if named else tokenizer.eos_token_id
    if not isinstance(found, int):
        raise ValueError("the tokenizer has no token that ends a text")
    return found


def decoded(tokenizer: PreTrainedTokenizerBase, sequences: Sequence[Sequence[int]]) -> list[str | None]:
    """The text of each sequence of ids, without special tokens; None where the tokenizer does not have an id."""
    known = len(tokenizer)
    return [
        str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))
        if all(0 <= i < known for i in ids)
        else None
        for ids in sequences
    ]
