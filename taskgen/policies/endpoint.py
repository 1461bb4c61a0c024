"""Any endpoint that speaks OpenAI's chat completions, by the official client: single answers, and turns with tools."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field

from taskgen.errors import ConfigError, PolicyFault, PrerequisiteError
from taskgen.policies.config import PolicyConfig
from taskgen.policies.conversation import ContextFull, Conversation, Reply, Tool, sendable
from taskgen.policies.policy import Completion, Form, Prompt, Sampled, Sampling
from taskgen.types import ToolCall, Turn

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageParam

T = TypeVar("T")

#: Endpoints take seeds of 32 bits with a sign.
_SEED_MASK = (1 << 31) - 1
#: What servers say, with status 400, of a conversation that does not fit: OpenAI's code, and words of others.
_TOO_LONG = ("context_length_exceeded", "context length", "context window", "too many tokens", "exceeds the maximum")


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
        samples = iter(self._side_by_side(lambda asked: self._complete(asked[0], asked[1], sampling), flat))
        return [[next(samples) for _ in group] for group in seeds]

    def reply(
        self, conversations: Sequence[Conversation], tools: Sequence[Tool], sampling: Sampling
    ) -> list[Reply | PolicyFault]:
        """One request a conversation, with the endpoint's own tool calls. Raises as ``complete`` does.

        A conversation that the endpoint refuses as too long is a ``ContextFull``.
        """
        described = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": dict(t.parameters)},
            }
            for t in tools
        ]
        return self._side_by_side(lambda asked: self._converse(asked, described, sampling), conversations)

    def _side_by_side(self, ask: Callable[[Any], T | PolicyFault], asked: Sequence[Any]) -> list[T | PolicyFault]:
        pool = ThreadPoolExecutor(self._config.concurrency)
        try:
            found = list(pool.map(ask, asked))
        finally:
            # A run that is stopped does not wait for the answers that are under way.
            pool.shutdown(wait=False, cancel_futures=True)
        if not self._answered:
            self._must_answer(found)
        return found

    def _must_answer(self, found: Sequence[object]) -> None:
        faults = [sample for sample in found if isinstance(sample, PolicyFault)]
        if faults and len(faults) == len(found):
            raise PrerequisiteError(
                f"{faults[0].args[0]} (of {len(found)} requests, none was answered)",
                hint="start the endpoint, or give another one: openai:MODEL@URL",
            ) from faults[0]

    def _request(self, sampling: Sampling, seed: int, **asked: Any) -> tuple[ChatCompletion, float] | PolicyFault:  # noqa: ANN401
        """The endpoint's answer, and the seconds that it took."""
        import openai

        config, began = self._config, time.monotonic()
        try:
            answer: ChatCompletion = self._client.chat.completions.create(
                model=config.model,
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                seed=seed & _SEED_MASK,
                **asked,
            )
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
            raise ConfigError(
                f"{config.model} at {config.endpoint} refuses: {error}", hint="check endpoint, model and key"
            ) from error
        except (openai.OpenAIError, ValueError) as error:  # ValueError: an answer that is no JSON
            message = f"{config.model} at {config.endpoint}: {type(error).__name__}: {error}"
            if isinstance(error, openai.BadRequestError) and any(words in str(error).lower() for words in _TOO_LONG):
                self._answered = True
                return ContextFull(message)
            return PolicyFault(message)
        self._answered = True
        if not getattr(answer, "choices", None) or answer.choices[0].message is None:
            # What another server than OpenAI's sends need not have the form that its type promises.
            return PolicyFault(f"{config.model} at {config.endpoint}: an answer without a message")
        return answer, time.monotonic() - began

    def _complete(self, prompt: Prompt, seed: int, sampling: Sampling) -> Sampled:
        found = self._request(sampling, seed, messages=_messages(prompt.messages))
        if isinstance(found, PolicyFault):
            return found
        answer, seconds = found
        read, written, cost = self._usage(answer)
        return Completion(
            text=answer.choices[0].message.content or "",
            form=Form.ANSWER,
            finish_reason=str(answer.choices[0].finish_reason),
            n_prompt_tokens=read,
            n_tokens=written,
            cost_usd=cost,
            seconds=seconds,
        )

    def _converse(
        self, asked: Conversation, tools: Sequence[dict[str, Any]], sampling: Sampling
    ) -> Reply | PolicyFault:
        found = self._request(sampling, asked.turn_seed, messages=_messages(asked.turns), tools=tools)
        if isinstance(found, PolicyFault):
            return found
        answer, seconds = found
        choice = answer.choices[0]
        read, written, cost = self._usage(answer)
        calls = _calls(choice.message, asked.n_replies)
        return Reply(
            turn=Turn(role="assistant", text=choice.message.content or "", tool_calls=calls),
            finish_reason=str(choice.finish_reason),
            n_prompt_tokens=read,
            n_tokens=written,
            cost_usd=cost,
            seconds=seconds,
        )

    def _usage(self, answer: ChatCompletion) -> tuple[int, int, float | None]:
        """Tokens read and written (0 where it does not say), and their price."""
        usage = getattr(answer, "usage", None)
        if usage is None:
            return 0, 0, None
        read, written = usage.prompt_tokens or 0, usage.completion_tokens or 0
        return read, written, self._cost(read, written)

    def _cost(self, read: int, written: int) -> float | None:
        prices = self._config.usd_per_million_prompt_tokens, self._config.usd_per_million_tokens
        if prices[0] is None or prices[1] is None:
            return None
        return (read * prices[0] + written * prices[1]) / 1e6

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()


def _messages(turns: Sequence[Turn]) -> list[ChatCompletionMessageParam]:
    messages: list[ChatCompletionMessageParam] = []
    for turn in turns:
        text = sendable(turn.text)
        if turn.role == "system":
            messages.append({"role": "system", "content": text})
        elif turn.role == "user":
            messages.append({"role": "user", "content": text})
        elif turn.role == "tool":
            for result in turn.tool_results:
                messages.append({"role": "tool", "tool_call_id": result.call_id, "content": sendable(result.text)})
        elif turn.tool_calls:
            messages.append(
                {
                    "role": "assistant",
                    "content": text or None,
                    "tool_calls": [
                        {
                            "type": "function",
                            "id": call.id,
                            "function": {"name": sendable(call.name), "arguments": json.dumps(dict(call.arguments))},
                        }
                        for call in turn.tool_calls
                    ],
                }
            )
        else:
            messages.append({"role": "assistant", "content": text})
    return messages


def _calls(message: ChatCompletionMessage, n_before: int) -> tuple[ToolCall, ...]:
    """The calls of an answer. What is no JSON object is kept under ``raw``, and ids that are missing or there twice are
    replaced, so that each result has its call."""
    calls: list[ToolCall] = []
    ids: set[str] = set()
    for i, call in enumerate(getattr(message, "tool_calls", None) or ()):
        function = getattr(call, "function", None)
        name, text = getattr(function, "name", None) or "", getattr(function, "arguments", None) or "{}"
        id = call.id if isinstance(call.id, str) and call.id and call.id not in ids else f"call-{n_before}-{i}"
        ids.add(id)
        calls.append(ToolCall(name=str(name) or "?", arguments=_arguments(text), id=id))
    return tuple(calls)


def _arguments(text: object) -> dict[str, Any]:
    if isinstance(text, dict):  # some servers send the object itself
        return text
    try:
        value = json.loads(str(text))
    except (ValueError, RecursionError):
        return {"raw": str(text)}
    return value if isinstance(value, dict) else {"raw": str(text)}
