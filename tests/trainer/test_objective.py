"""Objectives have the values and gradients that a hand or a formula gives."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trainer.advantage import Scaling, advantages, has_signal
from trainer.divergence import Divergence, divergence, entropy, trust_region
from trainer.objective import (
    Normalisation,
    PolicyOptions,
    Ratio,
    Term,
    kl_estimate,
    off_policy_weights,
    policy_term,
    reverse_kl_term,
    total_loss,
)


def test_advantages_are_differences_to_the_groups_mean() -> None:
    assert advantages([1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]
    assert advantages([1.0, 0.0, 0.0, 0.0], Scaling.STD) == pytest.approx([3**0.5, *[-(3**-0.5)] * 3])
    assert advantages([1.0, 1.0], Scaling.STD) == [0.0, 0.0]


def test_a_rollout_without_a_reward_does_not_mask_its_group() -> None:
    assert advantages([1.0, None, 0.0]) == [0.5, 0.0, -0.5]
    assert advantages([None, None]) == [0.0, 0.0]
    assert has_signal([1.0, None, 0.0])
    assert not has_signal([1.0, None, 1.0])
    assert not has_signal([None, 0.0])
    with pytest.raises(ValueError, match="finite"):
        advantages([math.nan, 1.0])


# Two sequences, of 1 and 3 tokens.
SEQUENCE = torch.tensor([0, 1, 1, 1])
RATIOS = torch.tensor([1.5, 0.5, 1.0, 1.1])
ADVANTAGE = torch.tensor([1.0, -1.0, -1.0, -1.0])
OLD = torch.tensor([-1.0, -2.0, -0.5, -3.0])


def gradient(options: PolicyOptions, count: float | None = None) -> tuple[Tensor, Tensor]:
    """Loss, and gradient of each token's log-probability."""
    logp = (OLD + RATIOS.log()).requires_grad_()
    term = policy_term(logp, OLD, ADVANTAGE, SEQUENCE, options)
    loss = term.total / (count or term.count)
    (found,) = torch.autograd.grad(loss, logp)
    return loss.detach(), found


def test_clipped_ratios_by_hand() -> None:
    """Token 0 is above 1.28 with a positive, token 1 below 0.8 with a negative advantage: bounded, no gradient."""
    loss, found = gradient(PolicyOptions())
    assert loss.item() == pytest.approx((-1.28 + 0.8 + 1.0 + 1.1) / 4)
    assert found.tolist() == pytest.approx([0.0, 0.0, 0.25, 1.1 / 4])


def test_normalisations_by_hand() -> None:
    loss, _ = gradient(PolicyOptions(normalisation=Normalisation.SEQUENCE))
    assert loss.item() == pytest.approx((-1.28 + (0.8 + 1.0 + 1.1) / 3) / 2)
    loss, _ = gradient(PolicyOptions(normalisation=Normalisation.CONSTANT, max_tokens=10))
    assert loss.item() == pytest.approx((-1.28 + 0.8 + 1.0 + 1.1) / 20)


def test_gspo_bounds_whole_sequences() -> None:
    options = PolicyOptions(ratio=Ratio.SEQUENCE, normalisation=Normalisation.SEQUENCE)
    loss, found = gradient(options)
    ratio = (0.5 * 1.0 * 1.1) ** (1 / 3)
    assert loss.item() == pytest.approx((-1.28 + max(ratio, 0.8)) / 2)
    assert found.tolist() == pytest.approx([0.0, *[ratio / 3 / 2 if ratio > 0.8 else 0.0] * 3])


def test_cispo_keeps_every_tokens_gradient() -> None:
    loss, found = gradient(PolicyOptions(ratio=Ratio.CISPO))
    assert found.tolist() == pytest.approx([-1.28 / 4, 0.5 / 4, 1.0 / 4, 1.1 / 4])
    logp = OLD + RATIOS.log()
    assert loss.item() == pytest.approx((-1.28 * logp[0] + 0.5 * logp[1] + logp[2] + 1.1 * logp[3]).item() / 4)


def test_each_term_is_divided_by_its_own_count() -> None:
    """A thousand distilled tokens do not dilute ten of reinforcement."""
    few, many = Term(torch.tensor(10.0), 10.0), Term(torch.tensor(1000.0), 1000.0)
    assert total_loss([(1.0, few), (0.5, many)], [10.0, 1000.0]) == 1.5
    halves = [total_loss([(1.0, Term(torch.tensor(x), n))], [10.0]) for x, n in ((4.0, 3.0), (6.0, 7.0))]
    assert sum(halves) == 1.0
    assert total_loss([(1.0, Term(torch.zeros(()), 0.0))], [0.0]) == 0.0


def test_importance_weights_are_truncated() -> None:
    found = off_policy_weights(torch.tensor([0.0, 0.0, -1.0]), torch.tensor([-3.0, 0.0, 0.0]))
    assert found.tolist() == pytest.approx([2.0, 1.0, math.exp(-1)])


@pytest.mark.parametrize("options", [{"low": 1.0}, {"high": 0.0}, {"normalisation": Normalisation.CONSTANT}])
def test_options_that_bound_nothing_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        PolicyOptions(**options)  # type: ignore[arg-type]


# -- divergences ---------------------------------------------------------------------------------------------------


def logits() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(3, 7, dtype=torch.float64, generator=generator) for _ in range(2))
    return student.float().requires_grad_(), teacher.float()


@pytest.mark.parametrize("kind", list(Divergence))
def test_gradients_on_logits_are_those_of_the_formulas(kind: Divergence) -> None:
    """reverse p (log p/q - KL), forward p - q, JSD (1 - a) p (log p/m - KL(p || m))."""
    student, teacher = logits()
    a = 0.3
    value = divergence(student, teacher, kind, mix=a)
    (found,) = torch.autograd.grad(value.sum(), student)
    p, q = student.detach().softmax(-1), teacher.softmax(-1)
    m = (1 - a) * p + a * q

    def kl(x: Tensor, y: Tensor) -> Tensor:
        return (x * (x / y).log()).sum(-1, keepdim=True)

    expected = {
        Divergence.REVERSE: p * ((p / q).log() - kl(p, q)),
        Divergence.FORWARD: p - q,
        Divergence.JSD: (1 - a) * p * ((p / m).log() - kl(p, m)),
    }[kind]
    assert torch.allclose(found, expected, atol=1e-6)
    values = {
        Divergence.REVERSE: kl(p, q),
        Divergence.FORWARD: kl(q, p),
        Divergence.JSD: (1 - a) * kl(p, m) + a * kl(q, m),
    }
    assert torch.allclose(value, values[kind][:, 0], atol=1e-6)


def test_top_tokens_and_a_tail_are_exact_when_they_are_all_and_a_lower_bound_else() -> None:
    student, teacher = logits()
    exact = divergence(student, teacher)
    assert torch.allclose(divergence(student, teacher, top=6), exact, atol=1e-6), "a tail of one token is that token"
    bounds = [divergence(student, teacher, top=k) for k in (1, 3, 5)]
    assert all((bound <= exact + 1e-6).all() and (bound >= 0).all() for bound in bounds)
    assert (bounds[0] < exact - 1e-4).any()


def test_a_teacher_is_never_differentiated() -> None:
    shared = torch.randn(2, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
    (found,) = torch.autograd.grad(divergence(shared, shared).sum(), shared)
    assert found.abs().max() < 1e-6, "equal distributions: no pull"
    assert not trust_region(shared, shared * 2, 0.5).requires_grad


def test_a_teacher_that_shares_weights_would_be_pulled_to_its_student() -> None:
    """The gradient is that of a constant teacher; without the stop it would point elsewhere, and move the teacher."""
    weight = torch.randn(5, 7, generator=torch.Generator().manual_seed(4)).requires_grad_()
    plain, hinted = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(5))
    (ours,) = torch.autograd.grad(divergence(plain @ weight, hinted @ weight).sum(), weight)
    log_p, log_q = (plain @ weight).log_softmax(-1), (hinted @ weight).log_softmax(-1)
    (stopped,) = torch.autograd.grad((log_p.exp() * (log_p - log_q.detach())).sum(), weight, retain_graph=True)
    (both,) = torch.autograd.grad((log_p.exp() * (log_p - log_q)).sum(), weight)
    assert torch.allclose(ours, stopped, atol=1e-5)
    assert torch.nn.functional.cosine_similarity(stopped.flatten(), both.flatten(), dim=0) < 0.95


def test_the_trust_region_lies_between() -> None:
    frozen, live = logits()
    assert torch.allclose(trust_region(frozen, live, 0.0).softmax(-1), frozen.softmax(-1))
    assert torch.allclose(trust_region(frozen, live, 1.0).softmax(-1), live.softmax(-1))
    half = trust_region(frozen, live, 0.5).softmax(-1)
    expected = (frozen.softmax(-1) * live.softmax(-1)).sqrt()
    assert torch.allclose(half, expected / expected.sum(-1, keepdim=True), atol=1e-6)
    with pytest.raises(ValueError, match="within 0 and 1"):
        trust_region(frozen, live, 1.5)


def test_entropy_of_a_fair_choice() -> None:
    assert entropy(torch.zeros(2, 8)).tolist() == pytest.approx([math.log(8)] * 2)


def sampled(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of a policy (differentiable), of a reference, and ``n`` tokens sampled from the policy."""
    generator = torch.Generator().manual_seed(2)
    student = torch.randn(6, generator=generator).requires_grad_()
    reference = torch.randn(6, generator=generator)
    tokens = torch.multinomial(student.detach().softmax(-1), n, replacement=True, generator=generator)
    return student, reference, tokens


def test_the_sampled_term_has_the_gradient_of_the_reverse_divergence() -> None:
    """And the naive estimators do not: one vanishes, k3 as a loss goes the other way."""
    student, reference, tokens = sampled(200_000)
    logp, ref = student.log_softmax(-1)[tokens], reference.log_softmax(-1)[tokens]
    reverse, forward = (
        torch.autograd.grad(divergence(student[None], reference[None], kind).sum(), student, retain_graph=True)[0]
        for kind in (Divergence.REVERSE, Divergence.FORWARD)
    )
    term = reverse_kl_term(logp, ref)
    (ours,) = torch.autograd.grad(term.total / term.count, student, retain_graph=True)
    (naive,) = torch.autograd.grad((logp - ref).mean(), student, retain_graph=True)
    k3 = ((ref - logp).exp() - 1 - (ref - logp)).mean()
    (of_k3,) = torch.autograd.grad(k3, student)

    def cosine(a: Tensor, b: Tensor) -> float:
        return torch.nn.functional.cosine_similarity(a, b, dim=0).item()

    assert cosine(ours, reverse) > 0.999
    assert (ours - reverse).norm() < 0.03 * reverse.norm()
    assert naive.norm() < 0.02 * reverse.norm()
    assert cosine(of_k3, forward) > 0.999
    assert kl_estimate(logp, ref).item() == pytest.approx(divergence(student[None], reference[None]).item(), rel=0.02)
