"""``taskgen audit`` of tasks: workspace, environment, thief, and a clean copy."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskgen import archive, guards, taskset
from taskgen.commands.audit import MAX_THOROUGH_BYTES, Report
from taskgen.errors import ConfigError, FormatError
from taskgen.grading.grade import grade
from taskgen.grading.task import load
from taskgen.leaks import secrets, surroundings
from taskgen.leaks.blob import Blob
from taskgen.leaks.judging import judge
from taskgen.leaks.loot import Want
from taskgen.leaks.query import make_query
from taskgen.leaks.scanner import Scan, Scanner
from taskgen.leaks.scrub import condemned
from taskgen.leaks.subject import Subject, is_source, make_subject
from taskgen.leaks.targets import TargetKind
from taskgen.leaks.thief import Theft, rob
from taskgen.sandbox import SandboxProvider
from taskgen.scrubrules import Scrubber
from taskgen.types import VerdictKind

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How to audit tasks.

    Attributes:
        provider: for environments and the thief; None: workspaces alone.
        thief: steal from what was found, and grade it.
    """

    cache: Path
    provider: SandboxProvider | None = None
    thief: bool = False
    jobs: int = 1
    fix: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    folder: Path
    row: Mapping[str, Any]
    files: Mapping[str, bytes]
    subject: Subject


def audit_tasks(target: str, options: TaskOptions, on_step: OnStep) -> Report:
    """Audit a task or a task set. Tasks of one repository share the scan of their environment.

    Raises:
        FormatError: a task is not whole.
        SandboxUnavailable, PrerequisiteError, SourceError, StoreError: an environment cannot be made.
    """
    began = time.monotonic()
    report = Report(target=target, kind=TargetKind.TASKS)
    groups: dict[str, list[Path]] = defaultdict(list)
    for folder in taskset.find_tasks(Path(target)):
        taskset.must_be_whole(folder)
        row = taskset.read_row(folder)
        groups[f"{row['repo']}@{row['base_commit']}"].append(folder)
    for name, folders in groups.items():
        tasks = []
        for folder in folders:
            on_step(f"{folder.name}: workspace")
            tasks.append(_audit_workspace(folder, report))
        if options.provider is not None:
            on_step(f"{name}: environment of {len(tasks)} tasks")
            _audit_environment(tasks, options, report, on_step)
    if options.fix is not None:
        _fix(Path(target), options.fix, report)
    report.seconds = round(time.monotonic() - began, 3)
    return report


def _audit_workspace(folder: Path, report: Report) -> _Task:
    row = taskset.read_row(folder)
    entries = archive.read_entries((folder / taskset.WORKSPACE).read_bytes())
    files = {entry.path: entry.content for entry in entries if entry.link_target is None}
    subject = make_subject(
        str(row["instance_id"]), row["patch"], files.get, [data for p, data in files.items() if is_source(p)],
        test_patch=row["test_patch"], stated=row["problem_statement"],
    )  # fmt: skip
    scan = scan_workspace(files, subject)
    report.add(scan, judge(scan, [subject], scrubber=Scrubber(files)))
    for path, data in files.items():
        report.findings[subject.name] += secrets.find(path, data)
    return _Task(folder=folder, row=row, files=files, subject=subject)


def scan_workspace(files: Mapping[str, bytes], subject: Subject) -> Scan:
    """Scan a workspace that is in memory."""
    size = sum(len(data) for path, data in files.items() if is_source(path))
    scanner = Scanner(make_query([subject], thorough=size <= MAX_THOROUGH_BYTES))
    return scanner.scan(Blob.of_bytes(path, data) for path, data in sorted(files.items()))


def _audit_environment(tasks: Sequence[_Task], options: TaskOptions, report: Report, on_step: OnStep) -> None:
    assert options.provider is not None
    key = load(tasks[0].folder).snapshot(options.provider, options.cache)
    subjects = [task.subject for task in tasks]
    query = make_query(subjects, thorough=False, sparing=True)
    scan = surroundings.scan(options.provider, key, query, jobs=options.jobs, cache=options.cache / "audits")
    report.add(scan, judge(scan, subjects, in_environment=True))
    if not options.thief:
        return
    beside = list(surroundings.suspects(options.provider, key, scan, query.limits))
    for task in tasks:
        on_step(f"{task.folder.name}: thief")
        report.rewards[task.subject.name] = _thief_reward(task, beside, options.provider, options.cache)


def _thief_reward(task: _Task, beside: Sequence[Blob], provider: SandboxProvider, cache: Path) -> float:
    def submit(theft: Theft) -> float:
        try:
            verdict = grade(task.folder, theft.patch, provider, cache)
        except FormatError:  # the grader does not take such a patch
            return 0.0
        return float(verdict.kind is VerdictKind.RESOLVED)

    own = [Blob.of_bytes(path, data) for path, data in task.files.items()]
    return rob([*own, *beside], wants_of(task.subject), task.files, submit).reward


def wants_of(subject: Subject) -> list[Want]:
    """What a thief is told by the statement: paths and names."""
    return [Want(path=f.path, qualified_name=f.qualified_name) for f in subject.deleted]


def _fix(target: Path, to: Path, report: Report) -> None:
    """Write the tasks anew, without the files that findings ask to remove."""
    if to.exists():
        raise ConfigError(f"{to} exists", hint="give the name of a new folder; nothing is cleaned in place")
    removed: list[str] = []
    for folder in taskset.find_tasks(target):
        row = taskset.read_row(folder)
        gone = set(condemned(report.findings[str(row["instance_id"])]))
        entries = archive.read_entries((folder / taskset.WORKSPACE).read_bytes())
        kept = [entry for entry in entries if entry.path not in gone]
        counts = {entry["detector"]: entry["count"] for entry in row["audit"]["findings_removed"]}
        if len(kept) < len(entries):
            counts["leak"] = counts.get("leak", 0) + len(entries) - len(kept)
        audit = {
            **row["audit"],
            "findings_removed": [{"detector": name, "count": n} for name, n in sorted(counts.items())],
        }
        tests = archive.read_entries((folder / taskset.TESTS).read_bytes())
        taskset.write_task(to, {**row, "audit": audit}, kept, tests, guards.read(folder))
        removed += [f"{folder.name}/{path}" for path in sorted(gone & {entry.path for entry in entries})]
    ids = [folder.name for folder in taskset.find_tasks(to)]
    taskset.write_tables(to, ids, (), {"audited_from": str(target)})
    report.removed = tuple(removed)
