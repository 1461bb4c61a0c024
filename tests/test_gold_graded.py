"""A finished task is graded once with its own gold patch, as its users will."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskgen.commands import build
from taskgen.errors import SandboxUnavailable
from taskgen.guards import Guards
from taskgen.types import Rejection, Verdict, VerdictKind


def refused(monkeypatch: pytest.MonkeyPatch, kind: VerdictKind) -> Rejection | None:
    patches: list[bytes] = []

    def grade_intake(task: Any, take: Any, provider: Any, cache: Any) -> Verdict:  # noqa: ANN401
        take()
        return Verdict(instance_id="t", kind=kind, failed={}, n_passed=3, reason="calls differ", seconds=1.0)

    monkeypatch.setattr(build, "load", lambda folder: SimpleNamespace(row={"patch": "gold"}, rules=()))
    monkeypatch.setattr(build, "from_patch", lambda patch, rules: patches.append(patch))
    monkeypatch.setattr(build, "grade_intake", grade_intake)
    monkeypatch.setattr(build.taskset, "write_task", lambda out, *written: out / "tasks" / "t")
    monkeypatch.setattr(build.taskset, "remove_task", lambda out, name: removed.append(name))
    run = SimpleNamespace(provider=None, cache=None, out=Path("set"))
    removed: list[str] = []
    try:
        found = build._gold_refused(({}, (), (), Guards()), run)  # type: ignore[arg-type]
    finally:
        assert removed == ["t"], "what was graded does not stay"
    assert patches == [b"gold"]
    return found


def test_a_task_whose_gold_patch_does_not_pass_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(monkeypatch, VerdictKind.RESOLVED) is None
    for kind in (VerdictKind.UNRESOLVED, VerdictKind.HACKED, VerdictKind.TIMED_OUT):
        found = refused(monkeypatch, kind)
        assert found is not None and (found.stage, found.candidate, found.detail) == (
            "gold",
            "t",
            "calls differ",
        )


def test_a_fault_of_the_machine_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SandboxUnavailable, match="could not be graded"):
        refused(monkeypatch, VerdictKind.INFRA_ERROR)
