"""Any endpoint that speaks OpenAI's chat completions, by the official client."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from taskgen.errors import ConfigError, PolicyFault, PrerequisiteError
from taskgen.policies.config import PolicyConfig
from taskgen.policies.policy import Completion, Form, Prompt, Sampled, Sampling

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

#: Endpoints take seeds of 32 bits with a sign.
_SEED_MASK = (1 << 31) - 1


class EndpointConfig(PolicyConfig):
    """A model behind an address.

    Attributes:
        endpoint: base address (``http://127.0.0.1:8000/v1``).
        api_key_env: the environment variable that holds the key; where it is not set, none is sent that means anything.
        attempts: how often a request is made at most; the client waits in between, as long as the endpoint says.
        concurrency: requests at one time.
        usd_per_million_prompt_tokens, usd_per_million_tokens: prices of what is read and what is written.
    """

    kind: Literal["openai"] = "openai"
    endpoint: str = Field(pattern=r"^https?://")
    model: str = Field(min_length=1)
    api_key_env: str = "OPENAI_API_KEY"
    timeout_s: float = Field(default=300.0, gt=0)
    attempts: int = Field(default=5, ge=1, le=20)
    concurrency: int = Field(default=8, ge=1, le=256)
    usd_per_million_prompt_tokens: float | None = Field(default=None, ge=0)
    usd_per_million_tokens: float | None = Field(default=None, ge=0)


class EndpointPolicy:
    """Asks an endpoint, a bounded number of requests at one time.

    Raises (on construction):
        PrerequisiteError: the package ``openai`` is not installed.
    """

    def __init__(self, config: EndpointConfig) -> None:
        try:
            import openai
        except ImportError as error:
            raise PrerequisiteError(
                "an endpoint as policy needs the package openai",
                hint="pip install 'taskgen[openai]', or pip install 'openai>=1.40'",
            ) from error
        self.name = self.version = config.model
        self.form, self.batch = Form.ANSWER, 2 * config.concurrency
        self._config = config
        self._client = openai.OpenAI(
            base_url=config.endpoint,
            api_key=os.environ.get(config.api_key_env) or "none",
            timeout=config.timeout_s,
            max_retries=config.attempts - 1,
        )
        self._answered = False

    def complete(
        self, prompts: Sequence[Prompt], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Sampled]]:
        """One request a sample. Raises PrerequisiteError for an endpoint that never answered, ConfigError for one that
        refuses key or model; what fails later is a fault of its sample."""
        flat = [(prompt, seed) for prompt, group in zip(prompts, seeds, strict=True) for seed in group]
        pool = ThreadPoolExecutor(self._config.concurrency)
        try:
            found = list(pool.map(lambda asked: self._ask(asked[0], asked[1], sampling), flat))
        finally:
            # A run that is stopped does not wait for the answers that are under way.
            pool.shutdown(wait=False, cancel_futures=True)
        if not self._answered:
            self._must_answer(found)
        samples = iter(found)
        return [[next(samples) for _ in group] for group in seeds]

    def _must_answer(self, found: Sequence[Sampled]) -> None:
        faults = [sample for sample in found if isinstance(sample, PolicyFault)]
        if faults and len(faults) == len(found):
            raise PrerequisiteError(
                f"{faults[0].args[0]} (of {len(found)} requests, none was answered)",
                hint="start the endpoint, or give another one: openai:MODEL@URL",
            ) from faults[0]

    def _ask(self, prompt: Prompt, seed: int, sampling: Sampling) -> Sampled:
        import openai

        config, began = self._config, time.monotonic()
        try:
            answer = self._client.chat.completions.create(
                model=config.model,
                messages=_messages(prompt),
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                seed=seed & _SEED_MASK,
            )
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
            raise ConfigError(
                f"{config.model} at {config.endpoint} refuses: {error}", hint="check endpoint, model and key"
            ) from error
        except (openai.OpenAIError, ValueError) as error:  # ValueError: an answer that is no JSON
            return PolicyFault(f"{config.model} at {config.endpoint}: {type(error).__name__}: {error}")
        self._answered = True
        return self._completion(answer, time.monotonic() - began)

    def _completion(self, answer: ChatCompletion, seconds: float) -> Sampled:
        """What another server than OpenAI's sends need not have the form that its type promises."""
        choices = getattr(answer, "choices", None)
        if not choices or choices[0].message is None:
            return PolicyFault(f"{self._config.model} at {self._config.endpoint}: an answer without a message")
        usage = getattr(answer, "usage", None)
        read, written = (usage.prompt_tokens, usage.completion_tokens) if usage is not None else (0, 0)
        return Completion(
            text=choices[0].message.content or "",
            form=Form.ANSWER,
            finish_reason=str(choices[0].finish_reason),
            n_prompt_tokens=read,
            n_tokens=written,
            cost_usd=self._cost(read, written) if usage is not None else None,
            seconds=seconds,
        )

    def _cost(self, read: int, written: int) -> float | None:
        prices = self._config.usd_per_million_prompt_tokens, self._config.usd_per_million_tokens
        if prices[0] is None or prices[1] is None:
            return None
        return (read * prices[0] + written * prices[1]) / 1e6

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()


def _messages(prompt: Prompt) -> list[ChatCompletionMessageParam]:
    roles: list[ChatCompletionMessageParam] = []
    for turn in prompt.messages:
        if turn.role == "system":
            roles.append({"role": "system", "content": turn.text})
        else:
            roles.append({"role": "user", "content": turn.text})
    return roles
