"""Routed experts: which tokens go to which expert, and an exchange of tokens where experts lie on several ranks.

Dims: N tokens of this rank, C of the model, E experts, K experts for a token, I inside an expert, R ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from trainer.collectives import all_reduce, exchange_rows, naming
from trainer.decoder_config import DecoderConfig
from trainer.units import to_local


class Router(nn.Module):
    """The K experts with the highest score + bias; their weights are of the scores alone.

    ``load`` counts the tokens sent to each expert since the last ``rebalance``, which moves the bias of those with more
    than the mean down, of the others up (auxiliary-loss-free balancing, arXiv 2408.15664).
    """

    e_score_correction_bias: Tensor
    load: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.top_k, self.sigmoid = config.num_experts_per_tok, config.scoring_func == "sigmoid"
        self.normalised, self.scaling = config.norm_topk_prob, config.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        nn.init.normal_(self.weight, std=config.initializer_range)
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))
        self.register_buffer("load", torch.zeros(config.n_routed_experts), persistent=False)

    def forward(self, x_NC: Tensor) -> tuple[Tensor, Tensor]:
        """The chosen experts and their weights, both [N, K]; in float32, for close calls."""
        logits = functional.linear(x_NC.float(), self.weight.float())
        scores = logits.sigmoid() if self.sigmoid else logits.softmax(-1)
        chosen = (scores.detach() + self.e_score_correction_bias).topk(self.top_k, dim=-1).indices
        self.load += torch.bincount(chosen.flatten(), minlength=len(self.load))
        weights = scores.gather(-1, chosen)
        if self.normalised:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * self.scaling


@torch.no_grad()
def rebalance(model: nn.Module, speed: float = 1e-3) -> None:
    """After a step: move the routers' biases by ``speed`` against the load of all ranks, and begin a new count."""
    routers = [module for module in model.modules() if isinstance(module, Router)]
    if not routers:
        return
    loads = all_reduce(torch.stack([router.load for router in routers]), "all-reduce of the experts' load")
    for router, load in zip(routers, loads, strict=True):
        router.e_score_correction_bias += speed * torch.sign(load.mean() - load)
        router.load.zero_()


class Experts(nn.Module):
    """E gated MLPs, stacked. Its parameters and its call are those of Hugging Face's stacked experts, whose place it
    can take. With ``group``, a rank has its E/R experts, in the order of ranks, and tokens are sent to them.

    An expert without tokens takes part in autograd, with a gradient of zeros: FSDP waits for it on every rank.
    """

    def __init__(self, n_experts: int, width: int, inner: int, std: float = 0.02) -> None:
        super().__init__()
        self.n_experts = n_experts
        self.group: dist.ProcessGroup | None = None
        self.gate_up_proj = nn.Parameter(torch.empty(n_experts, 2 * inner, width))
        self.down_proj = nn.Parameter(torch.empty(n_experts, width, inner))
        nn.init.normal_(self.gate_up_proj, std=std)
        nn.init.normal_(self.down_proj, std=std)

    def forward(self, x_NC: Tensor, chosen_NK: Tensor, weights_NK: Tensor) -> Tensor:
        order = chosen_NK.flatten().argsort(stable=True)
        tokens = order // chosen_NK.shape[1]
        counts_E = torch.bincount(chosen_NK.flatten(), minlength=self.n_experts)
        sent = x_NC[tokens]
        if self.group is None:
            out = self._run(sent, counts_E.tolist())
        else:
            out = self._run_elsewhere(sent, counts_E, self.group)
        weighted = out.float() * weights_NK.flatten()[order, None].float()
        return torch.zeros_like(x_NC, dtype=torch.float32).index_add(0, tokens, weighted).to(x_NC.dtype)

    def _run_elsewhere(self, sent: Tensor, counts_E: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Rows to the ranks of their experts and back; ``sent`` is in the order of experts."""
        ranks = group.size()
        received_counts = torch.empty_like(counts_E)
        with naming("all-to-all of how many tokens go to which expert"):
            dist.all_to_all_single(received_counts, counts_E, group=group)
        per_source = received_counts.view(ranks, -1)
        outgoing, incoming = counts_E.view(ranks, -1).sum(1).tolist(), per_source.sum(1).tolist()
        received = exchange_rows(sent, outgoing, incoming, group, "all-to-all of tokens to their experts")
        # From (source, expert) to (expert, source): each expert's rows side by side.
        local = torch.arange(per_source.shape[1], device=sent.device).repeat(ranks)
        by_expert = local.repeat_interleave(received_counts).argsort(stable=True)
        out = self._run(received[by_expert], per_source.sum(0).tolist())
        back = torch.empty_like(by_expert)
        back[by_expert] = torch.arange(len(by_expert), device=sent.device)
        return exchange_rows(out[back], incoming, outgoing, group, "all-to-all of the experts' results")

    def _run(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Each expert on its rows, which stand one after the other."""
        gates_and_ups, downs = (to_local(weight).unbind() for weight in (self.gate_up_proj, self.down_proj))
        out = []
        for x, gate_up, down in zip(torch.split_with_sizes(rows, counts), gates_and_ups, downs, strict=True):
            gate, up = functional.linear(x, gate_up).chunk(2, dim=-1)
            out.append(functional.linear(functional.silu(gate) * up, down))
        return torch.cat(out)
