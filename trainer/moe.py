"""A compact decoder with routed experts, in the manner of DeepSeek-V3 and Kimi K2: small enough to read, real enough
to train. From test size to 1T parameters (on the meta device) by its configuration alone.

Module and parameter names are Hugging Face's, so that their weights load (those with rotary dims in halves).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainer.attention import GroupedQueryAttention, LatentAttention, Tokens, tokens_at
from trainer.decoder_config import DecoderConfig
from trainer.experts import Experts, Router
from trainer.units import layout_of, to_local


class GatedMLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class MixtureOfExperts(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.moe_intermediate_size
        self.gate = Router(config)
        self.experts = Experts(config.n_routed_experts, width, inner, config.initializer_range)
        self.shared_experts = GatedMLP(width, config.n_shared_experts * inner) if config.n_shared_experts else None

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_NC = x_BTC.flatten(0, 1)
        out: Tensor = self.experts(x_NC, *self.gate(x_NC)).view_as(x_BTC)
        return out + self.shared_experts(x_BTC) if self.shared_experts is not None else out


class Block(nn.Module):
    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = (GroupedQueryAttention if config.kv_lora_rank is None else LatentAttention)(config, layer)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        dense = not config.routes(layer)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size) if dense else MixtureOfExperts(config)
        self.recompute = False

    def forward(self, x_BTC: Tensor, tokens: Tokens) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            out: Tensor = checkpoint(self._forward, x_BTC, tokens, use_reentrant=False)
            return out
        return self._forward(x_BTC, tokens)

    def _forward(self, x_BTC: Tensor, tokens: Tokens) -> Tensor:
        x_BTC = x_BTC + self.self_attn(self.input_layernorm(x_BTC), tokens)
        out: Tensor = x_BTC + self.mlp(self.post_attention_layernorm(x_BTC))
        return out


class Decoder(nn.Module):
    """Token ids [B, T] to logits [B, T, V]. With ``cp_group``, each rank gives the tokens of ``positions_T`` of the
    same sequences (trainer/parallel.py: ``share_of``)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.cp_group: dist.ProcessGroup | None = None
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def blocks(self) -> Iterator[Block]:
        return (layer for layer in self.layers if isinstance(layer, Block))

    def forward(self, ids_BT: Tensor, positions_T: Tensor | None = None) -> Tensor:
        if positions_T is None:
            positions_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        return self.logits(self.hidden(ids_BT, tokens_at(positions_T, self.config, self.cp_group)))

    def hidden(self, ids_BT: Tensor, tokens: Tokens) -> Tensor:
        """What the last layer leaves, [B, T, C]."""
        x_BTC: Tensor = self.embed_tokens(ids_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC, tokens)
        return x_BTC

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [..., V] of hidden states [..., C]: of some tokens alone, where only these count."""
        return self._head(hidden)

    def in_chunks(
        self, of_chunk: Callable[..., tuple[Tensor, ...]], size: int, hidden_NC: Tensor, *others_N: Tensor
    ) -> tuple[Tensor, ...]:
        """``of_chunk(head, hidden, *others)`` of ``size`` tokens at a time, put together; ``head`` makes logits.

        A chunk is computed again in the backward pass, so that the logits of no more than one are kept. It is one call
        of the model however many chunks there are: ranks of a sharded one stay in step with other numbers of tokens.
        """
        found = [
            checkpoint(of_chunk, self._head, *chunks, use_reentrant=False)
            for chunks in zip(*(tensor.split(size) for tensor in (hidden_NC, *others_N)), strict=True)  # type: ignore[no-untyped-call]
        ]
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))

    def _head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.norm(hidden))
        return logits


@torch.no_grad()
def init_weights(model: nn.Module, seed: int, std: float = 0.02) -> None:
    """Matrices from a normal distribution, vectors of norms 1, biases 0: the same numbers on any mesh, and without a
    rank ever holding more than one matrix whole. Also buffers get their first values (zeros)."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    for name, parameter in model.named_parameters():
        local = to_local(parameter)
        if parameter.ndim < 2:
            local.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        layout = layout_of(name, parameter, rank)
        box = layout.boxes[layout.ranks.index(rank)]
        for index, matrix in _matrices(local.view(-1, *local.shape[-2:])):
            generator = torch.Generator().manual_seed(_seed(name, seed, index + box.lo[0] * (parameter.ndim > 2)))
            whole = torch.randn(parameter.shape[-2:], generator=generator)
            rows, cols = (slice(a, b) for a, b in zip(box.lo[-2:], box.hi[-2:], strict=True))
            matrix.copy_(whole[rows, cols].mul_(std))
    for buffer in model.buffers():
        buffer.zero_()


def _matrices(stack: Tensor) -> Iterator[tuple[int, Tensor]]:
    return enumerate(stack) if stack.numel() else iter(())


def _seed(name: str, seed: int, index: int) -> int:
    return zlib.crc32(f"{seed} {name} {index}".encode())
