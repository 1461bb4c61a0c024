"""The objective of a step, as pure functions of packed tokens: T tokens of S sequences, one after the other.

    L = sum over terms of  weight x (sum of the term over its tokens) / (number of its tokens, on all ranks)

Each term is divided by its own count, so that many tokens of one kind cannot dilute another. A term is given as
``Term``: its sum on this rank, and its count; counts of ranks are added before they divide.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor


class Ratio(StrEnum):
    """How the probability ratio r = p / p_old of a token bounds its gradient."""

    CLIPPED = "clipped"  # min(r A, clip(r) A) (PPO, arXiv 1707.06347; two bounds: DAPO, arXiv 2503.14476)
    SEQUENCE = "gspo"  # the same with the sequence's geometric mean of r (GSPO, arXiv 2507.18071)
    CISPO = "cispo"  # stop-gradient(min(r, 1 + high)) A log p: no token loses its gradient (arXiv 2506.13585)


class Normalisation(StrEnum):
    """What the policy term is divided by."""

    TOKEN = "token"  # all tokens (DAPO)
    SEQUENCE = "sequence"  # each sequence's tokens, then sequences (GRPO, arXiv 2402.03300)
    CONSTANT = "constant"  # sequences x the longest that there may be (Dr. GRPO, arXiv 2503.20783)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """The ratio is kept within 1 - ``low`` and 1 + ``high``; ``max_tokens`` is for ``Normalisation.CONSTANT``."""

    ratio: Ratio = Ratio.CLIPPED
    low: float = 0.2
    high: float = 0.28
    normalisation: Normalisation = Normalisation.TOKEN
    max_tokens: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.low < 1 or self.high <= 0:
            raise ValueError(f"ratios are kept within 1 - low and 1 + high, not low = {self.low}, high = {self.high}")
        if self.normalisation is Normalisation.CONSTANT and self.max_tokens < 1:
            raise ValueError("normalisation 'constant' needs max_tokens")


@dataclass(frozen=True, slots=True)
class Term:
    """A sum over this rank's tokens (a scalar, differentiable), and what it is divided by once ranks have added it."""

    total: Tensor
    count: float


def policy_term(logp_T: Tensor, old_T: Tensor, advantage_T: Tensor, sequence_T: Tensor, options: PolicyOptions) -> Term:
    """The policy gradient's term.

    ``logp_T``: log-probabilities of the sampled tokens, differentiable; ``old_T``: of the policy that the step began
    with; ``sequence_T``: the number of each token's sequence, from 0.

    ``advantage_T`` may carry importance weights (``off_policy_weights``).
    """
    n_sequences = int(sequence_T.max()) + 1 if len(sequence_T) else 0
    log_ratio_T = logp_T - old_T
    if options.ratio is Ratio.SEQUENCE:
        log_ratio_T = _means(log_ratio_T, sequence_T, n_sequences)[sequence_T]
    ratio_T = log_ratio_T.exp()
    if options.ratio is Ratio.CISPO:
        loss_T = -ratio_T.detach().clamp(max=1 + options.high) * advantage_T * logp_T
    else:
        bounded_T = ratio_T.clamp(1 - options.low, 1 + options.high)
        loss_T = -torch.minimum(ratio_T * advantage_T, bounded_T * advantage_T)
    match options.normalisation:
        case Normalisation.TOKEN:
            return Term(loss_T.sum(), float(len(loss_T)))
        case Normalisation.SEQUENCE:
            return Term(_means(loss_T, sequence_T, n_sequences).sum(), float(n_sequences))
        case Normalisation.CONSTANT:
            return Term(loss_T.sum(), float(n_sequences * options.max_tokens))


def off_policy_weights(old_T: Tensor, behaviour_T: Tensor, cap: float = 2.0) -> Tensor:
    """min(p_old / mu, cap) of each token, without gradient: mu is the policy that sampled it, some versions ago or in
    another engine's arithmetic. Truncated importance sampling; the bias is bounded by what the cap cuts off."""
    return (old_T - behaviour_T).detach().exp().clamp(max=cap)


def reverse_kl_term(logp_T: Tensor, reference_T: Tensor) -> Term:
    """A term whose expected gradient, over tokens sampled from the policy, is that of KL(p || reference).

    Its value is not the divergence (``kl_estimate`` is): the gradient of an expectation under p is that of
    stop-gradient(log p - log reference) x log p. Differentiating log p - log reference gives nothing on average, and
    the k3 estimator, taken as a loss, the gradient of the other direction.
    """
    return Term(((logp_T - reference_T).detach() * logp_T).sum(), float(len(logp_T)))


def kl_estimate(logp_T: Tensor, reference_T: Tensor) -> Tensor:
    """KL(p || reference) in nats a token, of tokens sampled from p, without gradient: mean of r - 1 - log r with r =
    reference / p, never negative (Schulman's k3)."""
    log_ratio_T = (reference_T - logp_T).detach()
    return (log_ratio_T.exp() - 1 - log_ratio_T).mean()


def total_loss(terms: list[tuple[float, Term]], counts: list[float]) -> Tensor:
    """The loss that this rank differentiates: its share of each weighted term. ``counts``: of all ranks together."""
    shares = [weight * term.total / count for (weight, term), count in zip(terms, counts, strict=True) if count]
    return torch.stack(shares).sum() if shares else torch.zeros(())


def _means(values_T: Tensor, sequence_T: Tensor, n_sequences: int) -> Tensor:
    """Mean of each sequence's values, [S]."""
    zeros = values_T.new_zeros(n_sequences)
    lengths = zeros.index_add(0, sequence_T, torch.ones_like(values_T))
    return zeros.index_add(0, sequence_T, values_T) / lengths.clamp(min=1)
