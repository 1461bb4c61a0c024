"""What configurations of all policies have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from taskgen.policies.policy import Sampling


class SamplingConfig(BaseModel):
    """``sampling:`` of a policy's file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    max_tokens: int = Field(default=Sampling().max_tokens, ge=1)
    temperature: float = Field(default=Sampling().temperature, ge=0)
    context_chars: int = Field(default=Sampling().context_chars, ge=0)

    def record(self) -> Sampling:
        """As policies take it."""
        return Sampling(**self.model_dump())


class PolicyConfig(BaseModel):
    """A policy's file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sampling: SamplingConfig = SamplingConfig()
