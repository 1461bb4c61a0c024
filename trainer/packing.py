"""Sequences in one row without padding: a prompt's tokens once, each sample seeing them and itself; or pieces, each of
which sees itself alone.

Dims: T tokens of the row, N sampled tokens (of all samples, one after the other), V of the vocabulary, C of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.attention import Tokens, rotations
from trainer.divergence import entropy
from trainer.moe import Decoder

#: Logits of so many tokens at a time: a vocabulary of 50,000 then takes 50 MB, not gigabytes.
CHUNK = 256


@dataclass(frozen=True, slots=True)
class Packed:
    """The row's ``ids_T``, their places in their sequences, and which tokens each may see (``mask_TT``). The sampled
    token ``target_N`` is predicted after the token at ``before_N``, and belongs to the sample ``sample_N``."""

    ids_T: Tensor
    positions_T: Tensor
    mask_TT: Tensor
    before_N: Tensor
    target_N: Tensor
    sample_N: Tensor


def pack(prompt: Sequence[int], samples: Sequence[Sequence[int]]) -> Packed:
    """A row of a prompt and its samples (token ids). A sample's last token predicts nothing, and is left out.

    Raises ValueError without a prompt, or for a sample without tokens.
    """
    if not prompt or not all(samples):
        raise ValueError("packing: a prompt and samples need tokens")
    n = len(prompt)
    ids, positions, owner = list(prompt), list(range(n)), [-1] * n
    before: list[int] = []
    for number, sample in enumerate(samples):
        before += [n - 1, *range(len(ids), len(ids) + len(sample) - 1)]
        ids += sample[:-1]
        positions += range(n, n + len(sample) - 1)
        owner += [number] * (len(sample) - 1)
    places, owners = torch.tensor(positions), torch.tensor(owner)
    sees = (owners[None, :] == -1) | (owners[:, None] == owners[None, :])
    return Packed(
        torch.tensor(ids),
        places,
        sees & (places[:, None] >= places[None, :]),
        torch.tensor(before, dtype=torch.long),
        torch.tensor([token for sample in samples for token in sample], dtype=torch.long),
        torch.tensor([i for i, sample in enumerate(samples) for _ in sample], dtype=torch.long),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A sequence of token ids of which those from ``counted`` on are to be predicted: not the first, which nothing
    stands before. Raises ValueError if there are none."""

    ids: tuple[int, ...]
    counted: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.counted < len(self.ids):
            raise ValueError(f"a piece of {len(self.ids)} tokens has none to predict from {self.counted} on")


def pack_apart(pieces: Sequence[Piece]) -> Packed:
    """A row of pieces, which do not see each other. A piece's last token predicts nothing, and is left out."""
    ids: list[int] = []
    positions: list[int] = []
    owner: list[int] = []
    before: list[int] = []
    for number, piece in enumerate(pieces):
        start, n = len(ids), len(piece.ids) - 1
        ids += piece.ids[:-1]
        positions += range(n)
        owner += [number] * n
        before += range(start + piece.counted - 1, start + n)
    places, owners = torch.tensor(positions), torch.tensor(owner)
    return Packed(
        torch.tensor(ids),
        places,
        (owners[:, None] == owners[None, :]) & (places[:, None] >= places[None, :]),
        torch.tensor(before),
        torch.tensor([token for piece in pieces for token in piece.ids[piece.counted :]]),
        torch.tensor([i for i, piece in enumerate(pieces) for _ in piece.ids[piece.counted :]]),
    )


def hidden_of(model: Decoder, packed: Packed) -> Tensor:
    """Hidden states [N, C] that predict the sampled tokens."""
    cos, sin = rotations(packed.positions_T[None], model.config)
    hidden = model.hidden(packed.ids_T[None], Tokens(cos, sin, packed.mask_TT[None, None]))
    return hidden[0, packed.before_N]


def logps_of(model: Decoder, hidden_NC: Tensor, target_N: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, [N], differentiable, and the entropy there, without gradient.

    Never more than one chunk of logits is kept.
    """

    def of_chunk(head: Callable[[Tensor], Tensor], hidden: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(hidden).float() / temperature
        return chosen(logits, target), entropy(logits)

    logp_N, entropy_N = model.in_chunks(of_chunk, CHUNK, hidden_NC, target_N)
    return logp_N, entropy_N


def chosen(logits_NV: Tensor, target_N: Tensor) -> Tensor:
    """Log-probability of each target, [N]."""
    return logits_NV.log_softmax(-1).gather(-1, target_N[:, None])[:, 0]
