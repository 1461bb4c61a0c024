"""What people see: progress on stderr, tables on stdout."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from taskgen.commands.attack import AttackReport, Attempt
from taskgen.commands.audit import Report
from taskgen.commands.calibrate import Calibrated, Calibration, Status
from taskgen.commands.monitor import MonitorReport
from taskgen.commands.summary import RepoSummary
from taskgen.commands.training_run import Trained
from taskgen.difficulty import Band
from taskgen.monitor.rules import RULES, Severity
from taskgen.printable import printable
from taskgen.types import Verdict

#: Columns where there is no terminal: wide enough that no id is cut.
PLAIN_WIDTH = 132
#: What may stop an attack, from the outside in.
STOPS = ("intake", "tests", "twins", "differential")
#: Failed tests and refused files that a verdict lists.
SHOWN = 20
out = Console(soft_wrap=True, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
err = Console(stderr=True, soft_wrap=True)


class BuildProgress:
    """Progress bars of a build; plain lines where stderr is no terminal."""

    def __init__(self, n_repos: int) -> None:
        self._mutex = threading.Lock()
        self._tasks: dict[str, int] = {}
        self._accepted: dict[str, int] = {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=err,
            disable=not err.is_terminal,
        )
        self._all = self._bars.add_task("repositories", total=n_repos, note="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def stage(self, repo: str, stage: str) -> None:
        with self._mutex:
            if repo not in self._tasks:
                self._tasks[repo] = self._bars.add_task(repo, total=None, note=stage)
            self._bars.update(self._tasks[repo], note=stage)  # type: ignore[arg-type]
        self._line(f"{repo}: {stage}")

    def candidate(self, repo: str, accepted: bool, done: int, planned: int) -> None:
        with self._mutex:
            self._accepted[repo] = self._accepted.get(repo, 0) + accepted
            note = f"accepted {self._accepted[repo]}"
            self._bars.update(self._tasks[repo], total=planned, completed=done, note=note)  # type: ignore[arg-type]
        self._line(f"{repo}: candidate {done} of {planned} {'accepted' if accepted else 'rejected'} ({note})")

    def finished(self, summary: RepoSummary) -> None:
        with self._mutex:
            if summary.name in self._tasks:
                self._bars.remove_task(self._tasks.pop(summary.name))  # type: ignore[arg-type]
            self._bars.advance(self._all)
        for note in summary.notes:
            err.print(f"{summary.name}: note: {note}", markup=False)
        if summary.error:
            err.print(f"{summary.name}: skipped: {summary.error}", markup=False, style="red")
        else:
            err.print(f"{summary.name}: {summary.n_accepted} tasks of {summary.tried} candidates", markup=False)

    def _line(self, text: str) -> None:
        if not err.is_terminal:
            err.print(text, markup=False)


def summary_table(summaries: Sequence[RepoSummary]) -> Table:
    """Per repository: candidates, rejections by reason, accepted by recipe, seconds."""
    table = Table(Column("repository", no_wrap=True), "accepted", "by recipe", "tried", "rejected because", "seconds")
    for summary in summaries:
        if summary.error:
            first = summary.error.splitlines()[0]
            table.add_row(summary.name, "-", "", "", f"skipped: {first}".replace("[", r"\["), "")
            continue
        recipes = ", ".join(f"{name} {n}" for name, n in sorted(summary.accepted.items()))
        reasons = "\n".join(f"{n} x {reason}" for reason, n in sorted(summary.rejected.items(), key=lambda r: -r[1]))
        seconds = f"{sum(summary.seconds.values()):.0f}"
        table.add_row(summary.name, str(summary.n_accepted), recipes, str(summary.tried), reasons, seconds)
    return table


#: Findings shown for a subject; --json has all of them.
_SHOWN = 20
_STYLES = {"error": "red", "warning": "yellow", "note": "dim"}


def print_audit(report: Report) -> None:
    """An audit as tables: what fails in full, the rest by its number."""
    for name, findings in report.findings.items():
        shown = [finding for finding in findings if finding.severity != "note"]
        if shown:
            out.print(f"{name}:", markup=False)
        for finding in shown[:_SHOWN]:
            about = f"{finding.level} of {finding.definition}" if finding.level else finding.detector
            out.print(f"  {finding.action:<7} {about}", style=_STYLES[finding.severity], markup=False)
            out.print(
                f"          in {printable(finding.path)}{f', line {finding.line}' if finding.line else ''}",
                markup=False,
            )
            out.print(f"          {finding.message}", markup=False)
            for line in finding.excerpt.splitlines()[:4]:
                out.print(f"          | {printable(line)[:110]}", style="dim", markup=False, highlight=False)
        if len(shown) > _SHOWN:
            out.print(f"  and {len(shown) - _SHOWN} more; --json lists all", markup=False)
    for path in report.removed[:_SHOWN]:
        out.print(f"removed {printable(path)}", markup=False)
    if len(report.removed) > _SHOWN:
        out.print(f"removed {len(report.removed) - _SHOWN} more files", markup=False)
    stolen = sum(report.rewards.values())
    thief = f"; the thief earned {stolen:g} of {len(report.rewards)}" if report.rewards else ""
    counts = ", ".join(f"{n} {action}" for action, n in sorted(report.as_json()["actions"].items())) or "none"
    out.print(
        f"{report.n_files:,} files, {report.n_bytes / 1e6:,.1f} MB, {report.seconds:.1f} s; findings: {counts}{thief}",
        markup=False,
    )


def print_rollouts(report: MonitorReport) -> None:
    """An audit of rollouts: each flagged turn with what was done, then how often each rule matched."""
    shown = [watched for watched in report.watched if watched.masked]
    for watched in shown[:_SHOWN]:
        out.print(f"{printable(watched.rollout_id)} (line {watched.line}):", markup=False)
        flags = [finding for finding in watched.findings if finding.severity is Severity.FLAG]
        for finding in flags[:_SHOWN]:
            tried = ", attempted" if finding.attempted else ""
            text = f"  turn {finding.turn}: {finding.rule}{tried}: {printable(finding.evidence)[:160]}"
            out.print(text, style="red", markup=False, highlight=False)
            for line in finding.command.splitlines()[:3]:
                out.print(f"          | {printable(line)[:110]}", style="dim", markup=False, highlight=False)
        if len(flags) > _SHOWN:
            out.print(f"  and {len(flags) - _SHOWN} more; --json lists all", markup=False)
    if len(shown) > _SHOWN:
        out.print(f"and {len(shown) - _SHOWN} more rollouts; --json lists all", markup=False)
    counts = [(f.rule, f.attempted, w.rollout_id) for w in report.watched for f in w.findings]
    if counts:
        table = Table("rule", "severity", "findings", "attempted", "rollouts")
        for rule in (name for name in RULES if any(name == found for found, _, _ in counts)):
            own = [(attempted, rollout) for found, attempted, rollout in counts if found == rule]
            numbers = (len(own), sum(attempted for attempted, _ in own), len({rollout for _, rollout in own}))
            table.add_row(rule, RULES[rule].severity.value, *map(str, numbers))
        out.print(table)
    for rollout, fault in report.faults().items():
        out.print(f"not judged: {printable(rollout)}: {printable(fault)}", style="yellow", markup=False)
    masked = len(report.masked())
    out.print(
        f"{report.n_rollouts:,} rollouts, {report.n_turns:,} turns, {report.seconds:.1f} s; masked: {masked}",
        markup=False,
    )


def calibration_table(found: Calibration) -> Table:
    """The result of ``taskgen calibrate``: a line a task, and what they add up to."""
    design = found.design
    numbers = ("passes", "pass@1", "90 % interval", "tokens", "s", "USD")
    table = Table(
        Column("task", no_wrap=True), "band", *(Column(name, justify="right") for name in numbers),
        title=f"{found.policy} {found.policy_version}, band {design.low:g} to {design.high:g}",
        caption=", ".join(
            [f"{band.value} {found.in_band(band)}" for band in Band]
            + [f"{status.value} {len(found.of(status))}" for status in Status if status is not Status.MEASURED]
        ),
    )  # fmt: skip
    for task in found.tasks:
        table.add_row(*_calibrated(task))
    return table


def _calibrated(task: Calibrated) -> tuple[str, ...]:
    if task.estimate is None:
        return task.instance_id, escape(printable(f"{task.status.value}: {task.reason}"[:80])), "", "", "", "", "", ""
    e, tally = task.estimate, task.tally
    low, high = e.interval
    return (
        task.instance_id, e.band.value + ("" if e.decided else " (open)"), f"{e.passes} of {e.n}",
        f"{e.pass_at_1:.2f}", f"{low:.2f} to {high:.2f}", str(tally.n_tokens), f"{tally.seconds + tally.grading_s:.0f}",
        "" if tally.cost_usd is None else f"{tally.cost_usd:.4f}",
    )  # fmt: skip


def training_table(found: Trained) -> Table:
    """The result of ``taskgen train``: what evaluations found; of a run that reads text, the held-out loss."""
    if found.left_out is not None:
        table = Table("step", "loss", "tokens", title=f"held out, after {found.step} steps")
        for measured in found.held_out():
            table.add_row(str(measured.step), f"{measured.loss:.4f}", str(measured.tokens))
        return table
    table = Table(
        *(Column(name, justify="right") for name in ("step", "pass@1", "95 % interval", "tasks", "attempts at each")),
        title=f"held-out tasks, after {found.step} steps",
    )  # fmt: skip
    for record in found.evaluations():
        low, high = record.interval
        table.add_row(
            str(record.step), f"{record.pass_at_1:.3f}", f"{low:.3f} to {high:.3f}", str(record.n_tasks),
            str(record.n_samples),
        )  # fmt: skip
    return table


def print_verdict(verdict: Verdict) -> None:
    """A verdict, with what failed, what was left out, and what the guards saw."""
    lines = [f"{verdict.instance_id}: {verdict.kind.value}: {verdict.reason} ({verdict.seconds:.1f} s)"]
    lines += [f"  {outcome}: {test}" for test, outcome in list(verdict.failed.items())[:SHOWN]]
    lines += [f"  {name}: {said}" for name, said in verdict.guards.items()]
    lines += [f"    {text}" for text in verdict.evidence]
    lines += [f"  suspicious: {text}" for text in verdict.signals[:SHOWN]]
    lines += [f"  left out: {path}: {reason}" for path, reason in list(verdict.refused.items())[:SHOWN]]
    for line in lines:
        out.print(line, markup=False, highlight=False)


def print_attacks(report: AttackReport) -> None:
    """Attacks by group: how many, what stopped them, and their rewards; then what should not be, one by one."""
    table = Table("group", *(Column(name, justify="right") for name in ("attempts", *STOPS, "reward > 0")))
    for group in dict.fromkeys(a.group for a in report.attempts):
        found = [a for a in report.attempts if a.group == group]
        stopped = [str(sum(a.stopped_by == stop for a in found) or "") for stop in STOPS]
        table.add_row(group, str(len(found)), *stopped, str(sum(a.reward > 0 for a in found)))
    out.print(table)
    for attempt in report.broken():
        out.print(f"NOT AS IT MUST BE: {_attempt(attempt)}", markup=False, highlight=False)
    gold = sum(a.reward for a in report.attempts if not a.number)
    cheats = sum(a.reward > 0 for a in report.attempts if a.number)
    out.print(
        f"{report.n_attacks} attacks on {report.n_tasks} tasks: {cheats} earn a reward;"
        f" gold earns it on {gold:.0f} of {report.n_tasks} tasks ({report.seconds:.0f} s)"
    )


def _attempt(attempt: Attempt) -> str:
    return f"{attempt.task}: {attempt.number} {attempt.name}: {attempt.kind}: {attempt.reason}"


def guarantee_table(guaranteed: Mapping[str, Mapping[str, str]]) -> Table:
    """What each kind of sandbox guarantees on this machine, and how."""
    kinds = list(dict.fromkeys(kind for by in guaranteed.values() for kind in by))
    table = Table("guarantee", *kinds)
    for name, by in guaranteed.items():
        table.add_row(name, *(by[kind] or "NOT GIVEN" for kind in kinds))
    return table
