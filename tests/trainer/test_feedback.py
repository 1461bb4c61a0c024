"""Feedback reaches the hinted turn, the anchor protects the others, and a teacher that follows its student does not."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from decoder_cases import GROUPED

from trainer.divergence import Divergence
from trainer.feedback import FeedbackOptions, Turn, teach
from trainer.moe import Decoder, init_weights

CONFIG = replace(GROUPED, n_routed_experts=0, num_experts_per_tok=0, n_shared_experts=0, vocab_size=32)
QUESTION, HINT, OTHER = (1, 2, 3), (20, 21), (4, 2, 3)
ANSWERS = tuple(range(8, 16))  # the one that the hint reveals is the first


@pytest.fixture(scope="module")
def pretrained() -> Decoder:
    """A model that answers at random without the hint, and right with it; and knows what follows the other turn."""
    model = Decoder(CONFIG)
    init_weights(model, 0, std=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = [(QUESTION, a, 1 / 8) for a in ANSWERS] + [(QUESTION + HINT, ANSWERS[0], 0.9)]
    rows += [(QUESTION + HINT, a, 0.1 / 7) for a in ANSWERS[1:]] + [(OTHER, 9, 0.5), (OTHER, 10, 0.5)]
    for _ in range(250):
        loss = torch.zeros(())
        for context in (QUESTION, QUESTION + HINT, OTHER):
            logp = model(torch.tensor([context]))[0, -1].log_softmax(-1)
            loss = loss - sum(weight * logp[answer] for c, answer, weight in rows if c == context)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return model


@torch.no_grad()
def answers(model: Decoder, context: tuple[int, ...]) -> torch.Tensor:
    return model(torch.tensor([context]))[0, -1].softmax(-1)


def taught(
    pretrained: Decoder, *, anchor: float, follows: float = 0.0, options: FeedbackOptions | None = None
) -> Decoder:
    """200 steps on sampled answers to the question. ``follows``: the share of the student that its teacher takes over
    at each step (1: a live teacher)."""
    student, teacher, frozen = (copy.deepcopy(pretrained) for _ in range(3))
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(0)
    options = options or FeedbackOptions(top=0)
    for _ in range(200):
        behaviour = answers(student, QUESTION)
        loss = torch.zeros(())
        for token in torch.multinomial(behaviour, 4, replacement=True, generator=generator).tolist():
            turn = Turn(
                context=QUESTION, hinted=QUESTION + HINT, tokens=(token,), behaviour=(behaviour[token].log().item(),)
            )
            term = teach(student, teacher, turn, options).feedback
            loss = loss + term.total / term.count / 4
        if anchor:
            held = teach(student, frozen, Turn(context=OTHER, tokens=(9,), behaviour=(-0.7,)), options).anchor
            loss = loss + anchor * held.total / held.count
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        with torch.no_grad():
            for theirs, ours in zip(teacher.parameters(), student.parameters(), strict=True):
                theirs.lerp_(ours, follows)
    return student


def drift(student: Decoder, pretrained: Decoder) -> float:
    """KL from the pretrained model at the other turn, in nats."""
    now, then = answers(student, OTHER), answers(pretrained, OTHER)
    return (now * (now / then).log()).sum().item()


def test_a_frozen_teacher_teaches_and_the_anchor_protects_other_turns(pretrained: Decoder) -> None:
    before, teacher = (answers(pretrained, context)[ANSWERS[0]].item() for context in (QUESTION, QUESTION + HINT))
    assert before == pytest.approx(0.125, abs=0.04) and teacher > 0.85
    free, anchored = taught(pretrained, anchor=0.0), taught(pretrained, anchor=1.0)
    for student in (free, anchored):
        assert answers(student, QUESTION)[ANSWERS[0]].item() == pytest.approx(teacher, abs=0.06)
    assert drift(free, pretrained) > 0.01
    assert drift(anchored, pretrained) < 0.01 * drift(free, pretrained)


def test_a_live_teacher_collapses(pretrained: Decoder) -> None:
    """What a teacher becomes that is its own student: worse than before."""
    live = taught(pretrained, anchor=1.0, follows=1.0)
    assert answers(live, QUESTION)[ANSWERS[0]] < answers(pretrained, QUESTION)[ANSWERS[0]]


def test_a_trust_region_stays_with_the_frozen_teacher(pretrained: Decoder) -> None:
    teacher = answers(pretrained, QUESTION + HINT)[ANSWERS[0]].item()
    student = taught(pretrained, anchor=1.0, options=FeedbackOptions(top=0, trust=0.05))
    assert answers(student, QUESTION)[ANSWERS[0]].item() == pytest.approx(teacher, abs=0.08)
    with pytest.raises(ValueError, match="within 0 and 0"):
        FeedbackOptions(trust=0.5)


def test_the_terms_of_a_turn_by_hand(pretrained: Decoder) -> None:
    student = Decoder(CONFIG)
    init_weights(student, 7, std=0.2)
    tokens, behaviour = (9, 4), (-1.0, -30.0)
    turn = Turn(context=QUESTION, hinted=QUESTION + HINT, tokens=tokens, behaviour=behaviour)
    found = teach(student, pretrained, turn, FeedbackOptions(top=0, kind=Divergence.FORWARD, cap=1.5), temperature=0.8)
    with torch.no_grad():
        log_p = (student(torch.tensor([QUESTION + tokens]))[0, 2:4] / 0.8).log_softmax(-1)
        log_q = (pretrained(torch.tensor([QUESTION + HINT + tokens]))[0, 4:6] / 0.8).log_softmax(-1)
        kl_N = (log_q.exp() * (log_q - log_p)).sum(-1)
        ratio = [min((log_p[i, t].item() - b), 99) for i, (t, b) in enumerate(zip(tokens, behaviour, strict=True))]
    weights = [min(torch.tensor(r).exp().item(), 1.5) for r in ratio]
    assert found.feedback.total.item() == pytest.approx(
        weights[0] * kl_N[0].item() + weights[1] * kl_N[1].item(), rel=1e-4
    )
    assert weights[1] == 1.5, "a token that the sampler thought next to impossible is bounded"
    assert (found.feedback.count, found.anchor.count, found.anchor.total.item()) == (2.0, 0.0, 0.0)
    assert found.gap == pytest.approx(kl_N.mean().item(), rel=1e-4)
    held = teach(student, pretrained, replace(turn, hinted=()), FeedbackOptions(top=0))
    assert (held.feedback.count, held.anchor.count) == (0.0, 2.0) and held.anchor.total.item() > 0
