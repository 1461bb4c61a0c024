"""A step on groups of samples: packed as apart, the same on any number of ranks, and it learns."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from decoder_cases import GROUPED, LATENT, Run, trainee_of, weights
from ranks import Ranks

from trainer.decoder_config import DecoderConfig
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


def curve(sizes: MeshSizes | None, steps: list[list[Group]]) -> list[Metrics]:
    trainee = trainee_of(Run(config=DENSE, sizes=sizes))
    rank, world = (dist.get_rank(), dist.get_world_size()) if sizes else (0, 1)
    return [step(trainee.model, trainee.optimizer, groups[rank::world], Settings(passes=2)) for groups in steps]


def test_one_two_and_four_ranks_have_the_same_curve() -> None:
    """Losses, entropies, lags and gradient norms within 1e-3 at every step; five groups do not divide evenly."""
    steps = recorded()
    expected = curve(None, steps)
    assert len({metrics.loss for metrics in expected}) == 4 and not any(math.isnan(m.loss) for m in expected)
    for world in (2, 4):
        with Ranks(world) as pool:
            for found in pool.run(curve, MeshSizes(world=world), steps):
                for theirs, ours in zip(found, expected, strict=True):
                    assert theirs.tokens == ours.tokens
                    for name in ("loss", "reward", "entropy", "lag", "gradient_norm"):
                        assert getattr(theirs, name) == pytest.approx(getattr(ours, name), rel=1e-3, abs=1e-5), name
