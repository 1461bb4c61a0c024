"""The process that generates for taskgen: where prompts end, what it gives back, and what happens when it dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from taskgen.errors import PolicyFault, PrerequisiteError
from taskgen.hints.context import hinted
from taskgen.hints.rules import Hint
from taskgen.policies.conversation import Conversation, Reply, Tool
from taskgen.policies.local import LocalConfig, LocalPolicy
from taskgen.policies.policy import Completion, Form, Prompt, Sampled, Sampling
from taskgen.types import Turn
from tests.tiny_model import tokenizer_of
from trainer.generation import Sampling as TokenSampling
from trainer.generation import generate
from trainer.pretrained import load_pretrained
from trainer.serve import boundary_ids, ends_body, ids_of, respond, stop_ids

SAMPLING = Sampling(max_tokens=12, temperature=1.0)
TEXT = "def f(a):"
LLAMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.5,
}  # fmt: skip


# --- Where a prompt ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("indent", ["    ", "        "])
@pytest.mark.parametrize("pattern", [True, False])
def test_a_prompt_ends_as_the_same_text_does_inside_of_a_file(indent: str, pattern: bool) -> None:
    tokenizer = tokenizer_of(pattern)
    text = TEXT if indent == "    " else "class A:\n    def f(a):"
    ids = boundary_ids(tokenizer, text, indent)
    followed = tokenizer(f"{text}\n{indent}x")["input_ids"]
    assert ids == followed[:-1], "what follows is one token more, not another split"
    shown = tokenizer.decode(ids)
    assert f"{text}\n{indent}x".startswith(shown)


@pytest.mark.parametrize("indent", ["    ", "        "])
@pytest.mark.parametrize("pattern", [True, False])
def test_a_hinted_prompt_ends_where_the_prompt_does(indent: str, pattern: bool) -> None:
    """The same sampled ids follow both: as much of the next line is left for them to begin with."""
    tokenizer = tokenizer_of(pattern)
    prompt = Prompt(instance_id="t", folder=Path(), text=TEXT, indent=indent, messages=(Turn(role="user", text="f"),))
    hint = Hint(rule="effort", turn_index=1, text="Keep it short.")

    def left(asked: Prompt) -> str:
        ids = ids_of(tokenizer, {"text": asked.text, "indent": asked.indent})
        whole, shown = f"{asked.text}\n{asked.indent}", tokenizer.decode(ids)
        assert whole.startswith(shown) and len(shown) > len(asked.text)
        return whole.removeprefix(shown)

    assert left(hinted(prompt, hint, Form.CONTINUATION)) == left(prompt)
    messages = [{"role": t.role, "content": t.text} for t in hinted(prompt, hint, Form.ANSWER).messages]
    assert tokenizer.decode(ids_of(tokenizer, {"messages": messages})).endswith("Keep it short.\nassistant:")


def test_the_naive_prompt_would_end_elsewhere() -> None:
    """The trap: a tokenizer that merges ``:`` and the newline gives other ids for the text alone."""
    tokenizer = tokenizer_of(pattern=False)
    naive = tokenizer(TEXT)["input_ids"]
    whole = tokenizer(f"{TEXT}\n    return a")["input_ids"]
    assert whole[: len(naive)] != naive
    ids = boundary_ids(tokenizer, TEXT, "    ")
    assert whole[: len(ids)] == ids or tokenizer(f"{TEXT}\n    x")["input_ids"][: len(ids)] == ids


def test_a_tokenizer_that_changes_text_is_refused() -> None:
    inner = Tokenizer(models.WordLevel({"def": 0, "x": 1, "?": 2}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match="changes the prompt's text"):
        boundary_ids(PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="?"), TEXT, "    ")


# --- Where a sample ends -----------------------------------------------------------------------------------


def test_a_body_ends_left_of_its_indent() -> None:
    assert not ends_body("\n    a\n\n      b\n  ", "    ")
    assert ends_body("\n    a\ndef", "    ") and ends_body("\n    a\n  b", "    ")


def test_sampling_stops_where_a_longer_sample_would_be_cut(tiny_model: Path, tmp_path: Path) -> None:
    """At equal seeds: the same tokens as sampling all and dropping what stands behind the end of the body."""
    policy = load_pretrained(str(tiny_model), tmp_path)
    tokenizer = policy.tokenizer
    asked = [{"text": TEXT, "indent": "    "}, {"text": "class A:\n    def f(a):", "indent": "        "}]
    seeds = [list(range(30)), list(range(40, 60))]
    request = {"prompts": asked, "seeds": seeds, "max_tokens": 24, "temperature": 1.0}
    prompts = [ids_of(tokenizer, prompt) for prompt in asked]
    uncut = generate(
        policy.model, prompts, seeds, TokenSampling(max_tokens=24, stop_ids=frozenset(stop_ids(tokenizer)))
    )
    n_cut = 0
    for prompt, ids, group, wholes in zip(asked, prompts, respond(policy, request)["prompts"], uncut, strict=True):
        for sample, whole in zip(group["samples"], wholes, strict=True):
            written = [
                str(tokenizer.decode([*ids, *whole.ids[:n]], skip_special_tokens=True))[len(prompt["text"]) :]
                for n in range(1, len(whole.ids) + 1)
            ]
            ends = [n for n, text in enumerate(written, 1) if ends_body(text, prompt["indent"])]
            n = min([*ends, len(whole.ids)])
            assert sample["ids"] == whole.ids[:n] and sample["text"] == written[n - 1]
            assert sample["logps"] == pytest.approx(whole.logps[:n], abs=1e-4)
            assert sample["finish"] == ("stop" if ends else whole.finish)
            n_cut += n < len(whole.ids)
    assert 10 <= n_cut < 50


def test_a_sample_has_the_logps_of_its_ids(tiny_model: Path, tmp_path: Path) -> None:
    policy = load_pretrained(str(tiny_model), tmp_path)
    prompts = [{"text": TEXT, "indent": "    "}, {"messages": [{"role": "user", "content": "hi"}]}, {"ids": [5, 6]}]
    request: dict[str, Any] = {"prompts": prompts, "seeds": [[1, 2], [3], [4]], "max_tokens": 12, "temperature": 0.9}
    found = respond(policy, request)["prompts"]
    assert [len(group["samples"]) for group in found] == [2, 1, 1]
    for asked, group in zip(prompts, found, strict=True):
        for sample in group["samples"]:
            ids = torch.tensor([*group["ids"], *sample["ids"]])
            with torch.no_grad():
                logits = policy.model(ids[None])[0, len(group["ids"]) - 1 : -1] / 0.9
            expected = logits.log_softmax(-1).gather(-1, torch.tensor(sample["ids"])[:, None])[:, 0]
            assert torch.allclose(torch.tensor(sample["logps"]), expected, atol=1e-4)
            if "text" in asked:
                decoded = policy.tokenizer.decode([*group["ids"], *sample["ids"]], skip_special_tokens=True)
                assert decoded == asked["text"] + sample["text"]


@pytest.mark.parametrize("pattern", [True, False])
def test_a_body_is_as_likely_as_the_tokens_that_follow_its_file(pattern: bool, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(pattern)
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**LLAMA, vocab_size=len(tokenizer))).save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    policy = load_pretrained(str(tmp_path / "m"), tmp_path)
    asked, bodies = {"text": TEXT, "indent": "    "}, ["    return a", "    if a:\n        return b"]
    found = respond(policy, {"prompts": [asked, asked], "bodies": bodies, "temperature": 0.8})["log_likelihoods"]
    for body, value in zip(bodies, found, strict=True):
        ids = tokenizer(f"{TEXT}\n{body}\n")["input_ids"]
        prompt = ids_of(policy.tokenizer, asked)
        start = next((i for i, (a, b) in enumerate(zip(prompt, ids, strict=False)) if a != b), len(prompt))
        assert 0 < start < len(ids)
        with torch.no_grad():
            logp = (policy.model(torch.tensor([ids]))[0, :-1] / 0.8).log_softmax(-1)
        expected = logp.gather(-1, torch.tensor(ids[1:])[:, None])[start - 1 :].sum()
        assert value == pytest.approx(float(expected), abs=1e-3) and value < 0
    assert "error" not in respond(policy, {"prompts": [], "bodies": [], "temperature": 0.8})
    with pytest.raises(ValueError):
        respond(policy, {"prompts": [asked], "bodies": [], "temperature": 0.8})


# --- The process -------------------------------------------------------------------------------------------


def ask(policy: LocalPolicy, seeds: list[int]) -> list[Sampled]:
    turns = (Turn(role="user", text="hi"),)
    prompt = Prompt(instance_id="t", folder=Path("x"), text=TEXT, indent="    ", messages=turns)
    (found,) = policy.complete([prompt], [seeds], SAMPLING)
    return found


def texts(samples: list[Sampled]) -> list[str]:
    return [sample.text if isinstance(sample, Completion) else str(sample) for sample in samples]


def test_a_local_policy_lives_dies_and_lives_again(tiny_model: Path, tmp_path: Path) -> None:
    policy = LocalPolicy(LocalConfig(model=str(tiny_model), dtype="float32"), tmp_path)
    try:
        first = ask(policy, [1, 2])
        for sample in first:
            assert isinstance(sample, Completion) and sample.form is Form.CONTINUATION
            assert sample.token_ids and sample.logps and len(sample.token_ids) == len(sample.logps) == sample.n_tokens
            assert sample.prompt_ids and sample.cost_usd is None
        assert texts(ask(policy, [2, 1])) == texts(first)[::-1], "a sample depends on its seed alone"
        assert policy.pid is not None
        os.kill(policy.pid, signal.SIGKILL)
        lost = ask(policy, [1, 2])
        assert all(isinstance(sample, PolicyFault) and "signal 9" in str(sample) for sample in lost)
        assert texts(ask(policy, [1, 2])) == texts(first)
        prompt = Prompt(instance_id="t", folder=Path("x"), text=TEXT, indent="    ", messages=())
        likely = policy.log_likelihoods([prompt], ["    return a"], SAMPLING)
        assert isinstance(likely, list) and len(likely) == 1 and likely[0] < 0
        os.kill(policy.pid or 0, signal.SIGKILL)
        assert isinstance(policy.log_likelihoods([prompt], ["    return a"], SAMPLING), PolicyFault)
        assert policy.log_likelihoods([prompt], ["    return a"], SAMPLING) == likely
    finally:
        policy.close()
    assert policy.pid is None


def test_a_local_policy_converses_and_keeps_the_exact_ids(tiny_model: Path, tmp_path: Path) -> None:
    policy = LocalPolicy(LocalConfig(model=str(tiny_model), dtype="float32", style="chat"), tmp_path)
    tools = [Tool(name="bash", description="run it", parameters={})]
    opening = (Turn(role="system", text="s"), Turn(role="user", text="u"))
    try:
        asked = [Conversation(instance_id="t", folder=Path("x"), turns=opening, seed=seed) for seed in (1, 2)]
        first, second = policy.reply(asked, tools, SAMPLING)
        assert isinstance(first, Reply) and isinstance(second, Reply)
        assert first.prompt_ids == second.prompt_ids and first.turn.text != second.turn.text
        assert first.token_ids and first.logps and len(first.token_ids) == len(first.logps) == first.n_tokens
        assert first.turn.tool_calls == () and first.cost_usd is None
        turns = (*opening, first.turn, Turn(role="user", text="call a tool"))
        (later,) = policy.reply([Conversation(instance_id="t", folder=Path("x"), turns=turns, seed=1)], tools, SAMPLING)
        assert isinstance(later, Reply) and later.prompt_ids and len(later.prompt_ids) > len(first.prompt_ids or ())
        assert later.turn.text != first.turn.text, "each turn has a seed of its own"
        os.kill(policy.pid or 0, signal.SIGKILL)
        assert all(isinstance(lost, PolicyFault) for lost in policy.reply(asked, tools, SAMPLING))
        assert policy.reply(asked, tools, SAMPLING)[0].turn == first.turn  # type: ignore[union-attr]
    finally:
        policy.close()


def test_other_weights_are_another_version(tiny_model: Path, tmp_path: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    other = tmp_path / "other"
    model.save_pretrained(other)
    PreTrainedTokenizerFast.from_pretrained(tiny_model).save_pretrained(other)
    versions = []
    for path in (tiny_model, other):
        policy = LocalPolicy(LocalConfig(model=str(path), dtype="float32", style="chat"), tmp_path)
        versions.append(policy.version)
        assert all(isinstance(s, Completion) and s.form is Form.ANSWER for s in ask(policy, [1]))
        policy.close()
    assert versions[0] != versions[1]


def test_a_model_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match="no weights could be loaded"):
        LocalPolicy(LocalConfig(model=str(tmp_path / "none")), tmp_path)


def test_a_process_that_does_not_answer_is_killed(tiny_model: Path, tmp_path: Path) -> None:
    policy = LocalPolicy(LocalConfig(model=str(tiny_model), dtype="float32"), tmp_path)
    assert policy.pid is not None
    os.kill(policy.pid, signal.SIGSTOP)
    policy._config = policy._config.model_copy(update={"timeout_s": 0.5})
    (lost,) = ask(policy, [1])
    assert isinstance(lost, PolicyFault) and "no answer within" in str(lost)
    assert policy.pid is None
    policy.close()
