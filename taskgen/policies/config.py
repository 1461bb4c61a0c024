"""What configurations of all policies have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from taskgen.policies.conversation import REPLY_TOKENS, AgentLimits
from taskgen.policies.policy import Sampling


class SamplingConfig(BaseModel):
    """``sampling:`` of a policy's file. ``max_tokens``: of one answer; where it is not set, a turn of an agent has more
    room than one body."""

    model_config = ConfigDict(extra="forbid", strict=True)

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float = Field(default=Sampling().temperature, ge=0)
    context_chars: int = Field(default=Sampling().context_chars, ge=0)

    def record(self) -> Sampling:
        """As policies take it, for attempts of one turn."""
        return self._with(Sampling().max_tokens)

    def for_turns(self) -> Sampling:
        """As policies take it, for attempts by turns."""
        return self._with(REPLY_TOKENS)

    def _with(self, max_tokens: int) -> Sampling:
        return Sampling(**{**self.model_dump(), "max_tokens": self.max_tokens or max_tokens})


class AgentConfig(BaseModel):
    """``agent:`` of a policy's file: the fields of ``AgentLimits``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    turns: int = Field(default=AgentLimits().turns, ge=1)
    tokens: int = Field(default=AgentLimits().tokens, ge=1)
    context_tokens: int = Field(default=AgentLimits().context_tokens, ge=1)
    seconds: float = Field(default=AgentLimits().seconds, gt=0)
    command_s: float = Field(default=AgentLimits().command_s, gt=0)
    output_chars: int = Field(default=AgentLimits().output_chars, ge=200, le=1_000_000)

    def record(self) -> AgentLimits:
        """As attempts take it."""
        return AgentLimits(**self.model_dump())


class PolicyConfig(BaseModel):
    """A policy's file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sampling: SamplingConfig = SamplingConfig()
    agent: AgentConfig = AgentConfig()
