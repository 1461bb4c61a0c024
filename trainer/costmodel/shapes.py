"""Shapes of decoders: from published sizes to weights, and from weights to Muon's units."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainer.decoder_config import KIMI_K2, DecoderConfig
from trainer.partition import Heads
from trainer.units import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder. ``kv_rank`` > 0: multi-head latent attention with ``nope_dim``, ``rope_dim``, ``value_dim``;
    else grouped-query attention with ``kv_heads`` and ``head_dim``. ``experts`` 0: no layer has experts; else the
    first ``dense_layers`` have none. ``shared_experts`` are one matrix of that many expert widths, as in DeepSeek."""

    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    dense_layers: int = 0
    dense_width: int = 0
    experts: int = 0
    expert_width: int = 0
    shared_experts: int = 0
    qk_norm: bool = False
    tied_embeddings: bool = False


def shape_of(config: DecoderConfig) -> ModelShape:
    """The shape of the trainer's own decoder."""
    latent = config.kv_lora_rank is not None
    return ModelShape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        heads=config.num_attention_heads,
        kv_heads=0 if latent else config.num_key_value_heads,
        head_dim=0 if latent else config.head_dim,
        q_rank=config.q_lora_rank or 0,
        kv_rank=config.kv_lora_rank or 0,
        nope_dim=config.qk_nope_head_dim,
        rope_dim=config.qk_rope_head_dim,
        value_dim=config.v_head_dim,
        dense_layers=config.first_k_dense_replace,
        dense_width=config.intermediate_size,
        experts=config.n_routed_experts,
        expert_width=config.moe_intermediate_size,
        shared_experts=config.n_shared_experts,
        qk_norm=config.qk_norm,
        tied_embeddings=config.tie_word_embeddings,
    )


_KIMI_K2 = shape_of(KIMI_K2)
# Sizes as in the config.json that each model is published with. Kimi K2 is DeepSeek-V3 with other numbers.
PRESETS = {
    "kimi-k2": _KIMI_K2,
    "deepseek-v3": replace(_KIMI_K2, vocabulary=129_280, heads=128, dense_layers=3, experts=256),
    "qwen3-30b-a3b": ModelShape(
        layers=48,
        hidden=2048,
        vocabulary=151_936,
        heads=32,
        kv_heads=4,
        head_dim=128,
        experts=128,
        expert_width=768,
        qk_norm=True,
    ),
    "qwen3-235b-a22b": ModelShape(
        layers=94,
        hidden=4096,
        vocabulary=151_936,
        heads=64,
        kv_heads=4,
        head_dim=128,
        experts=128,
        expert_width=1536,
        qk_norm=True,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """``copies`` parameters of one ``shape`` (a stack of experts has three dims), and what updates them."""

    name: str
    shape: tuple[int, ...]
    copies: int
    muon: bool = True
    split: Split | None = None

    @property
    def expert(self) -> bool:
        return len(self.shape) == 3

    @property
    def numel(self) -> int:
        """Elements of all copies."""
        return self.copies * math.prod(self.shape)

    def units(self) -> Counter[tuple[int, int]]:
        """How many units of which shape all copies have; none if AdamW updates them."""
        if not self.muon:
            return Counter()
        *lead, rows, cols = self.shape
        n = self.copies * math.prod(lead)
        if self.split is None:
            return Counter({(rows, cols): n})
        by_rows = self.split.dim == -2
        shapes = Counter((size, cols) if by_rows else (rows, size) for size in self.split.sizes)
        return Counter({shape: number * n for shape, number in shapes.items()})

    def edges(self) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Of each unit of one copy of a matrix: its first row, the row after its last, its shape."""
        rows, cols = self.shape[-2:]
        if self.split is None:
            yield 0, rows, (rows, cols)
        elif self.split.dim == -2:
            for lo, hi in itertools.pairwise(itertools.accumulate(self.split.sizes, initial=0)):
                yield lo, hi, (hi - lo, cols)
        else:
            for size in self.split.sizes:
                yield 0, rows, (rows, size)


def heads_of(model: ModelShape) -> Heads:
    """The heads by which trainer.partition cuts attention projections."""
    if model.kv_rank:
        return Heads(
            n_heads=model.heads,
            n_kv_heads=model.heads,
            nope_dim=model.nope_dim,
            rope_dim=model.rope_dim,
            value_dim=model.value_dim,
            latent_dim=model.kv_rank,
        )
    dim = model.head_dim
    return Heads(n_heads=model.heads, n_kv_heads=model.kv_heads, nope_dim=dim, value_dim=dim)


def weights_of(model: ModelShape) -> list[Weights]:
    """All weights, under the names and with the units that trainer.partition gives them."""
    heads = heads_of(model)
    matrices = [
        Weights(name=f"attention.{name}", shape=shape, copies=model.layers, split=heads.split(name))
        for name, shape in _attention(model)
    ]
    n_moe = model.layers - model.dense_layers if model.experts else 0
    matrices += _gated("mlp", model.hidden, model.dense_width, model.layers - n_moe)
    matrices += _gated("shared_experts", model.hidden, model.shared_experts * model.expert_width, n_moe)
    matrices += _gated("experts", model.hidden, model.expert_width, n_moe, model.experts)
    matrices.append(Weights(name="router", shape=(model.experts, model.hidden), copies=n_moe))
    outer = Weights(name="embedding", shape=(model.vocabulary, model.hidden), copies=1, muon=False)
    head = Weights(name="head", shape=outer.shape, copies=0 if model.tied_embeddings else 1, muon=False)
    found = [*matrices, outer, head, *_vectors(model)]
    return [weights for weights in found if weights.numel]


def _attention(model: ModelShape) -> list[tuple[str, tuple[int, int]]]:
    hidden, heads = model.hidden, model.heads
    if not model.kv_rank:
        q, kv = heads * model.head_dim, model.kv_heads * model.head_dim
        return [("q_proj", (q, hidden)), ("k_proj", (kv, hidden)), ("v_proj", (kv, hidden)), ("o_proj", (hidden, q))]
    query = heads * (model.nope_dim + model.rope_dim)
    queries = [("q_a_proj", (model.q_rank, hidden)), ("q_b_proj", (query, model.q_rank))]
    return [
        *(queries if model.q_rank else [("q_proj", (query, hidden))]),
        ("kv_a_proj_with_mqa", (model.kv_rank + model.rope_dim, hidden)),
        ("kv_b_proj", (heads * (model.nope_dim + model.value_dim), model.kv_rank)),
        ("o_proj", (hidden, heads * model.value_dim)),
    ]


def _gated(name: str, hidden: int, width: int, copies: int, experts: int = 0) -> list[Weights]:
    lead = (experts,) if experts else ()
    shapes = {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
    return [Weights(name=f"{name}.{part}", shape=(*lead, *shape), copies=copies) for part, shape in shapes.items()]


def _vectors(model: ModelShape) -> list[Weights]:
    per_layer = {"norms": (2, model.hidden), "qk_norms": (2 if model.qk_norm else 0, model.head_dim)}
    if model.kv_rank:
        per_layer |= {"q_a_norm": (1, model.q_rank), "kv_a_norm": (1, model.kv_rank)}
    found = [
        Weights(name=name, shape=(size,), copies=n * model.layers, muon=False) for name, (n, size) in per_layer.items()
    ]
    return [*found, Weights(name="final_norm", shape=(model.hidden,), copies=1, muon=False)]
