"""A step of GRPO, ours beside TRL's: ``python -m benchmarks.trl_step [--case smollm2] [--rounds N] [--json FILE]``.

Both have the same weights, prompts, numbers of samples and tokens, AdamW, and one thread; each is a process of its own,
and they take turns, so that other load on the machine meets both. Prints CPU seconds of a step (median over rounds;
generation, and all the rest), the peak of resident memory, and how much of it came after the model had been loaded.

Cases: ``small``, a Qwen3 of 4 layers with random weights in float32, 4 prompts of 64 tokens, 8 samples of 64 each;
``smollm2``, SmolLM2-135M-Instruct in bfloat16, one prompt of about 300 tokens, 8 samples of 48.

TRL is installed in a virtual environment in ``--cache`` that sees this one's packages: the same torch and transformers.
No sample ends early; in both the reward is the share of even token ids.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import sysconfig
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

TRL = "trl==1.16.0"
ROOT = Path(__file__).parents[1]
MIB = 2**20
LR, SEED = 1e-6, 0


@dataclass(frozen=True, slots=True)
class Case:
    """``dtype`` is that of weights, arithmetic and the optimizer's state."""

    n_prompts: int
    n_samples: int
    prompt_tokens: int
    new_tokens: int
    dtype: str


CASES = {"small": Case(4, 8, 64, 64, "float32"), "smollm2": Case(1, 8, 300, 48, "bfloat16")}


def prompts_of(name: str) -> list[str]:
    """Random words of the small model's vocabulary, or the beginning of a module of the standard library."""
    case, generator = CASES[name], random.Random(SEED)
    if name == "small":
        return [
            " ".join(f"t{generator.randrange(2, 2048)}" for _ in range(case.prompt_tokens))
            for _ in range(case.n_prompts)
        ]
    return [inspect.getsource(textwrap)[:1130]]


def reward(ids: list[int]) -> float:
    return sum(i % 2 == 0 for i in ids) / len(ids)


# -- the two sides, each in a process of its own: a line on stdin is a step, a line on stdout its figures --------------


@dataclass(slots=True)
class Turns:
    """Waits for the parent's word before each step, and gives the step's figures back."""

    answers: TextIO
    loaded_bytes: int = 0

    def wait(self) -> bool:
        self.loaded_bytes = self.loaded_bytes or int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
        return bool(sys.stdin.readline())

    def say(self, generation_s: float, step_s: float, tokens: tuple[int, int]) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        figures = Figures(generation_s, step_s - generation_s, peak, peak - self.loaded_bytes, *tokens)
        self.answers.write(json.dumps(asdict(figures)) + "\n")
        self.answers.flush()


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one step: CPU seconds, bytes, tokens of all prompts (of each once) and of all samples."""

    generation_s: float
    training_s: float
    peak_bytes: int
    above_loaded_bytes: int
    prompt_tokens: int
    new_tokens: int


def ours(name: str, folder: str, turns: Turns) -> None:
    import torch

    from trainer.generation import Sampling, generate
    from trainer.grpo import Settings, step
    from trainer.muon import Muon
    from trainer.pretrained import load_pretrained
    from trainer.rows import Group

    torch.set_num_threads(1)
    case = CASES[name]
    policy = load_pretrained(folder, Path(folder), getattr(torch, case.dtype))
    named = list(policy.model.named_parameters())
    adamw = {"algorithm": "adamw", "params": named, "lr": LR, "betas": (0.9, 0.999), "weight_decay": 0.0}
    optimizer = Muon([adamw])
    prompts = [list(policy.tokenizer(text)["input_ids"]) for text in prompts_of(name)]
    number = 0
    while turns.wait():
        number += 1
        began = time.process_time()
        seeds = [[10000 * number + 100 * i + j for j in range(case.n_samples)] for i in range(len(prompts))]
        sampled = generate(policy.model, prompts, seeds, Sampling(max_tokens=case.new_tokens))
        generated = time.process_time()
        groups = [
            Group(
                prompt=tuple(prompt),
                samples=tuple(sample.ids for sample in samples),
                behaviour=tuple(sample.logps for sample in samples),
                rewards=tuple(reward(list(sample.ids)) for sample in samples),
            )
            for prompt, samples in zip(prompts, sampled, strict=True)
        ]
        metrics = step(policy.model, optimizer, groups, Settings())
        tokens = (sum(map(len, prompts)), metrics.tokens)
        turns.say(generated - began, time.process_time() - began, tokens)


def trls(name: str, folder: str, turns: Turns) -> None:
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    case, clock = CASES[name], {"generation": 0.0, "began": 0.0, "prompt": 0.0, "new": 0.0}

    class Takes(TrainerCallback):
        def on_step_begin(self, args: object, state: object, control: object, **_: object) -> None:
            if not turns.wait():
                sys.stdout.flush()
                os._exit(0)
            clock.update(generation=0.0, began=time.process_time())

        def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
            spent = time.process_time() - clock["began"]
            turns.say(clock["generation"], spent, (int(clock["prompt"]), int(clock["new"])))

    def rewards(completion_ids: list[list[int]], **_: object) -> list[float]:
        clock["new"] = sum(map(len, completion_ids))
        return [reward(ids) for ids in completion_ids]

    config = GRPOConfig(
        output_dir=str(Path(folder) / "trl"), use_cpu=True, bf16=False, report_to="none", save_strategy="no",
        logging_strategy="no", disable_tqdm=True, max_steps=10**6, learning_rate=LR, lr_scheduler_type="constant",
        per_device_train_batch_size=case.n_prompts * case.n_samples, num_generations=case.n_samples,
        steps_per_generation=1, num_iterations=1, gradient_accumulation_steps=1, gradient_checkpointing=False,
        max_completion_length=case.new_tokens, generation_kwargs={"min_new_tokens": case.new_tokens},
        temperature=1.0, beta=0.0, scale_rewards="none", max_grad_norm=1.0, seed=SEED,
        model_init_kwargs={"dtype": getattr(torch, case.dtype)},
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": prompts_of(name)})
    trainer = GRPOTrainer(model=folder, reward_funcs=rewards, args=config, train_dataset=prompts, callbacks=[Takes()])
    inner: Callable[..., object] = trainer._generate_single_turn

    def timed(prompt_ids: list[list[int]], *rest: object, **named: object) -> object:
        clock["prompt"] = sum(map(len, prompt_ids)) / case.n_samples
        began = time.process_time()
        found = inner(prompt_ids, *rest, **named)
        clock["generation"] += time.process_time() - began
        return found

    trainer._generate_single_turn = timed
    trainer.train()


# -- the parent --------------------------------------------------------------------------------------------------------


def trl_python(cache: Path) -> Path:
    """The Python of a virtual environment with TRL, made on first use; what this one has is not installed again."""
    folder = cache / "trl-venv"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"making {folder} with {TRL} (once)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
        packages = subprocess.run([str(python), "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
        (Path(packages) / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
        subprocess.run([str(python), "-m", "pip", "install", "-q", TRL], check=True)
        (folder / "ready").touch()
    return python


def folder_of(name: str, cache: Path) -> str:
    """The weights and tokenizer of a case, made on first use."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed

    if name == "smollm2":
        from trainer.pretrained import load_pretrained

        load_pretrained("smollm2", cache)
        return str(next(cache.glob("weights/SmolLM2*/done")).parent)
    folder = cache / "qwen3-small"
    words = {"<pad>": 0, "<end>": 1, **{f"t{i}": i for i in range(2, 2048)}}
    inner = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<end>").save_pretrained(folder)
    set_seed(SEED)
    config = Qwen3Config(
        vocab_size=2048, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return str(folder)


class Side:
    """A worker's process."""

    def __init__(self, python: str, side: str, name: str, folder: str, log: Path) -> None:
        variables = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.trl_step", "--side", side, "--case", name, "--folder", folder],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT,
                env={**os.environ, **variables},
            )  # fmt: skip
        self._log = log

    def step(self) -> Figures:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended: {self._log.read_text('utf-8', 'replace')[-3000:]}")
        return Figures(**json.loads(line))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def measured(name: str, rounds: int, cache: Path) -> dict[str, list[Figures]]:
    """Each side's steps; the first of each is not among them."""
    pythons = {"ours": sys.executable, "TRL": str(trl_python(cache))}
    folder = folder_of(name, cache)
    sides = {side: Side(python, side, name, folder, cache / f"{side}.log") for side, python in pythons.items()}
    try:
        steps = [{side: worker.step() for side, worker in sides.items()} for _ in range(rounds + 1)]
    finally:
        for worker in sides.values():
            worker.close()
    return {side: [figures[side] for figures in steps[1:]] for side in sides}


def table(found: dict[str, list[Figures]]) -> Iterator[str]:
    def median(side: str, of: Callable[[Figures], float]) -> float:
        return statistics.median(of(figures) for figures in found[side])

    lines: list[tuple[str, Callable[[Figures], float], str]] = [
        ("generation, CPU s", lambda f: f.generation_s, ".2f"),
        ("training, CPU s", lambda f: f.training_s, ".2f"),
        ("a step, CPU s", lambda f: f.generation_s + f.training_s, ".2f"),
        ("peak memory, MB", lambda f: f.peak_bytes / MIB, ".0f"),
        ("of it above the loaded model, MB", lambda f: f.above_loaded_bytes / MIB, ".0f"),
        ("prompt tokens", lambda f: f.prompt_tokens, ".0f"),
        ("sampled tokens", lambda f: f.new_tokens, ".0f"),
    ]
    yield "| of a step | ours | TRL | ours / TRL |"
    yield "| --- | --- | --- | --- |"
    for title, of, form in lines:
        ours, theirs = median("ours", of), median("TRL", of)
        yield f"| {title} | {ours:{form}} | {theirs:{form}} | {ours / theirs:.2f} |"


def main() -> None:
    """Parse the arguments; be the parent, or a worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=sorted(CASES), default="small")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "taskgen" / "benchmarks")
    parser.add_argument("--json", type=Path, help="write all steps' figures there")
    parser.add_argument("--side", choices=("ours", "TRL"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        # What libraries print must not get between the figures.
        turns = Turns(os.fdopen(os.dup(1), "w", encoding="utf-8"))
        os.dup2(2, 1)
        (ours if options.side == "ours" else trls)(options.case, options.folder, turns)
        return
    options.cache.mkdir(parents=True, exist_ok=True)
    found = measured(options.case, options.rounds, options.cache)
    print(f"case {options.case}: {CASES[options.case]}, {options.rounds} rounds, {TRL}\n")
    print("\n".join(table(found)))
    if options.json:
        everything = {side: [asdict(figures) for figures in steps] for side, steps in found.items()}
        options.json.write_text(json.dumps(everything, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
