"""What users of other trainers complained about does not happen here; each test names the thread.

Of the same kind, elsewhere: what is sampled has the log-probabilities of one pass (test_generation.py), resuming a run
(tests/test_resume.py and the tests of training), counts of terms (test_objective.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from decoder_cases import GROUPED, Run, trainee_of, weights
from test_serve import tokenizer_of

from taskgen.policies.policy import Completion, Form
from taskgen.training.groups import Graded, Group, Outcome
from trainer import learn, rows
from trainer.generation import Sampling, generate
from trainer.grpo import Settings, step
from trainer.moe import Decoder, init_weights
from trainer.packing import CHUNK, pack
from trainer.pretrained import Pretrained
from trainer.serve import respond

DENSE = replace(GROUPED, n_routed_experts=0, num_experts_per_tok=0, n_shared_experts=0)
PROMPT = tuple(range(1, 41))


def decoder(vocab_size: int = 64) -> Decoder:
    model = Decoder(replace(DENSE, vocab_size=vocab_size))
    init_weights(model, 3, std=0.3)
    return model


@contextmanager
def rows_of_logits(model: Decoder) -> Iterator[list[int]]:
    """How many tokens' logits each use of the head makes."""
    found: list[int] = []
    handle = model.lm_head.register_forward_hook(lambda _, __, out: found.append(out.shape[:-1].numel()))
    yield found
    handle.remove()


def group_of(samples: list[tuple[int, ...]], rewards: tuple[float | None, ...]) -> rows.Group:
    behaviour = tuple((-4.0,) * len(sample) for sample in samples)
    return rows.Group(prompt=PROMPT, samples=tuple(samples), behaviour=behaviour, rewards=rewards)


def test_ids_that_train_are_the_ids_that_were_sampled() -> None:
    """trl #5224, #5144, #6250, verl #3960, #6719: text is tokenized again, and gives other ids than were sampled."""
    tokenizer = tokenizer_of(pattern=True)
    policy = Pretrained("", decoder(len(tokenizer)), tokenizer)
    request = {"prompts": [{"text": "def f(a):", "indent": "    "}], "seeds": [list(range(12))]}
    answer = json.loads(json.dumps(respond(policy, {**request, "max_tokens": 8, "temperature": 1.0})))["prompts"][0]
    ids = [tuple(sample["ids"]) for sample in answer["samples"]]
    again = [tuple(tokenizer(sample["text"], add_special_tokens=False)["input_ids"]) for sample in answer["samples"]]
    assert sum(a != b for a, b in zip(ids, again, strict=True)) >= 6, "text does not tell these ids"
    samples = tuple(
        Completion(text=s["text"], form=Form.CONTINUATION, finish_reason=s["finish"], token_ids=tuple(s["ids"]),
                   logps=tuple(s["logps"]))
        for s in answer["samples"]
    )  # fmt: skip
    group = Group(instance_id="t", batch=0, step=0, prompt_ids=tuple(answer["ids"]), samples=samples)
    graded = Graded(group=group, outcomes=(Outcome(reward=1.0, passed=True),) * len(samples))
    asked = json.loads(json.dumps(graded.as_request(teaches=False)))
    learnt = learn._group(SimpleNamespace(tokenizer=tokenizer), asked)
    assert learnt.samples == tuple(ids) and learnt.prompt == tuple(answer["ids"])
    packed = pack(learnt.prompt, learnt.samples)
    assert packed.target_N.tolist() == [token for sample in ids for token in sample]
    assert packed.ids_T[: len(learnt.prompt)].tolist() == answer["ids"]


def test_logits_of_all_tokens_never_exist_together() -> None:
    """trl #3678, #4585: [B, T, V] of logits, and a copy in float32, are what runs out of memory."""
    trainee = trainee_of(Run(config=DENSE))
    samples = [tuple((7 * i + j) % 64 for j in range(CHUNK // 2)) for i in range(5)]
    with rows_of_logits(trainee.model) as found:
        metrics = step(trainee.model, trainee.optimizer, [group_of(samples, (1.0, 0.0, 0.0, 1.0, 0.0))], Settings())
    assert metrics.tokens == 5 * (CHUNK // 2) > 2 * CHUNK
    assert max(found) == CHUNK


def test_prompts_have_no_logits() -> None:
    """slime #2253: the head is also applied to the prompt's tokens, most of a long context. Nor is more than one token
    of a prompt in generation."""
    trainee = trainee_of(Run(config=DENSE))
    samples = [(1, 2, 3), (4, 5), (6,)]
    with rows_of_logits(trainee.model) as found:
        step(trainee.model, trainee.optimizer, [group_of(samples, (1.0, 0.0, 0.5))], Settings())
    assert found == [6, 6], "one pass, and once more in the backward pass: of sampled tokens alone"
    with rows_of_logits(trainee.model) as found:
        generate(trainee.model, [PROMPT, PROMPT[:9]], [[1, 2, 3], [4]], Sampling(max_tokens=3))
    assert found == [1, 1, 4, 4]


def test_log_probabilities_are_those_of_the_uncut_distribution() -> None:
    """trl #6789: log-probabilities of a nucleus, renormalised, bias the ratio to the policy that learns."""
    model, temperature = decoder(), 0.8
    (found,) = generate(model, [PROMPT], [list(range(400))], Sampling(max_tokens=1, temperature=temperature))
    with torch.no_grad():
        logp = (model(torch.tensor([PROMPT]))[0, -1] / temperature).log_softmax(-1)
    for sample in found:
        assert sample.logps[0] == pytest.approx(logp[sample.ids[0]].item(), abs=1e-4)
    likeliest = logp.sort(descending=True)
    nucleus = set(likeliest.indices[likeliest.values.exp().cumsum(-1) <= 0.9].tolist())
    outside = sum(sample.ids[0] not in nucleus for sample in found) / len(found)
    expected = 1 - sum(logp[i].exp().item() for i in nucleus)
    assert expected > 0.1 and outside == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 400) ** 0.5)
    for name in ("top_p", "top_k", "min_p"):
        with pytest.raises(TypeError, match=name):
            Sampling(max_tokens=1, **{name: 1})


def test_a_rollout_that_timed_out_does_not_mask_its_group() -> None:
    """SkyRL's generator for Harbor: one rollout that timed out masks all of its task. Here the others teach, with the
    same update as if it had never been."""
    samples = [(9, 2, 6), (5,), (3, 5, 8, 9), (7, 9)]
    graded = (Outcome(reward=1.0, passed=True), Outcome(reward=0.0, passed=False))
    lost = Outcome(reward=None, passed=None, fault="SandboxTimeout: 60 s")
    completions = tuple(
        Completion(text="", form=Form.CONTINUATION, finish_reason="stop", token_ids=ids, logps=(-4.0,) * len(ids))
        for ids in samples
    )
    updates = []
    for n, outcomes in ((4, (*graded, lost, lost)), (2, graded)):
        group = Group(instance_id="t", batch=0, step=0, prompt_ids=PROMPT, samples=completions[:n])
        asked = Graded(group=group, outcomes=outcomes)
        assert asked.has_signal
        trainee = trainee_of(Run(config=DENSE))
        before = weights(trainee.model)
        learnt = learn._group(SimpleNamespace(tokenizer=None), asked.as_request(teaches=False))
        metrics = step(trainee.model, trainee.optimizer, [learnt], Settings())
        assert metrics.tokens == 4
        assert any(not torch.equal(before[name], tensor) for name, tensor in weights(trainee.model).items())
        updates.append(weights(trainee.model))
    assert all(torch.equal(updates[0][name], updates[1][name]) for name in updates[0])
