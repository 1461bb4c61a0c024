"""One step of policy optimisation on groups of samples: what is learnt from them, on one process or many.

    L = L_rl / N_rl  +  kl L_kl / N_rl  +  feedback L_H / N_H  +  anchor L_A / N_A

L_rl is the policy term of the groups' samples, L_kl their divergence from a reference as sampled tokens tell it, L_H
what hints teach (``trainer.feedback``) and L_A the divergence from the reference of all that no hint is for. Each is
divided by its own count (of tokens, where ``Normalisation`` says nothing else), so that none dilutes another.

Groups and turns are divided over ranks by whoever calls; counts and gradients are added over ranks, so that the step is
the same however they were divided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

import torch
from torch import Tensor

from trainer.advantage import Scaling
from trainer.collectives import all_reduce
from trainer.feedback import FeedbackOptions, Turn, drift_of, teach
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
from trainer.packing import hidden_of, logps_of
from trainer.parallel import clip_gradients
from trainer.rows import Group as Group
from trainer.rows import Row, Work, in_step

#: What a rank without a turn of a kind puts in its place.
_HINTED = Turn(context=(0,), tokens=(0,), behaviour=(0.0,), hinted=(0, 0))
_OTHER = Turn(context=(0,), tokens=(0,), behaviour=(0.0,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``passes``: updates on the same groups; ``kl``: weight of the divergence from a reference model; ``cap``: bound
    of the importance weights of samples that an older policy made; ``feedback`` and ``anchor``: weights of what hints
    teach and of what holds the rest, with their ``feedback_options``."""

    policy: PolicyOptions = field(default_factory=PolicyOptions)
    scaling: Scaling = Scaling.NONE
    temperature: float = 1.0
    passes: int = 1
    kl: float = 0.0
    cap: float = 2.0
    max_norm: float = 1.0
    feedback: float = 0.0
    anchor: float = 0.0
    feedback_options: FeedbackOptions = field(default_factory=FeedbackOptions)

    def __post_init__(self) -> None:
        if self.passes < 1:
            raise ValueError(f"passes = {self.passes}: must be at least 1")
        for name in ("kl", "feedback", "anchor"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)}: a weight must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Of a step, over all ranks: means over sampled tokens of groups with signal, but ``reward`` over rollouts with
    one, ``feedback`` and ``gap`` over hinted tokens, ``anchor`` over anchored ones. Without such tokens they are 0."""

    loss: float
    reward: float
    entropy: float
    kl: float
    lag: float  # mean |log p - log mu|: how far the policy is from the one that sampled
    gradient_norm: float
    tokens: int
    feedback: float = 0.0  # weighted divergence from the teacher
    gap: float = 0.0  # the same without importance weights
    anchor: float = 0.0  # KL from the reference, in nats
    hinted_tokens: int = 0
    anchored_tokens: int = 0


@dataclass(slots=True)
class _Counts:
    """What the terms are divided by, over all ranks."""

    policy: float
    tokens: float
    hinted: float
    anchored: float


@dataclass(slots=True)
class _Sums:
    """Of a step's tokens (rollouts: rewards), on this rank and then over all."""

    loss: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    lag: float = 0.0
    feedback: float = 0.0
    gap: float = 0.0
    anchor: float = 0.0
    reward: float = 0.0
    rewards: float = 0.0


def step(
    model: Decoder,
    optimizer: Muon,
    groups: Sequence[Group],
    settings: Settings,
    *,
    turns: Sequence[Turn] = (),
    reference: Decoder | None = None,
) -> Metrics:
    """Update ``model`` by this rank's ``groups`` and ``turns``, which may be none. All ranks call it together.

    Turns with a hint are taught, those without are anchored beside the groups' samples; a turn that is a group's sample
    belongs to the turns only if it has a hint (and then to ``Group.hinted``). The reference is a frozen snapshot.

    Raises ValueError if a reference is needed (kl, feedback, anchor) and there is none; CollectiveFailed when another
    rank fails; NonFiniteGradient before anything is changed.
    """
    wanted = [name for name in ("kl", "feedback", "anchor") if getattr(settings, name)]
    if wanted and reference is None:
        raise ValueError(f"what {wanted[0]} asks for is measured from a reference, but there is no reference model")
    work = in_step(groups, turns, settings.scaling, feedback=settings.feedback > 0, anchored=settings.anchor > 0)
    for row in work.rows:
        if row.learns and settings.kl and reference is not None:
            row.reference_N = _known_logps(reference, row, settings)
    earned = [reward for group in groups for reward in group.rewards if reward is not None]
    for _ in range(settings.passes - 1):
        _update(model, optimizer, work, settings, earned, reference)
    return _update(model, optimizer, work, settings, earned, reference)


@torch.no_grad()
def _known_logps(model: Decoder, row: Row, settings: Settings) -> Tensor:
    logps_N, _ = logps_of(model, hidden_of(model, row.packed), row.packed.target_N, settings.temperature)
    return logps_N[: len(row.gained_N)]


def _update(
    model: Decoder,
    optimizer: Muon,
    work: Work,
    settings: Settings,
    earned: Sequence[float],
    reference: Decoder | None,
) -> Metrics:
    counts = _counts(work, settings)
    losses = _Losses(model, reference, settings, counts, _Sums(reward=sum(earned), rewards=len(earned)))
    for row in work.rows:
        torch.autograd.backward(losses.of_row(row))
    for turn in work.hinted:
        torch.autograd.backward(losses.of_turn(turn, _HINTED))
    for turn in work.others:
        torch.autograd.backward(losses.of_turn(turn, _OTHER))
    norm = clip_gradients(model.parameters(), settings.max_norm)
    if counts.tokens or counts.hinted or counts.anchored:
        optimizer.step()
    optimizer.zero_grad()
    return _metrics(losses.sums, counts, norm)


def _policy_term(row: Row, logp_N: Tensor, old_N: Tensor, settings: Settings) -> Term:
    weights_N = off_policy_weights(old_N, row.behaviour_N, settings.cap)
    sample_N = row.packed.sample_N[: len(old_N)]
    return policy_term(logp_N, old_N, row.gained_N * weights_N, sample_N, settings.policy)


def _counts(work: Work, settings: Settings) -> _Counts:
    rows = [row for row in work.rows if row.counts]
    counts = _Counts(
        policy=sum(_policy_term(row, row.behaviour_N, row.behaviour_N, settings).count for row in rows if row.learns),
        tokens=sum(len(row.gained_N) for row in rows),
        hinted=sum(len(turn.tokens) for turn in work.hinted if turn),
        anchored=sum(len(turn.tokens) for turn in work.others if turn) + sum(int(row.held_N.sum()) for row in rows),
    )
    return _Counts(*_over_ranks(astuple(counts), "all-reduce of the terms' counts"))


@dataclass(slots=True)
class _Losses:
    """Shares of the loss, one row or turn at a time; the figures that they leave are added to ``sums``."""

    model: Decoder
    reference: Decoder | None
    settings: Settings
    counts: _Counts
    sums: _Sums

    def of_row(self, row: Row) -> Tensor:
        logp_N, entropy_N, drift_N = self._passed(row)
        if not row.counts:
            return 0.0 * logp_N.sum()
        loss = torch.zeros(())
        if row.learns:
            n = len(row.gained_N)
            loss = self._of_policy(row, logp_N[:n])
            self.sums.entropy += entropy_N[:n].sum().item()
            self.sums.lag += (logp_N[:n].detach() - row.behaviour_N).abs().sum().item()
        if row.held_N.any():
            held = drift_N[row.held_N].sum()
            loss = loss + self.settings.anchor * held / self.counts.anchored
            self.sums.anchor += held.item()
        self.sums.loss += loss.item()
        return loss

    def _passed(self, row: Row) -> tuple[Tensor, Tensor, Tensor]:
        settings, target_N = self.settings, row.packed.target_N
        if settings.anchor and self.reference is not None:
            return drift_of(self.model, self.reference, row.packed, settings.feedback_options, settings.temperature)
        logp_N, entropy_N = logps_of(self.model, hidden_of(self.model, row.packed), target_N, settings.temperature)
        return logp_N, entropy_N, torch.zeros_like(entropy_N)

    def _of_policy(self, row: Row, logp_N: Tensor) -> Tensor:
        if row.old_N is None:
            # The step's first pass is through the policy that the step began with: no pass more is needed to know it.
            row.old_N = logp_N.detach()
        loss = _policy_term(row, logp_N, row.old_N, self.settings).total / self.counts.policy
        if row.reference_N is not None:
            loss = loss + self.settings.kl * reverse_kl_term(logp_N, row.reference_N).total / self.counts.tokens
            self.sums.kl += kl_estimate(logp_N, row.reference_N).item() * len(logp_N)
        return loss

    def of_turn(self, turn: Turn | None, blank: Turn) -> Tensor:
        """Without a turn: nothing, after the passes of the ``blank`` one."""
        assert self.reference is not None
        options, temperature = self.settings.feedback_options, self.settings.temperature
        taught = teach(self.model, self.reference, turn or blank, options, temperature=temperature)
        if turn is None:
            return 0.0 * (taught.feedback.total + taught.anchor.total)
        if turn.hinted:
            loss = self.settings.feedback * taught.feedback.total / self.counts.hinted
            self.sums.feedback += taught.feedback.total.item()
            self.sums.gap += taught.gap * taught.feedback.count
        else:
            loss = self.settings.anchor * taught.anchor.total / self.counts.anchored
            self.sums.anchor += taught.anchor.total.item()
        self.sums.loss += loss.item()
        return loss


def _metrics(sums: _Sums, counts: _Counts, norm: Tensor) -> Metrics:
    found = _Sums(*_over_ranks(astuple(sums), "all-reduce of a step's metrics"))
    tokens, hinted = counts.tokens or 1.0, counts.hinted or 1.0
    return Metrics(
        loss=found.loss,
        reward=found.reward / max(found.rewards, 1.0),
        entropy=found.entropy / tokens,
        kl=found.kl / tokens,
        lag=found.lag / tokens,
        gradient_norm=norm.item(),
        tokens=int(counts.tokens),
        feedback=found.feedback / hinted,
        gap=found.gap / hinted,
        anchor=found.anchor / (counts.anchored or 1.0),
        hinted_tokens=int(counts.hinted),
        anchored_tokens=int(counts.anchored),
    )


def _over_ranks(values: Sequence[float], what: str) -> list[float]:
    found: list[float] = all_reduce(torch.tensor(values, dtype=torch.float64), what).tolist()
    return found
