"""A step on groups of samples: packed as apart, the same on any number of ranks, and it learns."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest
import torch
import torch.distributed as dist
from decoder_cases import GROUPED, LATENT, Run, trainee_of, weights
from ranks import Ranks

from trainer.decoder_config import DecoderConfig
from trainer.feedback import FeedbackOptions, Turn
from trainer.generation import Sampling, generate
from trainer.grpo import Group, Metrics, Settings, step
from trainer.meshes import MeshSizes
from trainer.moe import Decoder, init_weights
from trainer.objective import Normalisation, PolicyOptions, Ratio
from trainer.packing import hidden_of, logps_of, pack

PROMPT = (3, 1, 4, 1, 5)
SAMPLES = ((9, 2, 6), (5,), (3, 5, 8, 9), (7, 9))
DENSE = replace(GROUPED, n_routed_experts=0, num_experts_per_tok=0, n_shared_experts=0)


def decoder(config: DecoderConfig) -> Decoder:
    model = Decoder(config)
    init_weights(model, 1, std=0.2)
    return model


@pytest.mark.parametrize("config", [LATENT, GROUPED], ids=["latent", "grouped"])
def test_a_packed_row_has_the_logps_and_gradients_of_sequences_apart(config: DecoderConfig) -> None:
    together, apart = decoder(config), decoder(config)
    packed = pack(PROMPT, SAMPLES)
    assert len(packed.ids_T) == len(PROMPT) + sum(len(sample) - 1 for sample in SAMPLES)
    found, entropies = logps_of(together, hidden_of(together, packed), packed.target_N, temperature=0.7)
    expected = []
    for sample in SAMPLES:
        logits = apart(torch.tensor([PROMPT + sample]))[0, len(PROMPT) - 1 : -1] / 0.7
        expected.append(logits.log_softmax(-1).gather(-1, torch.tensor(sample)[:, None])[:, 0])
    assert torch.allclose(found, torch.cat(expected), atol=1e-5)
    assert entropies.shape == found.shape and (entropies > 0).all() and not entropies.requires_grad
    factors = torch.randn(len(found), generator=torch.Generator().manual_seed(0))
    (found * factors).sum().backward()
    (torch.cat(expected) * factors).sum().backward()
    for (name, a), b in zip(together.named_parameters(), apart.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None, name
        assert (a.grad - b.grad).abs().max() <= 2e-5 * b.grad.abs().max(), name


def test_logps_in_training_are_those_of_sampling() -> None:
    """No token is tokenized again, and one implementation does both: the first ratio is 1."""
    model = decoder(GROUPED)
    samples = generate(model, [PROMPT], [list(range(6))], Sampling(max_tokens=7, temperature=0.9))[0]
    packed = pack(PROMPT, [sample.ids for sample in samples])
    with torch.no_grad():
        found, _ = logps_of(model, hidden_of(model, packed), packed.target_N, temperature=0.9)
    assert torch.allclose(found, torch.tensor([p for sample in samples for p in sample.logps]), atol=1e-4)


def test_a_prompt_and_samples_need_tokens() -> None:
    for prompt, samples in (((), SAMPLES), (PROMPT, ((1,), ()))):
        with pytest.raises(ValueError, match="need tokens"):
            pack(prompt, samples)


def group_of(model: Decoder, prompt: tuple[int, ...], seeds: range, wanted: int) -> Group:
    """The reward is the share of tokens that are ``wanted``."""
    samples = generate(model, [prompt], [list(seeds)], Sampling(max_tokens=6))[0]
    return Group(
        prompt=prompt,
        samples=tuple(sample.ids for sample in samples),
        behaviour=tuple(sample.logps for sample in samples),
        rewards=tuple(sample.ids.count(wanted) / len(sample.ids) for sample in samples),
    )


@pytest.mark.parametrize(
    "policy",
    [
        PolicyOptions(),
        PolicyOptions(ratio=Ratio.SEQUENCE, normalisation=Normalisation.SEQUENCE),
        PolicyOptions(ratio=Ratio.CISPO, normalisation=Normalisation.CONSTANT, max_tokens=6),
    ],
    ids=["clipped", "gspo", "cispo"],
)
def test_steps_raise_the_reward(policy: PolicyOptions) -> None:
    trainee = trainee_of(Run(config=DENSE))
    rewards = []
    for number in range(25):
        groups = [group_of(trainee.model, (i, 2, 3), range(100 * number, 100 * number + 8), 7) for i in range(3)]
        rewards.append(step(trainee.model, trainee.optimizer, groups, Settings(policy=policy, passes=2)).reward)
    assert sum(rewards[:3]) / 3 < 0.1
    assert sum(rewards[-3:]) / 3 > 0.4


def test_rollouts_without_a_reward_and_groups_without_signal_teach_nothing() -> None:
    base = Group(prompt=PROMPT, samples=SAMPLES, behaviour=tuple((-4.0,) * len(s) for s in SAMPLES), rewards=())
    trainee = trainee_of(Run(config=DENSE))
    before = weights(trainee.model)
    for rewards in ((1.0,) * 4, (None,) * 4, (1.0, None, 1.0, None)):
        found = step(trainee.model, trainee.optimizer, [replace(base, rewards=rewards)], Settings())
        assert found.tokens == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(trainee.model).items())
    known = replace(base, samples=SAMPLES[:2], behaviour=base.behaviour[:2], rewards=(1.0, 0.0))
    masked = replace(base, rewards=(1.0, 0.0, None, None))
    losses = [
        step(trainee_of(Run(config=DENSE)).model, trainee.optimizer, [g], Settings()).loss for g in (known, masked)
    ]
    assert losses[0] == losses[1] != 0


def test_an_anchor_needs_a_reference_and_holds_the_policy_to_it() -> None:
    with pytest.raises(ValueError, match="no reference model"):
        trainee = trainee_of(Run(config=DENSE))
        step(trainee.model, trainee.optimizer, [], Settings(kl=0.1))
    drift = {}
    for kl in (0.0, 3.0):
        trainee, reference = trainee_of(Run(config=DENSE)), trainee_of(Run(config=DENSE)).model
        for number in range(8):
            groups = [group_of(trainee.model, (i, 2, 3), range(100 * number, 100 * number + 8), 7) for i in range(2)]
            step(trainee.model, trainee.optimizer, groups, Settings(kl=kl), reference=reference)
        with torch.no_grad():
            now, then = (m(torch.tensor([[1, 2, 3]])).log_softmax(-1) for m in (trainee.model, reference))
            drift[kl] = (now.exp() * (now - then)).sum(-1).mean().item()
    assert 0 < drift[3.0] < 0.5 * drift[0.0]


def recorded() -> list[list[Group]]:
    """Four steps' groups, of samples that some other policy made; one group has no signal."""
    model = decoder(DENSE)
    steps = [[group_of(model, (i, 2, s), range(100 * s, 100 * s + 4), 7 + s) for i in range(5)] for s in range(4)]
    return [[replace(g, rewards=tuple(r + 0.1 * (i % 3) for i, r in enumerate(g.rewards))) for g in gs] for gs in steps]


TAUGHT = Settings(feedback=0.7, anchor=0.3, feedback_options=FeedbackOptions(top=8, trust=0.05), passes=2)


def hints_of(steps: list[list[Group]]) -> list[list[Turn]]:
    """Turns with and without a hint, of uneven numbers and lengths: one has more tokens than a chunk of logits."""
    model = decoder(DENSE)
    sampled = generate(model, [(5, 6)], [[1, 2, 3, 4]], Sampling(max_tokens=300))[0]
    turns = [
        Turn(context=(5, 6), tokens=sample.ids[:length], behaviour=sample.logps[:length], hinted=hint)
        for sample, length, hint in zip(
            sampled, (300, 3, 4, 2), ((5, 20, 21, 6), (5, 6, 22), (), (5, 6, 7, 7, 7)), strict=True
        )
    ]
    return [turns[number:] for number in range(len(steps))]


def curve(
    sizes: MeshSizes | None,
    steps: list[list[Group]],
    turns: list[list[Turn]] | None = None,
    settings: Settings = Settings(passes=2),  # noqa: B008 - frozen
) -> list[Metrics]:
    trainee, reference = (trainee_of(Run(config=DENSE, sizes=sizes)) for _ in range(2))
    rank, world = (dist.get_rank(), dist.get_world_size()) if sizes else (0, 1)
    return [
        step(
            trainee.model,
            trainee.optimizer,
            groups[rank::world],
            settings,
            turns=turns[number][rank::world] if turns else (),
            reference=reference.model,
        )
        for number, groups in enumerate(steps)
    ]


def agree(found: list[Metrics], expected: list[Metrics]) -> None:
    """Within 1e-3 at every step."""
    for theirs, ours in zip(found, expected, strict=True):
        for name, value in asdict(ours).items():
            assert getattr(theirs, name) == pytest.approx(value, rel=1e-3, abs=1e-5), name


def test_one_two_and_four_ranks_have_the_same_curve() -> None:
    """Five groups do not divide evenly; nor do turns, nor chunks of logits."""
    steps = recorded()
    expected = curve(None, steps)
    assert len({metrics.loss for metrics in expected}) == 4 and not any(math.isnan(m.loss) for m in expected)
    turns = hints_of(steps)
    hinted = [[replace(group, hinted=frozenset({i})) for i, group in enumerate(groups[:4])] for groups in steps]
    taught = curve(None, hinted, turns, TAUGHT)
    assert taught[0].hinted_tokens == 305 and taught[1].gap > 0 and taught[1].anchor > 0
    for world in (2, 4):
        with Ranks(world) as pool:
            for found in pool.run(curve, MeshSizes(world=world), steps):
                agree(found, expected)
            for found in pool.run(curve, MeshSizes(world=world), hinted, turns, TAUGHT):
                agree(found, taught)


def test_a_step_is_the_sum_of_its_terms() -> None:
    """The loss and every gradient, from passes of whole sequences apart."""
    options = FeedbackOptions(top=0, cap=1.5)
    settings = Settings(feedback=0.7, anchor=0.3, feedback_options=options, temperature=0.9, max_norm=math.inf)
    behaviour = tuple((-4.0,) * len(sample) for sample in SAMPLES)
    learnt = Group(
        prompt=PROMPT, samples=SAMPLES, behaviour=behaviour, rewards=(1.0, 0.0, None, 0.0), hinted=frozenset({1})
    )
    without_signal = replace(learnt, prompt=(8, 8), rewards=(1.0,) * 4, hinted=frozenset())
    turns = [
        Turn(context=PROMPT, tokens=SAMPLES[1], behaviour=behaviour[1], hinted=(*PROMPT, 20, 21)),
        Turn(context=(7, 7), tokens=(4, 4), behaviour=(-1.0, -30.0), hinted=(7, 22, 7)),
        Turn(context=(9,), tokens=(1, 2, 3), behaviour=(-1.0, -1.0, -1.0)),
    ]
    model, ours, reference = decoder(DENSE), decoder(DENSE), decoder(DENSE)
    for one in (model, ours):
        with torch.no_grad():
            one.layers[0].mlp.up_proj.weight.mul_(0.5)

    def log_p(of: Decoder, context: tuple[int, ...], tokens: tuple[int, ...]) -> torch.Tensor:
        return (of(torch.tensor([context + tokens]))[0, len(context) - 1 : -1] / 0.9).log_softmax(-1)

    def kl(context: tuple[int, ...], tokens: tuple[int, ...], hinted: tuple[int, ...] = ()) -> torch.Tensor:
        p, q = log_p(ours, context, tokens), log_p(reference, hinted or context, tokens).detach()
        return (p.exp() * (p - q)).sum(-1)

    def chosen(context: tuple[int, ...], tokens: tuple[int, ...]) -> torch.Tensor:
        return log_p(ours, context, tokens).gather(-1, torch.tensor(tokens)[:, None])[:, 0]

    policy, value, gaps = torch.zeros(()), 0.0, []
    for i, advantage in ((0, 2 / 3), (1, -1 / 3), (3, -1 / 3)):
        logp_N = chosen(PROMPT, SAMPLES[i])
        gained_N = advantage * (logp_N.detach() + 4.0).exp().clamp(max=2.0)
        policy = policy - (gained_N * logp_N).sum()
        value -= gained_N.sum().item()  # the ratio is 1 at first; its gradient is that of log p
    policy = policy / (3 + 1 + 2)
    feedback = torch.zeros(())
    for turn in turns[:2]:
        divergence = kl(turn.context, turn.tokens, turn.hinted)
        weights_N = (chosen(turn.context, turn.tokens).detach() - torch.tensor(turn.behaviour)).exp().clamp(max=1.5)
        feedback = feedback + (weights_N * divergence).sum() / 3
        gaps += divergence.tolist()
    held = (
        [kl(PROMPT, SAMPLES[i]) for i in (0, 2, 3)] + [kl((8, 8), sample) for sample in SAMPLES] + [kl((9,), (1, 2, 3))]
    )
    anchor = torch.cat(held).mean()
    (policy + 0.7 * feedback + 0.3 * anchor).backward()

    before = weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # what it takes away is the gradient
    found = step(model, optimizer, [learnt, without_signal], settings, turns=turns, reference=reference)
    assert (found.tokens, found.hinted_tokens, found.anchored_tokens) == (6, 3, 9 + 10 + 3)
    assert found.feedback == pytest.approx(feedback.item(), rel=1e-4) and found.gap == pytest.approx(sum(gaps) / 3)
    assert found.anchor == pytest.approx(anchor.item(), rel=1e-4) and found.anchor > 1e-3
    assert found.loss == pytest.approx(value / 6 + 0.7 * feedback.item() + 0.3 * anchor.item(), rel=1e-4)
    for (name, parameter), mine in zip(model.named_parameters(), ours.parameters(), strict=True):
        gradient = before[name] - parameter.detach()
        assert mine.grad is not None and (gradient - mine.grad).abs().max() <= 1e-4 * mine.grad.abs().max() + 1e-6, name


def test_terms_that_are_not_wanted_change_nothing() -> None:
    group = Group(
        prompt=PROMPT,
        samples=SAMPLES,
        behaviour=tuple((-4.0,) * len(s) for s in SAMPLES),
        rewards=(1.0, 0.0, None, 0.0),
    )
    turn = Turn(context=PROMPT, tokens=SAMPLES[0], behaviour=(-1.0,) * 3, hinted=(*PROMPT, 20, 21))
    found = []
    for turns in ((), (turn, replace(turn, hinted=()))):
        trainee = trainee_of(Run(config=DENSE))
        found.append(step(trainee.model, trainee.optimizer, [group], Settings(), turns=turns))
    assert found[0] == found[1] and found[0].hinted_tokens == found[0].anchored_tokens == 0
    for settings in (Settings(feedback=0.1), Settings(anchor=0.1)):
        with pytest.raises(ValueError, match="no reference model"):
            step(trainee.model, trainee.optimizer, [group], settings)
    with pytest.raises(ValueError, match="anchor = -1"):
        Settings(anchor=-1)
    with pytest.raises(ValueError, match="counted from 0"):
        replace(group, hinted=frozenset({4}))


def test_an_anchor_keeps_a_hint_from_other_samples() -> None:
    """Feedback alone moves samples of another prompt, too; the anchor on their packed row holds them."""
    other = Group(
        prompt=PROMPT, samples=SAMPLES, behaviour=tuple((-4.0,) * len(s) for s in SAMPLES), rewards=(0.0,) * 4
    )
    turn = Turn(context=(7, 7), tokens=(4, 9, 4), behaviour=(-4.0,) * 3, hinted=(7, 7, 22, 23))
    last = {}
    for anchor in (1e-9, 5.0):
        trainee, reference = trainee_of(Run(config=DENSE)), trainee_of(Run(config=DENSE)).model
        settings = Settings(feedback=1.0, anchor=anchor, feedback_options=FeedbackOptions(top=0))
        curve = [
            step(trainee.model, trainee.optimizer, [other], settings, turns=[turn], reference=reference)
            for _ in range(15)
        ]
        assert curve[0].gap > 0 == curve[0].tokens
        last[anchor] = curve[-1].gap / curve[0].gap, curve[-1].anchor
    assert last[1e-9][0] < 0.5 and last[5.0][0] < 0.5, "the hint is learnt"
    assert last[5.0][1] < 0.2 * last[1e-9][1], "the others stay"
