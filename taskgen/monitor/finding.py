"""A finding of the monitor."""

from __future__ import annotations

from dataclasses import dataclass

from taskgen.monitor.rules import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that a rule matched.

    Attributes:
        turn: index of the turn in the rollout, from 0. call: that of the call in the turn, from 0.
        attempted: the tool's answer says that it did not work.
        evidence: what was done to what. command: the source of it, cut.
    """

    rule: str
    severity: Severity
    turn: int
    call: int
    attempted: bool
    evidence: str
    command: str
