"""Targeted textual feedback: what a hint at one turn would have changed, taught to the model without the hint.

A turn that should have gone otherwise gets a short hint in front of it. The same tokens are scored again with the hint
in the context, by a teacher; the student, without the hint, is pulled to the teacher's distribution on this turn alone,
while an anchor holds it to a reference on all others (masking to the turn does not protect the rest):

    L = lambda (1/N_H) sum over hinted tokens of w_t D(p(.|c, y<t) || q(.|c, h, y<t))
      + beta (1/N_A) sum over other tokens of KL(p(.|c, y<t) || p_ref(.|c, y<t)),    w_t = min(p/mu (y_t), cap)

The teacher is a frozen snapshot, or one in a trust region around it; a teacher that follows its student has nothing to
hold it. Sources: SDPO (arXiv 2601.20802), OPCD (arXiv 2602.12275).

All passes are collectives of a sharded model, as many for any turn with a hint, and for any turn without. A reference's
``logits`` alone are none: its head's weights stay whole after ``hidden``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.divergence import Divergence, divergence, entropy, trust_region
from trainer.moe import Decoder
from trainer.objective import Term, off_policy_weights
from trainer.packing import CHUNK, Packed, chosen, hidden_of, pack

Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The ``tokens`` of a turn, sampled after ``context`` with the log-probabilities ``behaviour``. ``hinted``: the
    same context with a hint in it, which the teacher sees; empty: nothing to teach, the anchor holds.

    Both are whole contexts: a chat template puts the hint before what begins the answer, and tokenizers merge across
    the places where text is put in. ``trainer.serve.ids_of`` makes either, of the prompt without and with the hint.
    """

    context: tuple[int, ...]
    tokens: tuple[int, ...]
    behaviour: tuple[float, ...]
    hinted: tuple[int, ...] = ()


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
    packed, seen = pack(turn.context, [turn.tokens]), pack(turn.hinted or turn.context, [turn.tokens])
    hidden_NC = hidden_of(student, packed)
    with torch.no_grad():
        teacher_NC = hidden_of(reference, seen)
        live = [hidden_of(student, seen)] if turn.hinted and options.trust else []
    kind = options.kind if turn.hinted else Divergence.REVERSE

    def of_chunk(
        head: Head, hidden: Tensor, target: Tensor, behaviour: Tensor, teacher: Tensor, *live: Tensor
    ) -> tuple[Tensor, Tensor]:
        ours = head(hidden).float() / temperature
        with torch.no_grad():
            theirs = reference.logits(teacher).float() / temperature
            for follower in live:
                theirs = trust_region(theirs, head(follower).float() / temperature, options.trust)
            weights = off_policy_weights(chosen(ours, target), behaviour, options.cap)
        return divergence(ours, theirs, kind, mix=options.mix, top=options.top), weights

    behaviour_N = torch.tensor(turn.behaviour)
    divergence_N, weights_N = student.in_chunks(
        of_chunk, CHUNK, hidden_NC, packed.target_N, behaviour_N, teacher_NC, *live
    )
    n, nothing = float(len(divergence_N)), Term(divergence_N.sum() * 0.0, 0.0)
    if turn.hinted:
        return Taught(Term((weights_N * divergence_N).sum(), n), nothing, divergence_N.mean().item())
    return Taught(nothing, Term(divergence_N.sum(), n), 0.0)


def drift_of(
    student: Decoder, reference: Decoder, packed: Packed, options: FeedbackOptions, temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """What ``trainer.packing.logps_of`` gives for a packed row, and KL(student || reference) of each of its sampled
    tokens, [N], differentiable in ``student``: an anchor without a pass of the student of its own."""
    hidden_NC = hidden_of(student, packed)
    with torch.no_grad():
        theirs_NC = hidden_of(reference, packed)

    def of_chunk(head: Head, hidden: Tensor, target: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ours = head(hidden).float() / temperature
        with torch.no_grad():
            held_to = reference.logits(theirs).float() / temperature
        return chosen(ours, target), entropy(ours), divergence(ours, held_to, top=options.top)

    logp_N, entropy_N, drift_N = student.in_chunks(of_chunk, CHUNK, hidden_NC, packed.target_N, theirs_NC)
    return logp_N, entropy_N, drift_N
