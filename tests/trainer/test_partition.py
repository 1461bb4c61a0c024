"""Which optimizer updates what, in which units; QK-clip."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from trainer.muon import Muon
from trainer.partition import Heads, Partition, partition
from trainer.qk_clip import clip_grouped, clip_latent, gammas, scale_rows
from trainer.units import Split

GROUPED = SimpleNamespace(hidden_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
LATENT = SimpleNamespace(
    num_attention_heads=3, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=2, v_head_dim=5, hidden_size=24
)


class Attention(nn.Module):
    def __init__(self, **rows: int) -> None:
        super().__init__()
        for name, n in rows.items():
            columns = 32 if name == "o_proj" and "k_proj" in rows else 15 if name == "o_proj" else 24
            self.add_module(name, nn.Linear(columns, n, bias=name == "q_proj"))


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(4, 20, 24))
        self.down = nn.Parameter(torch.randn(4, 24, 10))


class Decoder(nn.Module):
    def __init__(self, attention: nn.Module, tied: bool = False) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(30, 24)
        self.self_attn = attention
        self.experts = Experts()
        self.gate = nn.Linear(24, 4, bias=False)
        self.norm = nn.LayerNorm(24)
        self.lm_head = nn.Linear(24, 30, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight


def grouped(tied: bool = False) -> Decoder:
    return Decoder(Attention(q_proj=32, k_proj=16, v_proj=16, o_proj=24), tied)


def units(found: Partition) -> dict[str, Split | str]:
    return {a.name: a.split or "whole" for a in found.assignments if a.muon}


def test_grouped_attention_is_per_head_and_experts_one_by_one() -> None:
    found = partition(grouped(), Heads.of(GROUPED))
    assert units(found) == {
        "self_attn.q_proj.weight": Split(-2, (8,) * 4),
        "self_attn.k_proj.weight": Split(-2, (8,) * 2),
        "self_attn.v_proj.weight": Split(-2, (8,) * 2),
        "self_attn.o_proj.weight": Split(-1, (8,) * 4),
        "experts.gate_up": Split(-2, (10, 10)),
        "experts.down": "whole",
        "gate.weight": "whole",
    }
    assert {a.name: a.why for a in found.assignments if not a.muon} == {
        "embed_tokens.weight": "embedding",
        "self_attn.q_proj.bias": "vector",
        "norm.weight": "vector",
        "norm.bias": "vector",
        "lm_head.weight": "output head",
    }


def test_latent_attention_keeps_its_fused_parts_apart() -> None:
    attention = Attention(q_a_proj=9, q_b_proj=24, kv_a_proj_with_mqa=12, kv_b_proj=33, o_proj=24)
    found = units(partition(Decoder(attention), Heads.of(LATENT)))
    assert found["self_attn.q_a_proj.weight"] == "whole"
    assert found["self_attn.q_b_proj.weight"] == Split(-2, (8,) * 3)
    assert found["self_attn.kv_a_proj_with_mqa.weight"] == Split(-2, (10, 2))
    assert found["self_attn.kv_b_proj.weight"] == Split(-2, (6, 5) * 3)
    assert found["self_attn.o_proj.weight"] == Split(-1, (5,) * 3)


def test_tied_embeddings_are_one_parameter_for_adamw() -> None:
    found = partition(grouped(tied=True), Heads.of(GROUPED))
    assert [a.name for a in found.assignments if a.why in ("embedding", "output head")] == ["embed_tokens.weight"]


def test_the_groups_go_into_the_optimizer_and_the_table_shows_them() -> None:
    model = grouped()
    found = partition(model, Heads.of(GROUPED)).assigning("gate.weight", muon=False)
    optimizer = Muon(found.groups(model, muon={"lr": 0.01}, adamw={"lr": 1e-3}), splits=found.splits)
    assert [(group["algorithm"], group["lr"], len(group["params"])) for group in optimizer.param_groups] == [
        ("muon", 0.01, 6),
        ("adamw", 1e-3, 6),
    ]
    lines = found.table().splitlines()
    assert len(lines) == 12
    assert "4 units of 8 rows" in next(line for line in lines if "q_proj.weight" in line)
    assert "chosen" in next(line for line in lines if line.startswith("gate.weight"))


def test_wrong_partitions_are_refused_with_all_faults() -> None:
    model = grouped()
    good = partition(model, Heads.of(GROUPED))
    by_name = {a.name: a for a in good.assignments}
    wrong = [a for a in good.assignments if a.name != "experts.down"]
    wrong += [by_name["gate.weight"], replace(by_name["gate.weight"], name="gone.weight")]
    wrong = [replace(a, muon=True) if a.name == "norm.weight" else a for a in wrong]
    wrong = [replace(a, shape=(31, 24)) if a.name == "lm_head.weight" else a for a in wrong]
    with pytest.raises(ValueError, match="partition: ") as caught:
        Partition(tuple(wrong)).check(model)
    for fault in (
        "gate.weight: assigned 2 times",
        "experts.down: not assigned",
        "gone.weight: the model has no such",
        "norm.weight: Muon is for matrices",
        r"lm_head.weight: has shape (30, 24), the partition says (31, 24)",
    ):
        assert fault in str(caught.value)
    with pytest.raises(ValueError, match=r"q_proj.weight: .* add up to 27"):
        partition(model, Heads(n_heads=3, n_kv_heads=2, nope_dim=9, value_dim=8))
    with pytest.raises(ValueError, match="no trainable parameter 'nothing'"):
        good.assigning("nothing", muon=True)
    with pytest.raises(ValueError, match="has no num_attention_heads"):
        Heads.of(SimpleNamespace(hidden_size=3))


@dataclass
class Logits:
    """The largest logit of every head for fixed inputs."""

    x: torch.Tensor
    head_dim: int

    def of(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        queries = (self.x @ q.T).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)
        keys = (self.x @ k.T).unflatten(-1, (-1, self.head_dim)).transpose(0, 1)
        keys = keys.repeat_interleave(len(queries) // len(keys), 0)
        return (queries @ keys.mT).flatten(1).amax(1)


def test_qk_clip_bounds_the_logits_and_leaves_small_heads_alone() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(32, 24), torch.randn(16, 24)
    q[:8] *= 40  # the first head's logits are far too large
    logits = Logits(torch.randn(10, 24), 8)
    before = logits.of(q, k)
    tau = float(before[1:].max()) + 1
    clip_grouped(q, k, gammas(before, tau).tolist(), 2, 8, rank=0)
    after = logits.of(q, k)
    assert torch.allclose(after[0], torch.tensor(tau), rtol=1e-4)
    assert torch.allclose(after[1:], before[1:], rtol=1e-4)


def test_qk_clip_of_latent_attention_spares_values_and_shared_keys() -> None:
    q_b, kv_b = torch.ones(3 * 8, 4), torch.ones(3 * 11, 4)
    clip_latent(q_b, kv_b, [0.25, 1.0, 1.0], nope_dim=6, rope_dim=2, value_dim=5, rank=0)
    assert q_b[:, 0].tolist() == [0.5] * 6 + [0.25] * 2 + [1.0] * 16
    assert kv_b[:, 0].tolist() == [0.5] * 6 + [1.0] * 27


def test_qk_clip_refuses_other_numbers_of_heads() -> None:
    with pytest.raises(ValueError, match="2 blocks of rows, but 3 factors"):
        scale_rows("q", torch.ones(4, 2), [2, 2], [1.0, 1.0, 0.5], rank=0)
