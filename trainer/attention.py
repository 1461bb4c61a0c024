"""Attention with rotary positions: grouped-query and multi-head latent, on sequences that several ranks may share.

Where ranks share a sequence (context parallel), each has the queries of its own tokens, and gets the keys and values of
all by an all-gather whose gradient is summed back. In latent attention the compressed latents are gathered, not the
keys and values that are made of them: fewer bytes for the expansion done on each rank.

Dims: B sequences, T tokens of this rank, S tokens of all ranks, H heads, D of a head, C of the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from trainer.collectives import gather_rows
from trainer.decoder_config import DecoderConfig


class Cache:
    """What attention keeps of earlier tokens, in buffers of a fixed length: [rows, length, ...] for each layer."""

    def __init__(self, rows: int, length: int) -> None:
        self.rows, self.length = rows, length
        self.layers: dict[int, Tensor] = {}

    def put(self, layer: int, values_BTX: Tensor, slots_BT: Tensor) -> Tensor:
        """Write the values of T tokens of each row to its slots; returns the whole buffer."""
        if layer not in self.layers:
            self.layers[layer] = values_BTX.new_zeros(self.rows, self.length, *values_BTX.shape[2:])
        buffer = self.layers[layer][: self.rows]
        buffer[torch.arange(len(slots_BT), device=slots_BT.device)[:, None], slots_BT] = values_BTX
        return buffer

    def keep(self, rows: int, moved: dict[int, int]) -> None:
        """Keep the first ``rows`` rows, once those in ``moved`` have taken the values of others: {row: of which}."""
        self.rows = rows
        if moved:
            to, of = list(moved), list(moved.values())
            for buffer in self.layers.values():
                buffer[to] = buffer[of]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Where the tokens stand: the rotation of each (``cos``, ``sin`` [B, T, 1, D]) and the keys that each may see
    (``mask`` [B, 1, T, S]), with a B of 1 where all rows are alike. ``group``: the ranks that have other tokens of the
    same sequences. ``cache``: earlier tokens, and the ``slots`` [B, T] of these."""

    cos: Tensor
    sin: Tensor
    mask: Tensor
    group: dist.ProcessGroup | None = None
    cache: Cache | None = None
    slots: Tensor | None = None

    def everything(self, values_BTX: Tensor, layer: int, name: str) -> Tensor:
        """[B, S, X], of all tokens that there are, from the [B, T, X] of these."""
        if self.cache is not None:
            assert self.slots is not None
            return self.cache.put(layer, values_BTX, self.slots)[:, : self.mask.shape[-1]]
        if self.group is None:
            return values_BTX
        return gather_rows(values_BTX.transpose(0, 1), self.group, name).transpose(0, 1)


def tokens_at(positions_T: Tensor, config: DecoderConfig, group: dist.ProcessGroup | None) -> Tokens:
    """Tokens of whole sequences. ``positions_T``: places of this rank's tokens in their sequence, of one length on all
    ranks of ``group``; each token sees those before it."""
    everybody = positions_T if group is None else gather_rows(positions_T, group, "all-gather of positions")
    mask = positions_T[:, None] >= everybody[None, :]
    cos, sin = rotations(positions_T[None], config)
    return Tokens(cos, sin, mask[None, None], group)


def rotations(positions_BT: Tensor, config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B, T, 1, D] for ``rotate``."""
    frequencies = torch.arange(0, config.rotary_dim, 2, device=positions_BT.device, dtype=torch.float32)
    angles = positions_BT.float()[..., None] / config.rope_theta ** (frequencies / config.rotary_dim)
    angles = torch.cat((angles, angles), -1)[:, :, None]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, tokens: Tokens) -> Tensor:
    """[B, T, H, D], each pair of dims (i, i + D/2) turned by its angle."""
    first, second = x.chunk(2, dim=-1)
    return x * tokens.cos.to(x.dtype) + torch.cat((-second, first), -1) * tokens.sin.to(x.dtype)


class Attention(nn.Module):
    """What both kinds share: where ``watches`` is set, ``max_logits`` [H] keeps the largest logit of each head since it
    was last set to 0 (trainer/qk_clip.py)."""

    max_logits: Tensor

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.watches, self.layer = False, layer
        self.register_buffer("max_logits", torch.zeros(config.num_attention_heads), persistent=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: Tokens) -> Tensor:
        """[B, T, H D] from q [B, T, H, D], k and v [B, S, G, D] with G a divisor of H."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if self.watches:
            with torch.no_grad():
                self._watch(q, k.repeat_interleave(q.shape[1] // k.shape[1], 1), tokens.mask)
        shares = k.shape[1] < q.shape[1]
        if q.shape[2] == 1:
            # Heads that share keys, as so many queries of one head: the kernel then reads the keys once, not once each.
            out = functional.scaled_dot_product_attention(q.view(*k.shape[:2], -1, q.shape[-1]), k, v, tokens.mask)
            return out.reshape(len(q), 1, -1)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=tokens.mask, enable_gqa=shares)
        return out.transpose(1, 2).flatten(2)

    def _watch(self, q: Tensor, k: Tensor, mask: Tensor) -> None:
        logits = (q @ k.mT).float() / q.shape[-1] ** 0.5
        largest = logits.masked_fill(~mask, float("-inf")).amax((0, 2, 3))
        torch.maximum(self.max_logits, largest, out=self.max_logits)


class GroupedQueryAttention(Attention):
    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.head_dim, width, kv_heads = config.head_dim, config.hidden_size, config.num_key_value_heads
        self.q_proj = nn.Linear(width, config.num_attention_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, width, bias=False)
        norm = (lambda: nn.RMSNorm(self.head_dim, config.rms_norm_eps)) if config.qk_norm else nn.Identity
        self.q_norm, self.k_norm = norm(), norm()

    def forward(self, x_BTC: Tensor, tokens: Tokens) -> Tensor:
        q, k, v = (p(x_BTC).unflatten(-1, (-1, self.head_dim)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(self.q_norm(q), tokens), rotate(self.k_norm(k), tokens)
        keys_and_values = tokens.everything(torch.stack((k, v), -2), self.layer, "all-gather of keys and values")
        k, v = keys_and_values.unbind(-2)
        out: Tensor = self.o_proj(self.attend(q, k, v, tokens))
        return out


class LatentAttention(Attention):
    """Keys and values of all heads come from one latent of ``kv_lora_rank`` dims and one rotary key (DeepSeek-V2)."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__(config, layer)
        assert config.kv_lora_rank is not None
        width, heads, self.latent = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
        self.nope, self.rope, self.value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        query = heads * (self.nope + self.rope)
        self.compressed = config.q_lora_rank is not None
        if config.q_lora_rank is not None:
            self.q_a_proj = nn.Linear(width, config.q_lora_rank, bias=False)
            self.q_a_layernorm = nn.RMSNorm(config.q_lora_rank, config.rms_norm_eps)
            self.q_b_proj = nn.Linear(config.q_lora_rank, query, bias=False)
        else:
            self.q_proj = nn.Linear(width, query, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(width, self.latent + self.rope, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(self.latent, config.rms_norm_eps)
        self.kv_b_proj = nn.Linear(self.latent, heads * (self.nope + self.value), bias=False)
        self.o_proj = nn.Linear(heads * self.value, width, bias=False)

    def forward(self, x_BTC: Tensor, tokens: Tokens) -> Tensor:
        queries = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_BTC))) if self.compressed else self.q_proj(x_BTC)
        q_nope, q_rope = queries.unflatten(-1, (-1, self.nope + self.rope)).split([self.nope, self.rope], -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x_BTC).split([self.latent, self.rope], -1)
        k_rope = rotate(k_rope[:, :, None], tokens)[:, :, 0]
        latents = torch.cat((self.kv_a_layernorm(latent), k_rope), -1)
        gathered = tokens.everything(latents, self.layer, "all-gather of latents")
        latent, k_rope = gathered.split_with_sizes([self.latent, self.rope], -1)
        k_nope, v = (
            self.kv_b_proj(latent).unflatten(-1, (-1, self.nope + self.value)).split([self.nope, self.value], -1)
        )
        k = torch.cat((k_nope, k_rope[:, :, None].expand(*k_nope.shape[:-1], -1)), -1)
        out: Tensor = self.o_proj(self.attend(torch.cat((q_nope, rotate(q_rope, tokens)), -1), k, v, tokens))
        return out
