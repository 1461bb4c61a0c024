"""What is sampled, and the log-probabilities that go with it, are those of the whole sequence in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from decoder_cases import GROUPED, LATENT

from trainer.decoder_config import DecoderConfig
from trainer.generation import Sample, Sampling, generate
from trainer.moe import Decoder, init_weights

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11]]


def decoder(config: DecoderConfig) -> Decoder:
    model = Decoder(config)
    init_weights(model, 3, std=0.3)
    return model


@pytest.fixture(scope="module", params=[LATENT, GROUPED], ids=["latent", "grouped"])
def model(request: pytest.FixtureRequest) -> Decoder:
    return decoder(request.param)


@torch.no_grad()
def assert_as_in_one_pass(model: Decoder, prompt: list[int], sample: Sample, temperature: float) -> None:
    ids = torch.tensor([*prompt, *sample.ids])
    logits = model(ids[None])[0, len(prompt) - 1 : -1] / (temperature or 1.0)
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(sample.ids)[:, None])[:, 0]
    assert torch.allclose(torch.tensor(sample.logps), expected, atol=1e-4)
    if temperature == 0:
        assert logits.argmax(-1).tolist() == list(sample.ids)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logps_are_those_of_one_pass(model: Decoder, temperature: float) -> None:
    found = generate(model, PROMPTS, [[0, 1], [2, 3, 4], [5]], Sampling(max_tokens=9, temperature=temperature))
    assert [len(group) for group in found] == [2, 3, 1]
    for prompt, group in zip(PROMPTS, found, strict=True):
        for sample in group:
            assert len(sample.ids) == 9 and sample.finish == "length"
            assert_as_in_one_pass(model, prompt, sample, temperature)


def test_a_sample_depends_on_its_prompt_and_seed_alone(model: Decoder) -> None:
    sampling = Sampling(max_tokens=8, stop_ids=frozenset(range(10)))
    together = generate(model, PROMPTS, [[7, 8, 9], [7, 8], [7]], sampling)
    alone = [generate(model, [p], [[seed]], sampling)[0][0] for p, seed in zip(PROMPTS, (9, 8, 7), strict=True)]
    assert [together[0][2].ids, together[1][1].ids, together[2][0].ids] == [sample.ids for sample in alone]
    assert len({sample.ids for sample in together[0]}) > 1


def test_a_stop_token_ends_a_sample_and_belongs_to_it(model: Decoder) -> None:
    stop = frozenset(range(0, 64, 3))
    found = generate(model, PROMPTS, [list(range(20))] * 3, Sampling(max_tokens=12, stop_ids=stop))
    samples = [sample for group in found for sample in group]
    ended = [sample for sample in samples if sample.finish == "stop"]
    assert ended and any(len(sample.ids) > 2 for sample in ended)
    for sample in samples:
        assert not stop & set(sample.ids[:-1])
        assert (sample.ids[-1] in stop) == (sample.finish == "stop")
        assert len(sample.ids) == len(sample.logps)
    for prompt, group in zip(PROMPTS, found, strict=True):
        assert_as_in_one_pass(model, prompt, group[0], 1.0)


def test_a_sample_stops_where_the_caller_says_and_the_others_go_on_as_before(model: Decoder) -> None:
    def ended(prompt: int, ids: Sequence[int]) -> bool:
        return (sum(ids) + prompt) % 7 == 0

    sampling, seeds = Sampling(max_tokens=12), [list(range(5)), list(range(7)), [3]]
    lengths = set()
    free, found = generate(model, PROMPTS, seeds, sampling), generate(model, PROMPTS, seeds, sampling, ended=ended)
    for prompt, (group, wholes) in enumerate(zip(found, free, strict=True)):
        for sample, whole in zip(group, wholes, strict=True):
            ends = [n for n in range(1, 13) if ended(prompt, whole.ids[:n])]
            n = min([*ends, 12])
            assert sample.ids == whole.ids[:n] and sample.finish == ("stop" if ends else "length")
            assert sample.logps == pytest.approx(whole.logps[:n], abs=1e-4)
            lengths.add(n)
    assert len(lengths) > 4 and 12 in lengths


def test_samples_follow_the_distribution() -> None:
    """The first token of 4000 samples, against its probabilities: chi-squared below its 0.999 quantile."""
    model = decoder(GROUPED)
    n = 4000
    found = generate(model, [[5, 6]], [list(range(n))], Sampling(max_tokens=1, temperature=0.8))[0]
    counts = torch.bincount(torch.tensor([sample.ids[0] for sample in found]), minlength=64)
    with torch.no_grad():
        expected = n * (model(torch.tensor([[5, 6]]))[0, -1] / 0.8).softmax(-1)
    often = expected > 5
    chi2 = ((counts - expected)[often] ** 2 / expected[often]).sum().item()
    freedom = int(often.sum())
    assert chi2 < freedom + 3.1 * (2 * freedom) ** 0.5 + 8


@pytest.mark.parametrize("sampling", [{"max_tokens": 0}, {"max_tokens": 1, "temperature": -1.0}])
def test_sampling_that_makes_no_sense_is_refused(sampling: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="sampling:"):
        Sampling(**sampling)  # type: ignore[arg-type]


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="without tokens"):
        generate(decoder(GROUPED), [[]], [[0]], Sampling(max_tokens=1))
