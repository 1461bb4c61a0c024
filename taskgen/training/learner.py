"""The policy under training, in the trainer's process: sampled from, trained, saved."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from taskgen import trainer_process
from taskgen.errors import PolicyFault, PrerequisiteError
from taskgen.policies.local import completion_of
from taskgen.policies.policy import Completion, Form, Sampling
from taskgen.trainer_process import TrainerDied, TrainerProcess
from taskgen.training.config import PolicySection
from taskgen.training.rows import Row

_LOST = "what was saved is kept; the same command goes on from the last checkpoint"


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was sampled after one prompt, whose token ids are ``prompt_ids``."""

    prompt_ids: tuple[int, ...]
    samples: tuple[Completion, ...]


class Learner:
    """A process (or, by torchrun, one a rank) that holds weights and optimizer.

    Attributes:
        step: updates so far.
        progress: what was kept beside the checkpoint that it went on from; '' if there was none.

    Raises (on construction):
        PrerequisiteError: torch is not installed, or the trainer cannot begin (weights, meshes, checkpoint).
    """

    def __init__(self, policy: PolicySection, setup: Mapping[str, Any], checkpoints: Path) -> None:
        trainer_process.must_have_torch("train: torch is not installed")
        self._timeout_s, self._batch = policy.timeout_s, policy.batch
        self.form = Form.ANSWER if policy.style == "chat" else Form.CONTINUATION
        self._process = TrainerProcess(_command(policy, checkpoints), policy.threads)
        try:
            begun = self._ask(setup)
        except PolicyFault as error:
            self.close()
            raise PrerequisiteError(f"train: {error.args[0]}") from error
        except BaseException:
            self.close()
            raise
        self.step, self.progress = int(begun["step"]), str(begun["progress"])

    def generate(
        self, questions: Sequence[Mapping[str, Any]], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[Sampled]:
        """As many samples of each question as it has seeds. Raises PolicyFault: the trainer was lost."""
        found: list[Sampled] = []
        for part in _parts([len(group) for group in seeds], self._batch):
            began = time.monotonic()
            answer = self._ask({
                "do": "generate", "prompts": list(questions[part]), "seeds": [list(group) for group in seeds[part]],
                "max_tokens": sampling.max_tokens, "temperature": sampling.temperature,
            })  # fmt: skip
            share = (time.monotonic() - began) / sum(map(len, seeds[part]))
            for group in answer["prompts"]:
                samples = (completion_of(sample, group["ids"], self.form, share) for sample in group["samples"])
                found.append(Sampled(tuple(group["ids"]), tuple(samples)))
        return found

    def learn(self, groups: Sequence[Mapping[str, Any]], turns: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """One update; the metrics of ``trainer.grpo.Metrics``. Raises PolicyFault: the trainer was lost."""
        answer = self._ask({"do": "learn", "groups": list(groups), "turns": list(turns)})
        self.step = int(answer["step"])
        metrics: dict[str, float] = answer["metrics"]
        return metrics

    def read(self, rows: Sequence[Row], lr_factor: float) -> dict[str, float]:
        """One update by the text of rows; the metrics of ``trainer.reading.Reading``. Raises PolicyFault."""
        answer = self._ask({"do": "read", "rows": _as_request(rows), "lr_factor": lr_factor})
        self.step = int(answer["step"])
        metrics: dict[str, float] = answer["metrics"]
        return metrics

    def measure(self, rows: Sequence[Row]) -> dict[str, float]:
        """The loss on rows, without an update; as ``read``. Raises PolicyFault."""
        metrics: dict[str, float] = self._ask({"do": "measure", "rows": _as_request(rows)})["metrics"]
        return metrics

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Documents as tokens, with the one that ends each. Raises PolicyFault."""
        ids: list[list[int]] = self._ask({"do": "encode", "texts": list(texts)})["ids"]
        return ids

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str | None]:
        """The text of token ids; None where the tokenizer does not have one of them. Raises PolicyFault."""
        texts: list[str | None] = self._ask({"do": "decode", "ids": [list(ids) for ids in sequences]})["texts"]
        return texts

    def export(self, setup: Mapping[str, Any], folder: Path) -> None:
        """Write the weights as a folder that ``policy.model`` can name. Raises PolicyFault."""
        self._ask({"do": "export", "model": setup["model"], "cache": setup["cache"], "folder": str(folder)})

    def save(self, progress: str, keep: int) -> None:
        """Write a checkpoint, ``progress`` beside it. Raises PolicyFault."""
        self._ask({"do": "save", "progress": progress, "keep": keep})

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = self._process.ask(message, self._timeout_s)
        except (TrainerDied, ValueError) as error:
            raise PolicyFault(f"the trainer was lost: {error}", hint=_LOST) from error
        if "error" in answer:
            raise PolicyFault(f"the trainer: {answer['error']}", hint=_LOST)
        return answer

    def close(self) -> None:
        """End the process: what is to last was saved."""
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _as_request(rows: Sequence[Row]) -> list[list[dict[str, Any]]]:
    return [[{"ids": list(piece.ids), "counted": piece.counted} for piece in row] for row in rows]


def _command(policy: PolicySection, checkpoints: Path) -> list[str]:
    arguments = ["learn", "--checkpoints", str(checkpoints), "--threads", str(policy.threads)]
    arguments += ["--device", policy.device]
    if policy.ranks == 1 and not policy.torchrun:
        return trainer_process.command(arguments)
    return trainer_process.torchrun_command(arguments, policy.ranks, policy.torchrun)


def _parts(sizes: Sequence[int], batch: int) -> list[slice]:
    """Neighbours whose sizes add up to ``batch`` at most; one that is larger is a part of its own."""
    parts: list[slice] = []
    start = total = 0
    for i, size in enumerate(sizes):
        if total and total + size > batch:
            parts.append(slice(start, i))
            start, total = i, 0
        total += size
    return [*parts, slice(start, len(sizes))] if sizes else parts
