"""Sizes of a decoder, with the field names of Hugging Face's configurations of DeepSeek-V3, Kimi K2 and Qwen3-MoE."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder with routed experts, in the manner of DeepSeek-V3 and Kimi K2 (arXiv 2412.19437, 2507.20534).

    Attention is multi-head latent attention if ``kv_lora_rank`` is given (then the qk_*, v_head_dim and q_lora_rank
    fields count), else grouped-query attention (``num_key_value_heads`` and ``head_dim`` count). The first
    ``first_k_dense_replace`` layers, or all without ``n_routed_experts``, have a dense MLP of ``intermediate_size``.
    ``scoring_func`` is "sigmoid" or "softmax".

    Raises ValueError for sizes that do not make a decoder.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    qk_norm: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    intermediate_size: int = 0
    first_k_dense_replace: int = 0
    n_routed_experts: int = 0
    num_experts_per_tok: int = 0
    n_shared_experts: int = 0
    moe_intermediate_size: int = 0
    scoring_func: str = "sigmoid"
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        latent = self.kv_lora_rank is not None
        needed = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"]
        needed += (
            ["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"] if latent else ["num_key_value_heads", "head_dim"]
        )
        if self.n_routed_experts:
            needed += ["num_experts_per_tok", "moe_intermediate_size"]
        if not self.n_routed_experts or self.first_k_dense_replace:
            needed.append("intermediate_size")
        missing = [name for name in needed if getattr(self, name) < 1]
        if missing:
            raise ValueError(f"decoder: {', '.join(missing)} must be 1 or more")
        if not latent and self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"decoder: {self.num_attention_heads} query heads cannot share {self.num_key_value_heads} key heads"
            )
        if self.rotary_dim % 2:
            raise ValueError(f"decoder: rotary embeddings need an even number of dims, not {self.rotary_dim}")
        if self.num_experts_per_tok > self.n_routed_experts:
            raise ValueError(f"decoder: {self.num_experts_per_tok} of {self.n_routed_experts} experts for each token")
        if self.scoring_func not in ("sigmoid", "softmax"):
            raise ValueError(f"decoder: scoring_func is 'sigmoid' or 'softmax', not {self.scoring_func!r}")

    @property
    def rotary_dim(self) -> int:
        """Dims of a head that rotate with the position."""
        return self.qk_rope_head_dim if self.kv_lora_rank is not None else self.head_dim

    def routes(self, layer: int) -> bool:
        """Whether this layer has routed experts."""
        return bool(self.n_routed_experts) and layer >= self.first_k_dense_replace


KIMI_K2 = DecoderConfig(
    vocab_size=163840,
    hidden_size=7168,
    num_hidden_layers=61,
    num_attention_heads=64,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    intermediate_size=18432,
    first_k_dense_replace=1,
    n_routed_experts=384,
    num_experts_per_tok=8,
    n_shared_experts=1,
    moe_intermediate_size=2048,
    routed_scaling_factor=2.827,
    rope_theta=50000.0,
)
"""Kimi K2's sizes: 1.03T parameters, 32B for a token (https://huggingface.co/moonshotai/Kimi-K2-Base, config.json)."""
