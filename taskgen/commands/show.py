"""``taskgen show``: a task as a page for people, or a task set as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Column, Table

from taskgen import taskset

MAX_TESTS = 25


def page(row: Mapping[str, Any]) -> RenderableType:
    """One task: its statement, what was deleted (the gold patch), its tests and the evidence."""
    return Group(*_parts(row))


def _parts(row: Mapping[str, Any]) -> Iterator[RenderableType]:
    source, environment = row["source"], row["environment"]
    yield Panel(
        f"[bold]{row['instance_id']}[/bold]\n"
        f"{row['repo']} at {row['base_commit'][:12]} ({source['kind']}: {source['url']})\n"
        f"{row['recipe']}, {row['language']}, {environment['runtime']}"
    )
    yield Panel(Markdown(row["problem_statement"]), title="statement")
    yield Panel(Syntax(row["patch"], "diff", word_wrap=True), title="deleted code (the gold patch)")
    yield _tests(row)
    yield _evidence(row)


def _tests(row: Mapping[str, Any]) -> RenderableType:
    failing: Sequence[str] = row["FAIL_TO_PASS"]
    lines = [*failing[:MAX_TESTS], *([f"... and {len(failing) - MAX_TESTS} more"] if len(failing) > MAX_TESTS else [])]
    lines += ["", f"PASS_TO_PASS: {len(row['PASS_TO_PASS'])} tests", f"run by: {row['environment']['test_command']}"]
    return Panel("\n".join(lines).replace("[", r"\["), title=f"FAIL_TO_PASS: {len(failing)} tests")


def _evidence(row: Mapping[str, Any]) -> RenderableType:
    checks, audit = row["checks"], row["audit"]
    table = Table(title="evidence", show_header=False)
    table.add_row("runs", f"{checks['n_runs']}, of the whole suite: {checks['full_runs']}")
    for name in ("null_fails", "stub_fails", "gold_passes", "tree_restored"):
        table.add_row(name, "yes" if checks[name] else "NO")
    table.add_row("flaky tests set apart", ", ".join(checks["flaky"]) or "none")
    if checks["n_mutants"] is not None:  # older sets have no guards
        score = (
            f"{checks['mutation_score']:.2f} of {checks['n_mutants']} mutants, {checks['guarded_score']:.2f} guarded"
        )
        table.add_row("mutation score", score)
        table.add_row("twins", str(checks["n_twins"]))
        calls = f"{checks['n_calls']} recorded calls, {checks['n_changed_calls']} changed ones"
        table.add_row("differential check", checks["not_recorded"] or calls)
    table.add_row("audit", f"{', '.join(audit['detectors'])}; {audit['bytes_scanned']} bytes")
    table.add_row("reward of the thieves", str(audit["thief_reward"]))
    table.add_row("seconds", f"{checks['seconds']:.1f}")
    return table


def overview(folders: Sequence[Path]) -> RenderableType:
    """A task set as a table, a line a task."""
    table = Table(Column("task", no_wrap=True), "recipe", "definitions", "files", "lines", "F2P", "P2P")
    for folder in folders:
        row = taskset.read_row(folder)
        files = {d["path"] for d in row["deleted"]}
        table.add_row(
            row["instance_id"],
            row["recipe"],
            str(len(row["deleted"])),
            str(len(files)),
            str(sum(d["lines"] for d in row["deleted"])),
            str(len(row["FAIL_TO_PASS"])),
            str(len(row["PASS_TO_PASS"])),
        )
    return table
