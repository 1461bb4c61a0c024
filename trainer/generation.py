"""Batched generation with a static cache: the exact token ids that were sampled, and their log-probabilities.

Every prompt goes through the model once, however many samples are wanted of it; its keys and values are then copied to
the samples' rows. Rows decode together, each at its own place, and rows that have ended leave the batch. What a row
samples depends on its own seed alone, not on the rows beside it (up to the rounding of other batch sizes).

Log-probabilities are those of the distribution that was sampled from, softmax(logits / temperature): it is never cut
(no top-k, no top-p), so that ratios of a later policy to it are what they should be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trainer.attention import Cache, Tokens, rotations
from trainer.moe import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """``temperature`` 0 takes the likeliest token; ``stop_ids`` end a sample, and belong to it."""

    max_tokens: int
    temperature: float = 1.0
    stop_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.temperature < 0:
            raise ValueError(f"sampling: max_tokens = {self.max_tokens}, temperature = {self.temperature}")


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids as sampled, and the log-probability of each when it was."""

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    finish: Literal["stop", "length"]


@dataclass(slots=True)
class _Rows:
    """The rows that still decode: which samples they are, the place of their next token, and their last token."""

    which: list[int]
    places: Tensor
    last: Tensor
    cache: Cache


@torch.no_grad()
def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    ended: Callable[[int, Sequence[int]], bool] | None = None,
) -> list[list[Sample]]:
    """For each prompt (token ids), one sample for each of its seeds.

    ``ended``: told a prompt's number and a sample's ids so far, whether it stops there, as at a stop token.

    Raises ValueError for an empty prompt.
    """
    if not all(prompts):
        raise ValueError("generation: a prompt without tokens")
    flat = [seed for group in seeds for seed in group]
    if not flat:
        return [[] for _ in prompts]
    uniforms = torch.stack([_uniforms(seed, sampling.max_tokens) for seed in flat])
    prompt_of = [number for number, group in enumerate(seeds) for _ in group]
    stopped = [False] * len(flat)
    ids: list[list[int]] = [[] for _ in flat]
    logps: list[list[float]] = [[] for _ in flat]
    length = max(map(len, prompts)) + sampling.max_tokens
    logits, rows = _prefill(model, prompts, [len(group) for group in seeds], length)
    for step in range(sampling.max_tokens):
        chosen, logp = _choose(logits, uniforms[rows.which, step], sampling.temperature)
        going = []
        for row, (which, token, value) in enumerate(zip(rows.which, chosen.tolist(), logp.tolist(), strict=True)):
            ids[which].append(token)
            logps[which].append(value)
            stopped[which] = token in sampling.stop_ids or (ended is not None and ended(prompt_of[which], ids[which]))
            if not stopped[which]:
                going.append(row)
        if not going or step == sampling.max_tokens - 1:
            break
        rows = _kept(rows, going, chosen)
        logits = _decode(model, rows)
    samples = [
        Sample(tuple(i), tuple(p), "stop" if stop else "length") for i, p, stop in zip(ids, logps, stopped, strict=True)
    ]
    return _grouped(samples, [len(group) for group in seeds])


@torch.no_grad()
def log_likelihood(model: Decoder, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> float:
    """The log-probability of a sample, in nats: that ``generate`` gives these ids behind the prompt.

    Raises ValueError for a prompt without tokens, or a temperature that is not above 0.
    """
    if not prompt or temperature <= 0:
        raise ValueError(f"log-likelihood: {len(prompt)} tokens of a prompt, temperature = {temperature}")
    if not ids:
        return 0.0
    whole = torch.tensor([[*prompt, *ids]])[:, :-1]
    positions = torch.arange(whole.shape[1])[None]
    cos, sin = rotations(positions, model.config)
    mask = positions[0][:, None] >= positions
    hidden = model.hidden(whole, Tokens(cos, sin, mask[None, None]))[0, len(prompt) - 1 :]
    logp = (model.logits(hidden).float() / temperature).log_softmax(-1)
    return float(logp.gather(-1, torch.tensor(ids)[:, None]).sum())


def _uniforms(seed: int, n: int) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _prefill(model: Decoder, prompts: Sequence[Sequence[int]], copies: list[int], length: int) -> tuple[Tensor, _Rows]:
    """Logits of the first token of each sample, and rows that hold its prompt."""
    found, caches = [], []
    for prompt in prompts:
        positions = torch.arange(len(prompt))[None]
        caches.append(Cache(1, len(prompt)))
        cos, sin = rotations(positions, model.config)
        mask = positions[0][:, None] >= positions
        tokens = Tokens(cos, sin, mask[None, None], cache=caches[-1], slots=positions)
        found.append(model.logits(model.hidden(torch.tensor([prompt]), tokens)[0, -1]))
    rows = Cache(sum(copies), length)
    rows.layers = {i: x.new_zeros(rows.rows, length, *x.shape[2:]) for i, x in caches[0].layers.items()}
    for layer, buffer in rows.layers.items():
        for cache, own in zip(caches, buffer.split(copies), strict=True):  # type: ignore[no-untyped-call]
            own[:, : cache.length] = cache.layers[layer]
    index = torch.arange(len(prompts)).repeat_interleave(torch.tensor(copies))
    places = torch.tensor([len(prompt) for prompt in prompts])[index]
    return torch.stack(found)[index], _Rows(list(range(len(index))), places, places, rows)


def _kept(rows: _Rows, going: list[int], chosen: Tensor) -> _Rows:
    """The rows that go on, each with its last token; the places of those that have ended go to the last ones."""
    n = len(going)
    holes = sorted(set(range(n)).difference(going))
    order = list(range(n))
    for hole, row in zip(holes, [row for row in going if row >= n], strict=True):
        order[hole] = row
    rows.cache.keep(n, {hole: order[hole] for hole in holes})
    return _Rows([rows.which[row] for row in order], rows.places[order], chosen[order], rows.cache)


def _decode(model: Decoder, rows: _Rows) -> Tensor:
    """Logits [B, V] after each row's last token, which is written to its place."""
    places = rows.places[:, None]
    cos, sin = rotations(places, model.config)
    mask = torch.arange(int(places.max()) + 1)[None, :] <= places
    tokens = Tokens(cos, sin, mask[:, None, None], cache=rows.cache, slots=places)
    hidden = model.hidden(rows.last[:, None], tokens)
    rows.places = rows.places + 1
    return model.logits(hidden[:, -1])


def _choose(logits_BV: Tensor, uniforms_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """A token of each row by the inverse of its distribution function, and its log-probability."""
    if temperature == 0:
        logp = logits_BV.float().log_softmax(-1)
        chosen = logits_BV.argmax(-1)
    else:
        logp = (logits_BV.float() / temperature).log_softmax(-1)
        reached = logp.exp().cumsum(-1, dtype=torch.float64)
        target = uniforms_B[:, None] * reached[:, -1:]
        chosen = torch.searchsorted(reached, target, right=True)[:, 0].clamp(max=logits_BV.shape[-1] - 1)
    return chosen, logp.gather(-1, chosen[:, None])[:, 0]


def _grouped(samples: list[Sample], sizes: list[int]) -> list[list[Sample]]:
    parts = iter(samples)
    return [[next(parts) for _ in range(size)] for size in sizes]
