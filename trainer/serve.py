"""``python -m trainer generate``: samples of a policy for another process, in JSON lines over stdin and stdout.

It first says ``{"version": ...}``, or ``{"error": ...}`` and ends. A request has ``prompts``, ``seeds`` (a list for
each prompt), ``max_tokens`` and ``temperature``; a prompt is ``{"text", "indent"}`` (a file up to a line, and how the
next line begins), ``{"messages"}`` or ``{"ids"}``. The answer has, for each prompt, its ``ids`` and its ``samples``:
``ids``, ``logps``, ``text`` (what follows the prompt's text) and ``finish``; or ``{"error": ...}``.

A request with ``bodies`` in place of seeds (a text for each prompt) asks how likely these are. The answer has
``log_likelihoods``, in nats.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from trainer.conversation import hear, take_stdout
from trainer.generation import Sample, Sampling, generate, log_likelihood
from trainer.pretrained import Pretrained, WeightsError, load_pretrained

_CONTEXT = 8  # tokens
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def main(argv: Sequence[str]) -> int:
    """Answer requests until stdin ends; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer generate", description=__doc__)
    parser.add_argument("--model", required=True, help="smollm2, a folder with weights, or a .gguf file")
    parser.add_argument("--cache", type=Path, required=True, help="where weights of GGUF files are kept as safetensors")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16", help="of weights and arithmetic")
    parser.add_argument("--threads", type=int, default=1, help="threads of arithmetic")
    arguments = parser.parse_args(argv)
    say = take_stdout()
    torch.set_num_threads(arguments.threads)
    try:
        policy = load_pretrained(arguments.model, arguments.cache, DTYPES[arguments.dtype])
    except WeightsError as error:
        say({"error": str(error)})
        return 1
    say({"version": version_of(policy.model, arguments.dtype)})
    while True:
        try:
            request = hear()
            if request is None:
                return 0
            answer = respond(policy, request)
        except (ValueError, KeyError, TypeError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        say(answer)


def version_of(model: torch.nn.Module, dtype: str) -> str:
    """The first digits of a digest of all weights, wherever they lie, and the dtype that they are computed in."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return f"{digest.hexdigest()[:12]}-{dtype}"


def respond(policy: Pretrained, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request. Raises ValueError, KeyError or TypeError for one of another form."""
    tokenizer = policy.tokenizer
    if "bodies" in request:
        asked = zip(request["prompts"], request["bodies"], strict=True)
        return {"log_likelihoods": [_likelihood(policy, *one, float(request["temperature"])) for one in asked]}
    prompts = [ids_of(tokenizer, prompt) for prompt in request["prompts"]]
    sampling = Sampling(
        max_tokens=int(request["max_tokens"]),
        temperature=float(request["temperature"]),
        stop_ids=frozenset(stop_ids(tokenizer)),
    )
    if len(request["seeds"]) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts and {len(request['seeds'])} lists of seeds")
    ends = [body_end(tokenizer, asked, ids) for asked, ids in zip(request["prompts"], prompts, strict=True)]
    groups = generate(policy.model, prompts, request["seeds"], sampling, ended=lambda i, so_far: ends[i](so_far))
    return {
        "prompts": [
            {"ids": ids, "samples": [_shown(tokenizer, asked, ids, sample) for sample in group]}
            for asked, ids, group in zip(request["prompts"], prompts, groups, strict=True)
        ]
    }


def _likelihood(policy: Pretrained, asked: Mapping[str, Any], body: str, temperature: float) -> float:
    """Of the lines of a body behind a file's text, the newline at their end included."""
    tokenizer = policy.tokenizer
    prompt = boundary_ids(tokenizer, asked["text"], asked["indent"])
    start = [i for i in prompt[:1] if i == tokenizer.bos_token_id]
    whole = [*start, *tokenizer(f"{asked['text']}\n{body}\n", add_special_tokens=False)["input_ids"]]
    # Where the body's first word takes white space that the prompt holds, the prompt is shorter by that.
    same = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
    return log_likelihood(policy.model, whole[:same], whole[same:], temperature)


def stop_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Tokens that no source code holds: special ones, the end of text among them."""
    return {int(i) for i in tokenizer.all_special_ids if i != tokenizer.unk_token_id}


def ids_of(tokenizer: PreTrainedTokenizerBase, prompt: Mapping[str, Any]) -> list[int]:
    """The token ids of a prompt. Raises ValueError for one of another form."""
    if "ids" in prompt:
        return [int(i) for i in prompt["ids"]]
    if "messages" in prompt:
        text = tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True, tokenize=False)
        return list(tokenizer(str(text), add_special_tokens=False)["input_ids"])
    return boundary_ids(tokenizer, prompt["text"], prompt["indent"])


def boundary_ids(tokenizer: PreTrainedTokenizerBase, text: str, indent: str) -> list[int]:
    """``text`` tokenized as it is where a line with ``indent`` follows, up to that line's first word.

    Tokenizers merge a newline with the white space behind it, and that with a word: a prompt that ends elsewhere asks
    for tokens that the model never saw there. So a word goes with it, and the token that holds it is taken off again.

    Raises ValueError if the tokenizer does not give the text back, as one that changes white space does not.
    """
    whole = f"{text}\n{indent}x"
    ids = list(tokenizer(whole, add_special_tokens=False)["input_ids"])
    if _decoded(tokenizer, ids) != whole:
        raise ValueError("the tokenizer changes the prompt's text")
    starts = tokenizer("")["input_ids"]
    return [i for i in starts if i == tokenizer.bos_token_id][:1] + ids[:-1]


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _shown(
    tokenizer: PreTrainedTokenizerBase, asked: Mapping[str, Any], prompt: Sequence[int], sample: Sample
) -> dict[str, Any]:
    """A sample with its text: of one that continues a file, what follows the text that was asked about."""
    if "text" in asked:
        text = _decoded(tokenizer, [*prompt, *sample.ids])[len(asked["text"]) :]
    else:
        text = _decoded(tokenizer, sample.ids)
    return {"ids": sample.ids, "logps": sample.logps, "text": text, "finish": sample.finish}


def body_end(
    tokenizer: PreTrainedTokenizerBase, asked: Mapping[str, Any], prompt: Sequence[int]
) -> Callable[[Sequence[int]], bool]:
    """Whether a sample of the prompt has left the body that it continues, told its ids so far; an answer never has.

    It is decoded behind a few tokens of the prompt alone, which the decoder may need to see; that is done at each step.
    """
    if "text" not in asked:
        return lambda ids: False
    indent = asked["indent"]
    begun = _decoded(tokenizer, prompt)[len(asked["text"]) :]
    before = list(prompt[-_CONTEXT:])
    start = len(_decoded(tokenizer, before))
    return lambda ids: ends_body(begun + _decoded(tokenizer, [*before, *ids])[start:], indent)


def ends_body(text: str, indent: str) -> bool:
    """Whether a line behind the first one begins left of ``indent``."""
    return any(line.strip() and not line.startswith(indent) for line in text.split("\n")[1:])
