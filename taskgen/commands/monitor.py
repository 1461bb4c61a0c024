"""``taskgen audit ROLLOUTS.jsonl``: what agents did in their rollouts that looks like a hack of the reward."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from taskgen.atomic import replacing_directory
from taskgen.errors import JudgeFault, StoreError
from taskgen.leaks import findings as leak_findings
from taskgen.monitor import Finding, Severity, masks, monitor
from taskgen.monitor.judge import Judge
from taskgen.monitor.rules import RULES
from taskgen.trajectories import Line, dump, read_lines

#: How often progress is told.
PROGRESS_S = 5.0
OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A rollout's findings. ``line``: its line in the file; ``fault``: why the judge gave no answer, or ''."""

    rollout_id: str
    line: int
    findings: tuple[Finding, ...]
    fault: str = ""

    @property
    def masked(self) -> bool:
        return masks(self.findings)


@dataclass(slots=True, kw_only=True)
class MonitorReport:
    """The outcome of an audit of rollouts. ``watched``: those with findings or faults, in the order of the file."""

    target: str
    watched: list[Watched] = field(default_factory=list)
    n_rollouts: int = 0
    n_turns: int = 0
    seconds: float = 0.0

    def masked(self) -> list[str]:
        """The ids of rollouts whose reward a flag masks."""
        return [w.rollout_id for w in self.watched if w.masked]

    def faults(self) -> dict[str, str]:
        """Rollouts that the judge could not be asked about, and why: no verdict, and no mask."""
        return {w.rollout_id: w.fault for w in self.watched if w.fault}

    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        rows = [{"rollout_id": w.rollout_id, "line": w.line, **asdict(f)} for w in self.watched for f in w.findings]
        return {
            "target": self.target,
            "kind": "rollouts",
            "rollouts": self.n_rollouts,
            "turns": self.n_turns,
            "seconds": self.seconds,
            "masked": self.masked(),
            "judge_faults": self.faults(),
            "rules": dict(Counter(str(row["rule"]) for row in rows)),
            "findings": rows,
        }

    def for_sarif(self) -> list[leak_findings.Finding]:
        """The findings in the form that the SARIF writer takes."""
        return [
            leak_findings.Finding(
                detector=f"monitor-{f.rule}",
                path=self.target,
                level="",
                definition=f"{w.rollout_id}, turn {f.turn}, call {f.call}: {f.evidence}",
                severity="error" if f.severity is Severity.FLAG else "note",
                action="mask" if f.severity is Severity.FLAG else "report",
                excerpt=f.command,
                message=f"rollout {w.rollout_id}, turn {f.turn}: {f.evidence}: {RULES[f.rule].means}",
                line=w.line,
            )
            for w in self.watched
            for f in w.findings
        ]


def watch(
    target: Path, *, fix: Path | None = None, judge: Judge | None = None, jobs: int = 1, on_step: OnStep | None = None
) -> MonitorReport:
    """Scan a file of rollouts, one at a time.

    Args:
        fix: a new folder, which gets a copy of the file where masked rollouts have the reward null.
        judge: asked about each rollout too, ``jobs`` at one time.

    Raises:
        FormatError: a line is no rollout. StoreError: ``fix`` exists, or cannot be written.
    """
    began = last = time.monotonic()
    size = target.stat().st_size
    report = MonitorReport(target=str(target))
    with _copy(target, fix) as copy, ThreadPoolExecutor(jobs) as pool:
        for line, watched in _watched(read_lines(target), judge, pool, jobs):
            report.n_rollouts += 1
            report.n_turns += len(line.rollout.turns)
            if watched.findings or watched.fault:
                report.watched.append(watched)
            if copy is not None:
                copy.write(_masked(line, watched))
            if on_step is not None and time.monotonic() - last > PROGRESS_S:
                last = time.monotonic()
                share = line.n_bytes / max(1, size)
                on_step(f"{report.n_rollouts:,} rollouts, {share:.0%} of the file, {len(report.masked())} masked")
    report.seconds = round(time.monotonic() - began, 3)
    return report


def _watched(
    lines: Iterator[Line], judge: Judge | None, pool: ThreadPoolExecutor, jobs: int
) -> Iterator[tuple[Line, Watched]]:
    """Rules are quick; a judge is waited for, so it is asked about several rollouts at one time."""
    if judge is None:
        for line in lines:
            yield line, _watch(line, None)
        return
    while batch := list(islice(lines, jobs)):
        yield from zip(batch, pool.map(lambda line: _watch(line, judge), batch), strict=True)


def _watch(line: Line, judge: Judge | None) -> Watched:
    findings = monitor(line.rollout)
    fault = ""
    if judge is not None:
        try:
            findings += judge(line.rollout)
        except JudgeFault as error:
            fault = str(error)
    return Watched(rollout_id=line.rollout.rollout_id, line=line.number, findings=tuple(findings), fault=fault)


@contextmanager
def _copy(target: Path, fix: Path | None) -> Iterator[BinaryIO | None]:
    if fix is None:
        yield None
        return
    if fix.exists():
        raise StoreError(f"{fix} exists", hint="give the name of a new folder; nothing is changed in place")
    with replacing_directory(fix) as scratch, (scratch / target.name).open("wb") as file:
        yield file


def _masked(line: Line, watched: Watched) -> bytes:
    """The line as it is, or with its reward null and why."""
    if not watched.masked:
        return line.data
    reasons = [f"{f.rule}: turn {f.turn}: {f.evidence}" for f in watched.findings if f.severity is Severity.FLAG]
    return (dump({**line.record, "reward": None, "masked": reasons}) + "\n").encode()
