"""Targeted textual feedback: what a hint at one turn would have changed, taught to the model without the hint.

A turn that should have gone otherwise gets a short hint in front of it. The same tokens are scored again with the hint
in the context, by a teacher; the student, without the hint, is pulled to the teacher's distribution on this turn alone,
while an anchor holds it to a reference on all others (masking to the turn does not protect the rest):

    L = lambda (1/N_H) sum over hinted tokens of w_t D(p(.|c, y<t) || q(.|c, h, y<t))
      + beta (1/N_A) sum over other tokens of KL(p(.|c, y<t) || p_ref(.|c, y<t)),    w_t = min(p/mu (y_t), cap)

The teacher is a frozen snapshot, or one in a trust region around it; a teacher that follows its student has nothing to
hold it. Sources: SDPO (arXiv 2601.20802), OPCD (arXiv 2602.12275).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trainer.divergence import Divergence, divergence, trust_region
from trainer.moe import Decoder
from trainer.objective import Term, off_policy_weights
from trainer.packing import CHUNK, Packed, hidden_of, logps_of, pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The ``tokens`` of a turn, sampled after ``context`` with the log-probabilities ``behaviour``. ``hint``: tokens
    that the teacher sees between the two; empty: nothing to teach, the anchor holds."""

    context: tuple[int, ...]
    tokens: tuple[int, ...]
    behaviour: tuple[float, ...]
    hint: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackOptions:
    """``kind`` and ``mix``: the divergence D; ``top``: how many tokens are told apart (0: all); ``cap``: bound of the
    importance weights; ``trust``: how far the teacher follows its student, 0 for a frozen one, at most 0.05."""

    kind: Divergence = Divergence.REVERSE
    mix: float = 0.5
    top: int = 64
    cap: float = 2.0
    trust: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.trust <= 0.05:
            raise ValueError(
                f"trust must lie within 0 and 0.05, not {self.trust}: beyond, teachers follow and collapse"
            )


@dataclass(frozen=True, slots=True)
class Taught:
    """The two terms, and the mean divergence from the teacher at the hinted tokens (a figure to watch)."""

    feedback: Term
    anchor: Term
    gap: float


def teach(
    student: Decoder,
    reference: Decoder,
    turn: Turn,
    options: FeedbackOptions,
    *,
    temperature: float = 1.0,
) -> Taught:
    """The terms of one turn: of the feedback if it has a hint, else of the anchor; the other is 0 of 0 tokens.

    ``reference`` is the frozen snapshot that both the teacher and the anchor are. Differentiable in ``student`` alone.
    """
    packed = pack(turn.context, [turn.tokens])
    hidden_NC = hidden_of(student, packed)
    nothing = Term(hidden_NC.sum() * 0.0, 0.0)
    with torch.no_grad():
        if not turn.hint:
            teacher_NC = hidden_of(reference, packed)
            weights_N = torch.ones(len(packed.target_N))
        else:
            hinted = pack(turn.context + turn.hint, [turn.tokens])
            teacher_NC = hidden_of(reference, hinted)
            weights_N = _weights(student, hidden_NC, packed, turn, options.cap, temperature)
        live_NC = hidden_of(student, hinted) if turn.hint and options.trust else None
    kind = options.kind if turn.hint else Divergence.REVERSE

    def of_chunk(hidden: Tensor, teacher: Tensor, live: Tensor | None) -> Tensor:
        with torch.no_grad():
            theirs = reference.logits(teacher).float() / temperature
            if live is not None:
                theirs = trust_region(theirs, student.logits(live).float() / temperature, options.trust)
        ours = student.logits(hidden).float() / temperature
        return divergence(ours, theirs, kind, mix=options.mix, top=options.top)

    parts = []
    for start in range(0, len(hidden_NC), CHUNK):
        chunk = slice(start, start + CHUNK)
        live = None if live_NC is None else live_NC[chunk]
        parts.append(checkpoint(of_chunk, hidden_NC[chunk], teacher_NC[chunk], live, use_reentrant=False))
    divergence_N = torch.cat(parts)
    term = Term((weights_N * divergence_N).sum(), float(len(divergence_N)))
    if turn.hint:
        return Taught(term, nothing, divergence_N.mean().item())
    return Taught(nothing, term, 0.0)


def _weights(student: Decoder, hidden_NC: Tensor, packed: Packed, turn: Turn, cap: float, temperature: float) -> Tensor:
    """min(p / mu, cap) of the sampled tokens."""
    logps, _ = logps_of(student, hidden_NC, packed.target_N, temperature)
    return off_policy_weights(logps, torch.tensor(turn.behaviour), cap)
