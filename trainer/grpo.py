"""One step of policy optimisation on groups of samples: what is learnt from them, on one process or many.

Groups are divided over ranks by whoever calls; counts and gradients are added over ranks, so that the step is the same
however they were divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.advantage import Scaling, advantages, has_signal
from trainer.collectives import all_reduce
from trainer.moe import Decoder
from trainer.muon import Muon
from trainer.objective import (
    PolicyOptions,
    Term,
    kl_estimate,
    off_policy_weights,
    policy_term,
    reverse_kl_term,
)
from trainer.packing import Packed, hidden_of, logps_of, pack
from trainer.parallel import clip_gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The samples of one prompt: token ids, the log-probabilities that they were sampled with, and rewards (None: not
    known, see ``trainer.advantage``)."""

    prompt: tuple[int, ...]
    samples: tuple[tuple[int, ...], ...]
    behaviour: tuple[tuple[float, ...], ...]
    rewards: tuple[float | None, ...]

    @property
    def has_signal(self) -> bool:
        return has_signal(self.rewards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``passes``: updates on the same groups; ``kl``: weight of the divergence from a reference model; ``cap``: bound
    of the importance weights of samples that an older policy made."""

    policy: PolicyOptions = field(default_factory=PolicyOptions)
    scaling: Scaling = Scaling.NONE
    temperature: float = 1.0
    passes: int = 1
    kl: float = 0.0
    cap: float = 2.0
    max_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.passes < 1:
            raise ValueError(f"passes = {self.passes}: must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Of a step, over all ranks: means over sampled tokens, but ``reward`` over rollouts with one."""

    loss: float
    reward: float
    entropy: float
    kl: float
    lag: float  # mean |log p - log mu|: how far the policy is from the one that sampled
    gradient_norm: float
    tokens: int


@dataclass(slots=True)
class _Row:
    """A group, packed. ``counts``: False for a row that only keeps this rank in step with the others."""

    packed: Packed
    gained_N: Tensor
    behaviour_N: Tensor
    counts: bool = True
    old_N: Tensor = field(default_factory=lambda: torch.zeros(0))
    reference_N: Tensor | None = None

    def policy_term(self, logp_N: Tensor, settings: Settings) -> Term:
        weights_N = off_policy_weights(self.old_N, self.behaviour_N, settings.cap)
        return policy_term(logp_N, self.old_N, self.gained_N * weights_N, self.packed.sample_N, settings.policy)


def step(
    model: Decoder,
    optimizer: Muon,
    groups: Sequence[Group],
    settings: Settings,
    *,
    reference: Decoder | None = None,
) -> Metrics:
    """Update ``model`` by this rank's ``groups``, which may be none. All ranks call it together.

    Raises ValueError if a divergence from a reference is wanted and there is none; CollectiveFailed when another rank
    fails; NonFiniteGradient before anything is changed.
    """
    if settings.kl and reference is None:
        raise ValueError("a divergence from the reference is wanted (kl), but there is no reference model")
    rows = _in_step([row for group in groups if (row := _row(group, settings)) is not None])
    for row in rows:
        row.old_N = _known_logps(model, row, settings)
        if settings.kl and reference is not None:
            row.reference_N = _known_logps(reference, row, settings)
    earned = [reward for group in groups for reward in group.rewards if reward is not None]
    for _ in range(settings.passes - 1):
        _update(model, optimizer, rows, settings, earned)
    return _update(model, optimizer, rows, settings, earned)


def _row(group: Group, settings: Settings) -> _Row | None:
    """What a group teaches: rollouts whose reward is not known have no part in it."""
    known = [i for i, reward in enumerate(group.rewards) if reward is not None]
    if not group.has_signal:
        return None
    packed = pack(group.prompt, [group.samples[i] for i in known])
    gained = torch.tensor(advantages([group.rewards[i] for i in known], settings.scaling))
    behaviour_N = torch.tensor([logp for i in known for logp in group.behaviour[i]])
    return _Row(packed, gained[packed.sample_N], behaviour_N)


def _in_step(rows: list[_Row]) -> list[_Row]:
    """As many rows on every rank: a sharded model's passes are collectives."""
    most = all_reduce(torch.tensor(len(rows)), "all-reduce of the number of rows", dist.ReduceOp.MAX)
    blanks = int(most) - len(rows)
    return rows + [_Row(pack([0], [[0]]), torch.zeros(1), torch.zeros(1), counts=False) for _ in range(blanks)]


@torch.no_grad()
def _known_logps(model: Decoder, row: _Row, settings: Settings) -> Tensor:
    return logps_of(model, hidden_of(model, row.packed), row.packed.target_N, settings.temperature)[0]


def _update(
    model: Decoder, optimizer: Muon, rows: Sequence[_Row], settings: Settings, earned: Sequence[float]
) -> Metrics:
    counted = [row for row in rows if row.counts]
    counts = _summed([row.policy_term(row.old_N, settings).count for row in counted], [len(r.old_N) for r in counted])
    sums = torch.zeros(4)  # of loss shares, entropies, divergences, lags
    for row in rows:
        logp_N, entropy_N = logps_of(model, hidden_of(model, row.packed), row.packed.target_N, settings.temperature)
        if not row.counts:
            torch.autograd.backward(0.0 * logp_N.sum())
            continue
        loss = row.policy_term(logp_N, settings).total / counts[0]
        if row.reference_N is not None:
            loss = loss + settings.kl * reverse_kl_term(logp_N, row.reference_N).total / counts[1]
            sums[2] += kl_estimate(logp_N, row.reference_N) * len(logp_N)
        torch.autograd.backward(loss)
        sums[0] += loss.detach()
        sums[1] += entropy_N.sum()
        sums[3] += (logp_N.detach() - row.behaviour_N).abs().sum()
    norm = clip_gradients(model.parameters(), settings.max_norm)
    if counts[1]:
        optimizer.step()
    optimizer.zero_grad()
    sums = torch.cat((sums, torch.tensor([sum(earned), float(len(earned))])))
    all_reduce(sums, "all-reduce of a step's metrics")
    loss_sum, entropies, divergences, lags, reward, n = sums.tolist()
    tokens = counts[1] or 1.0
    return Metrics(
        loss=loss_sum,
        reward=reward / max(n, 1.0),
        entropy=entropies / tokens,
        kl=divergences / tokens,
        lag=lags / tokens,
        gradient_norm=norm.item(),
        tokens=int(counts[1]),
    )


def _summed(*counts: Sequence[float]) -> list[float]:
    sums = torch.tensor([sum(count) for count in counts], dtype=torch.float64)
    found: list[float] = all_reduce(sums, "all-reduce of the terms' counts").tolist()
    return found
