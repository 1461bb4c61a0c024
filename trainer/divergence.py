"""Divergences between a student's and a teacher's next-token distributions, for targeted feedback and anchors.

The student p is differentiable, the teacher q never is. On a large vocabulary only the student's K likeliest tokens are
told apart, and the others count as one (the tail): what is left out is bounded below, since merging tokens never
increases a divergence. Sources of the directions' use: SDPO, arXiv 2601.20802; GKD, arXiv 2306.13649.
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional

_LEAST = -30.0  # log of a tail that rounding has made empty


class Divergence(StrEnum):
    REVERSE = "reverse"  # KL(p || q): the student leaves what the teacher does not do
    FORWARD = "forward"  # KL(q || p): the student covers all that the teacher does
    JSD = "jsd"  # (1 - a) KL(p || m) + a KL(q || m) with m = (1 - a) p + a q


def divergence(
    student_TV: Tensor, teacher_TV: Tensor, kind: Divergence = Divergence.REVERSE, *, mix: float = 0.5, top: int = 0
) -> Tensor:
    """Divergence at each token, [T], in nats, from logits [T, V].

    ``mix``: a of the JSD; ``top``: K, 0 for the whole vocabulary. Raises ValueError if ``mix`` is not within 0 and 1.
    """
    log_p, log_q = student_TV.float().log_softmax(-1), teacher_TV.detach().float().log_softmax(-1)
    if 0 < top < log_p.shape[-1]:
        kept = log_p.detach().topk(top, dim=-1).indices
        log_p, log_q = _with_tail(log_p, kept), _with_tail(log_q, kept)
    match kind:
        case Divergence.REVERSE:
            return _kl(log_p, log_q)
        case Divergence.FORWARD:
            return _kl(log_q, log_p)
        case Divergence.JSD:
            if not 0 < mix < 1:
                raise ValueError(f"mix must lie between 0 and 1, not {mix}")
            weights = torch.tensor([1 - mix, mix], device=log_p.device).log()
            log_m = torch.logsumexp(torch.stack((log_p + weights[0], log_q + weights[1])), 0)
            return (1 - mix) * _kl(log_p, log_m) + mix * _kl(log_q, log_m)


def trust_region(reference_TV: Tensor, live_TV: Tensor, step: float) -> Tensor:
    """Logits of a teacher between a frozen one and the live one: q ~ reference^(1 - step) live^step, without gradient.

    With step = 1 the teacher is what it teaches, and there is nothing to hold it; 0.05 is much. Raises ValueError if
    ``step`` is not within 0 and 1.
    """
    if not 0 <= step <= 1:
        raise ValueError(f"step must lie within 0 and 1, not {step}")
    frozen, live = reference_TV.float().log_softmax(-1), live_TV.float().log_softmax(-1)
    return (frozen * (1 - step) + live * step).detach()


def entropy(logits_TV: Tensor) -> Tensor:
    """Entropy at each token, [T], in nats, without gradient."""
    log_p = logits_TV.detach().float().log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def _kl(log_a: Tensor, log_b: Tensor) -> Tensor:
    return functional.kl_div(log_b, log_a, reduction="none", log_target=True).sum(-1)


def _with_tail(log_x: Tensor, kept_TK: Tensor) -> Tensor:
    """Log-probabilities of the kept tokens and, last, of all others together."""
    kept = log_x.gather(-1, kept_TK)
    rest = log_x.scatter(-1, kept_TK, float("-inf")).logsumexp(-1, keepdim=True)
    return torch.cat((kept, rest.clamp(min=_LEAST)), -1)
