"""The command line: options, help, printing and exit codes. The work is in ``commands``.

Exit codes: 0 done; 1 an error that the message explains; 2 wrong usage; 3 unexpected (the log's path is printed);
4 a gate failed (no task accepted, patch not resolved, this machine not ready); 130 interrupted (state is kept).
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import platformdirs
import typer

from taskgen import __version__, fill, hardness, taskset
from taskgen.agent import gold_calls
from taskgen.atomic import disk_faults
from taskgen.attempts import loaded
from taskgen.commands import audit as audit_command
from taskgen.commands import doctor as doctor_command
from taskgen.commands import monitor as monitor_command
from taskgen.commands import show as show_command
from taskgen.commands import show_rollouts
from taskgen.commands import train as train_command
from taskgen.commands.attack import attack_tasks
from taskgen.commands.audit_tasks import TaskOptions, audit_tasks
from taskgen.commands.build import Settings
from taskgen.commands.build import build as build_command
from taskgen.commands.calibrate import Attempt, ByTurns, Options, Status
from taskgen.commands.calibrate import calibrate as calibrate_command
from taskgen.commands.steered import MAX_SAMPLES as MAX_BUILD_SAMPLES
from taskgen.commands.steered import Target
from taskgen.commands.summary import RepoSummary
from taskgen.commands.training_run import Options as TrainOptions
from taskgen.config import find_data, load_recipes, load_repos
from taskgen.console import (
    BuildProgress,
    calibration_table,
    err,
    guarantee_table,
    out,
    print_attacks,
    print_audit,
    print_rollouts,
    print_verdict,
    summary_table,
    training_table,
)
from taskgen.difficulty import FIRST, MAX_SAMPLES, Design
from taskgen.errors import ConfigError, StoreError, TaskgenError
from taskgen.grading.grade import grade as grade_patch
from taskgen.grading.grade import grade_tree
from taskgen.leaks.sarif import to_sarif
from taskgen.leaks.targets import TargetKind, kind_of
from taskgen.monitor.judge import load_judge
from taskgen.policies.policy import Policy, Sampling
from taskgen.policies.select import USAGE, Choice, choose_any
from taskgen.rollout import policy_named
from taskgen.rollout_file import open_rollouts
from taskgen.sandboxes.select import select
from taskgen.stopper import Interrupted, Stopper
from taskgen.trajectories import read_rollouts
from taskgen.types import RepoSpec, VerdictKind

EXIT_ERROR, EXIT_UNEXPECTED, EXIT_GATE, EXIT_INTERRUPTED = 1, 3, 4, 130
BAND = f"{Design().low}:{Design().high}"

app = typer.Typer(
    name="taskgen",
    help="Turn real repositories into reinforcement-learning tasks for coding agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


class SandboxKind(StrEnum):
    """Values of --sandbox."""

    AUTO = "auto"
    BUBBLEWRAP = "bubblewrap"
    DOCKER = "docker"


SandboxOption = Annotated[
    SandboxKind, typer.Option(help="Where foreign code runs; auto takes bubblewrap, else docker.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of tables.")]


def cache_folder() -> Path:
    """Where sources, environments and baselines are kept: TASKGEN_CACHE, or the user's cache folder."""
    return Path(os.environ.get("TASKGEN_CACHE") or platformdirs.user_cache_dir("taskgen")).absolute()


def _print_json(value: Any) -> None:  # noqa: ANN401 - any JSON value
    text = json.dumps(value, indent=1, ensure_ascii=False)
    # Lone surrogates, which policies do write, have no place in UTF-8: in JSON they are escapes.
    typer.echo(re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text))


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Turn real repositories into reinforcement-learning tasks for coding agents."""
    if version:
        typer.echo(f"taskgen {__version__}")
        raise typer.Exit


@app.command()
def build(
    repos: Annotated[
        Path | None, typer.Argument(help="The list of repositories (default: the shipped repos.yaml).")
    ] = None,
    to: Annotated[
        Path, typer.Option("--out", help="Folder of the task set; the same command resumes a stopped run.")
    ] = Path("data/tasks"),
    only: Annotated[
        list[str] | None, typer.Option(help="Only this repository (its name, or the last part of it); repeatable.")
    ] = None,
    recipes: Annotated[Path | None, typer.Option(help="Folder of recipes (default: the shipped ones).")] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option(help="Only this recipe of the folder; repeatable (default: all without `default: false`)."),
    ] = None,
    max_tasks: Annotated[int | None, typer.Option(min=1, help="At most this many tasks a repository.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random orders.")] = 0,
    full_runs: Annotated[
        int,
        typer.Option(
            min=0,
            help="How many of a candidate's three runs are of the whole suite; the others are of the tests it touches.",
        ),
    ] = 3,
    policy: Annotated[
        str | None, typer.Option(help=f"Keep only tasks in a band for this policy, and aim at it: {USAGE}.")
    ] = None,
    band: Annotated[
        str | None, typer.Option(help=f"With --policy: LOW:HIGH, the wanted chances of a pass (default {BAND}).")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Sandboxes at one time.")] = os.cpu_count() or 1,
    sandbox: SandboxOption = SandboxKind.AUTO,
    as_json: JsonOption = False,
) -> None:
    """Delete features from repositories and keep those deletions that make fair tasks.

    Example: taskgen build repos.yaml --out data/tasks --only inflection
    """
    if band is not None and policy is None:
        raise typer.BadParameter("needs --policy, whose chances of a pass are meant", param_hint="--band")
    design = _design(band or BAND, MAX_BUILD_SAMPLES)
    specs = _chosen(load_repos(repos or find_data("repos.yaml")), only or [])
    settings = Settings(
        recipes=load_recipes(recipes or find_data("recipes"), recipe or []),
        seed=seed,
        full_runs=full_runs,
        max_tasks=max_tasks,
    )
    cache, stopper = cache_folder(), Stopper()
    chosen = policy_named(policy, cache) if policy is not None else None
    try:
        if chosen is not None:
            target = Target(policy=chosen.policy, sampling=chosen.sampling, design=design)
            settings = replace(settings, target=target)
        provider = select(sandbox.value, cache)
        with BuildProgress(len(specs)) as progress:
            summaries = build_command(
                specs, settings, provider=provider, cache=cache, out=to, jobs=jobs, progress=progress, stopper=stopper
            )
    finally:
        if chosen is not None:
            chosen.policy.close()
    _report_build(summaries, to, as_json)


def _chosen(specs: tuple[RepoSpec, ...], only: list[str]) -> list[RepoSpec]:
    chosen = [s for s in specs if not only or s.name in only or s.name.rpartition("/")[2] in only]
    unknown = [name for name in only if not any(name in (s.name, s.name.rpartition("/")[2]) for s in specs)]
    if unknown:
        raise ConfigError(f"--only {unknown[0]}: no such repository", hint=f"known: {', '.join(s.name for s in specs)}")
    return chosen


def _report_build(summaries: list[RepoSummary], to: Path, as_json: bool) -> None:
    accepted = sum(s.n_accepted for s in summaries)
    skipped = [s for s in summaries if s.error]
    if as_json:
        _print_json({"out": str(to), "accepted": accepted, "repos": [asdict(s) for s in summaries]})
    else:
        out.print(summary_table(summaries))
        out.print(f"{accepted} tasks in {to} ({len(skipped)} of {len(summaries)} repositories skipped)")
    not_run = {name: why for s in summaries for name, why in s.not_run.items()}
    if not_run:
        name, why = next(iter(not_run.items()))
        _tell(f"{len(not_run)} tasks could not be attempted ({name}: {why}); the same command tries them again")
    if skipped or not_run:
        raise typer.Exit(EXIT_ERROR)
    if not accepted:
        raise typer.Exit(EXIT_GATE)


@app.command()
def grade(
    task: Annotated[Path, typer.Argument(help="A task's folder: DIR/tasks/ID (or DIR/ID).")],
    patch: Annotated[Path | None, typer.Argument(help="The patch (git diff) to grade; - reads stdin.")] = None,
    tree: Annotated[
        Path | None, typer.Option(help="Grade the tree that an agent left behind instead: a folder or a .tar.")
    ] = None,
    gold: Annotated[bool, typer.Option(help="Grade the task's own gold patch.")] = False,
    empty: Annotated[bool, typer.Option(help="Grade the empty patch.")] = False,
    fail_fast: Annotated[bool, typer.Option(help="End at the first hidden test that fails.")] = False,
    sandbox: SandboxOption = SandboxKind.AUTO,
    as_json: JsonOption = False,
) -> None:
    """Lay a model's work on a fresh workspace, run the hidden tests and the task's guards, and give a verdict.

    Exit code 0: resolved; 4: not; 1: it could not be found out.  Example: taskgen grade data/tasks/tasks/ID my.patch
    """
    folders = taskset.find_tasks(task)
    if len(folders) != 1:
        raise ConfigError(f"{task} holds {len(folders)} tasks", hint="give one of them: DIR/tasks/ID")
    taskset.must_be_whole(folders[0])
    cache = cache_folder()
    if (patch is not None) + (tree is not None) + gold + empty != 1:
        raise ConfigError("give one of: a patch file, --tree, --gold, --empty")
    if tree is not None:
        verdict = grade_tree(folders[0], tree, select(sandbox.value, cache), cache, fail_fast=fail_fast)
    else:
        data = _patch(folders[0], patch, gold=gold, empty=empty)
        verdict = grade_patch(folders[0], data, select(sandbox.value, cache), cache, fail_fast=fail_fast)
    if as_json:
        _print_json({**asdict(verdict), "kind": verdict.kind.value})
    else:
        print_verdict(verdict)
    if verdict.kind is VerdictKind.INFRA_ERROR:
        raise typer.Exit(EXIT_ERROR)
    if verdict.kind is not VerdictKind.RESOLVED:
        raise typer.Exit(EXIT_GATE)


def _patch(folder: Path, patch: Path | None, *, gold: bool, empty: bool) -> bytes:
    if gold:
        return (folder / "gold.patch").read_bytes()
    if empty:
        return b""
    if str(patch) == "-":
        return sys.stdin.buffer.read()
    assert patch is not None
    try:
        return patch.read_bytes()
    except OSError as error:
        raise ConfigError(f"{patch} cannot be read: {error.strerror}") from error


@app.command()
def audit(
    target: Annotated[
        str,
        typer.Argument(
            help="A task, a task set, a folder, an archive, SWE-bench-style rows, docker:IMAGE, or rollouts (.jsonl)."
        ),
    ],
    against: Annotated[
        Path | None, typer.Option(help="The gold patch whose code is to be looked for (for what is no task).")
    ] = None,
    repo: Annotated[Path | None, typer.Option(help="The repository that rows are about.")] = None,
    environment: Annotated[
        list[Path] | None, typer.Option(help="A folder that the agent has beside the target; repeatable.")
    ] = None,
    fix: Annotated[Path | None, typer.Option(help="Write a clean copy of the target to this new folder.")] = None,
    thief: Annotated[bool, typer.Option(help="Tasks: also steal what can be stolen, and grade it.")] = False,
    attack: Annotated[
        bool, typer.Option(help="Tasks: attack their grading in all known ways instead; each must earn nothing.")
    ] = False,
    judge: Annotated[
        Path | None, typer.Option(help="Rollouts: also ask the model that this YAML file names; it sees no reward.")
    ] = None,
    workspace_only: Annotated[bool, typer.Option(help="Tasks: leave their environments out.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes at one time.")] = os.cpu_count() or 1,
    sandbox: SandboxOption = SandboxKind.AUTO,
    sarif: Annotated[Path | None, typer.Option(help="Also write the findings as SARIF 2.1.0.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find what would let somebody take deleted code instead of writing it; in recorded rollouts, who did.

    Exit code 0: nothing that must go; 4: leaks, or rollouts whose reward is masked.  Example: taskgen audit data/tasks
    """
    kind = kind_of(target)
    if kind is TargetKind.ROLLOUTS and not attack:
        _monitor(Path(target), fix, judge, jobs, sarif, as_json)
        return
    if judge is not None:
        raise ConfigError(f"--judge: {target} holds no rollouts", hint="give a .jsonl file of rollouts")
    if attack:
        _attack(target, kind, jobs, sandbox, as_json)
        return
    if kind is TargetKind.TASKS:
        options = TaskOptions(
            cache=cache_folder(),
            provider=None if workspace_only else select(sandbox.value, cache_folder()),
            thief=thief,
            jobs=jobs,
            fix=fix,
        )
        report = audit_tasks(target, options, _tell)
    else:
        report = audit_command.audit(
            target,
            kind,
            audit_command.Options(against=against, repo=repo, environment=tuple(environment or ()), jobs=jobs, fix=fix),
        )
    if sarif is not None:
        sarif.write_text(json.dumps(to_sarif(report.all(), __version__), indent=1) + "\n", "utf-8")
    if as_json:
        _print_json(report.as_json())
    else:
        print_audit(report)
    if report.failures() or any(report.rewards.values()):
        raise typer.Exit(EXIT_GATE)


def _attack(target: str, kind: TargetKind, jobs: int, sandbox: SandboxKind, as_json: bool) -> None:
    if kind is not TargetKind.TASKS:
        raise ConfigError(f"--attack: {target} holds no task", hint="give a task set, or DIR/tasks/ID")
    cache = cache_folder()
    report = attack_tasks(target, select(sandbox.value, cache), cache, jobs=jobs, on_step=_tell)
    if as_json:
        _print_json(report.as_json())
    else:
        print_attacks(report)
    if report.broken():
        raise typer.Exit(EXIT_GATE)


def _monitor(target: Path, fix: Path | None, judge: Path | None, jobs: int, sarif: Path | None, as_json: bool) -> None:
    asked = load_judge(judge) if judge is not None else None
    report = monitor_command.watch(target, fix=fix, judge=asked, jobs=jobs, on_step=_tell)
    if sarif is not None:
        sarif.write_text(json.dumps(to_sarif(report.for_sarif(), __version__), indent=1) + "\n", "utf-8")
    if as_json:
        _print_json(report.as_json())
    else:
        print_rollouts(report)
    if report.masked():
        raise typer.Exit(EXIT_GATE)
    if report.faults():
        raise typer.Exit(EXIT_ERROR)


def _tell(text: str) -> None:
    err.print(text, markup=False, highlight=False)


@app.command()
def calibrate(
    tasks: Annotated[Path, typer.Argument(help="A task set, or one task: DIR/ID or DIR/tasks/ID.")],
    policy: Annotated[str, typer.Option(help=f"What attempts the tasks: {USAGE}.")],
    attempt: Annotated[
        Attempt | None,
        typer.Option(help="fill: write the deleted body; agent: turns of tool calls (default: fill if it can)."),
    ] = None,
    band: Annotated[str, typer.Option(help="LOW:HIGH, the chances of a pass at which tasks are learnable.")] = BAND,
    max_samples: Annotated[
        int, typer.Option(min=1, max=128, help="Most attempts at a task; few are made where few are clear.")
    ] = MAX_SAMPLES,
    rollouts: Annotated[
        Path | None,
        typer.Option(help="Where rollouts are recorded, and taken from again (default: rollouts.jsonl beside tasks/)."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all samples.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Attempts graded at one time.")] = os.cpu_count()
    or 1,
    sandbox: SandboxOption = SandboxKind.AUTO,
    as_json: JsonOption = False,
) -> None:
    """Measure how hard tasks are for a policy, with a few attempts each, and write it into the task set.

    Exit code 1: some tasks could not be run; 4: a task's gold patch does not pass here.
    Example: taskgen calibrate data/tasks --policy local
    """
    design, cache = _design(band, max_samples), cache_folder()
    folders = taskset.find_tasks(tasks)
    path = rollouts or _beside(folders[0]) / "rollouts.jsonl"
    with open_rollouts(path) as file:
        chosen = choose_any(
            policy, cache, lambda prompt: fill.gold_body(loaded(prompt.folder)),
            lambda prompt: hardness.hardness_of(loaded(prompt.folder)),
            lambda conversation: gold_calls(loaded(conversation.folder)),
        )  # fmt: skip
        try:
            attempting, sampling = _way(chosen, attempt, policy)
            options = Options(
                design=design, sampling=sampling, provider=select(sandbox.value, cache), cache=cache, jobs=jobs,
                seed=seed,
            )  # fmt: skip
            found = calibrate_command(tasks, attempting, file, options, _tell)
        finally:
            chosen.close()
    if as_json:
        _print_json(found.as_json() | {"file": str(path)})
    else:
        out.print(calibration_table(found))
        out.print(f"{found.n_rollouts} rollouts by this run; all are in {path}", markup=False)
    if found.of(Status.BROKEN):
        raise typer.Exit(EXIT_GATE)
    if found.of(Status.NOT_RUN):
        raise typer.Exit(EXIT_ERROR)


def _way(chosen: Choice, attempt: Attempt | None, policy: str) -> tuple[Policy | ByTurns, Sampling]:
    """The policy, to be asked in the way that was chosen, and how it is sampled then."""
    if attempt is not Attempt.AGENT and chosen.policy is not None:
        return chosen.policy, chosen.sampling
    if attempt is not Attempt.FILL and chosen.converses is not None:
        return ByTurns(policy=chosen.converses, limits=chosen.limits), chosen.turn_sampling
    way = Attempt.AGENT if chosen.policy is not None else Attempt.FILL
    hint = (
        "a local model has tool calls with style: chat in its file" if way is Attempt.AGENT else "give --attempt agent"
    )
    raise ConfigError(f"--policy {policy} cannot attempt tasks by --attempt {way}", hint=hint)


def _design(band: str, max_samples: int) -> Design:
    try:
        low, high = map(float, band.split(":"))
        return Design(low=low, high=high, first=min(FIRST, max_samples), max_samples=max_samples)
    except ValueError as error:
        raise typer.BadParameter(
            f"LOW:HIGH with 0 <= LOW < HIGH <= 1 is wanted, not {band!r}", param_hint="--band"
        ) from error


def _beside(folder: Path) -> Path:
    """The folder of a task's set."""
    return folder.parent.parent if folder.parent.name == "tasks" else folder.parent


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="A YAML file (docs/train.md).")],
    to: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the run; the same command goes on with it (default: runs/CONFIG)."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Rollouts graded at one time.")] = 1,
    sandbox: SandboxOption = SandboxKind.AUTO,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print what a step of the optimizer costs on a cluster, and do no more.")
    ] = False,
    target: Annotated[
        float | None, typer.Option(help="With --plan: find clusters on which a step takes at most these seconds.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="With --plan: also draw the timeline of the step to this SVG file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a policy on tasks, or say what a step of training costs on a cluster (--plan).

    Example: taskgen train trainer/examples/smollm2.yaml --out runs/smollm2
    """
    if plan:
        _plan(config, target, picture, as_json)
        return
    if target is not None or picture is not None:
        raise typer.BadParameter("--target and --picture are for --plan", param_hint="train")
    cache = cache_folder()
    options = TrainOptions(
        out=to or Path("runs") / config.stem, provider=select(sandbox.value, cache), cache=cache, jobs=jobs,
        quiet=as_json, on_note=_tell,
    )  # fmt: skip
    found = train_command.train(config, options)
    if as_json:
        records = [asdict(record) for record in found.records]
        said = {"step": found.step, "stopped": found.stopped, "page": str(found.page), "records": records}
        _print_json(said if found.left_out is None else said | {"left_out": found.left_out})
    else:
        out.print(training_table(found))
        out.print(f"the run's page is {found.page}", markup=False)
    if found.stopped:
        raise Interrupted


def _plan(config: Path, target: float | None, picture: Path | None, as_json: bool) -> None:
    if target is not None and not target > 0:
        raise typer.BadParameter(f"seconds above 0, not {target}", param_hint="--target")
    done = train_command.plan(config, target_s=target, picture=picture, as_json=as_json)
    sys.stdout.buffer.write(done.stdout)
    sys.stderr.buffer.write(done.stderr)
    if done.returncode:
        raise typer.Exit(done.returncode)


@app.command()
def show(
    tasks: Annotated[
        str, typer.Argument(help="A task set, one task (DIR/ID or DIR/tasks/ID), ROLLOUTS.jsonl or ROLLOUTS.jsonl#ID.")
    ],
    rollout: Annotated[str | None, typer.Option("--id", help="Of a file of rollouts: this one, turn by turn.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not fold long texts of a rollout.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a task as a page, a task set as a table, recorded rollouts as a table, or one rollout turn by turn."""
    found = show_rollouts.split(tasks)
    if found is not None:
        path, id = found
        _show_rollouts(path, rollout or id, full, as_json)
    elif rollout is not None or full:
        raise typer.BadParameter("--id and --full are for files of rollouts (.jsonl)", param_hint="show")
    else:
        _show_tasks(Path(tasks), as_json)


def _show_rollouts(path: Path, id: str, full: bool, as_json: bool) -> None:
    if id:
        one = show_rollouts.find(path, id)
        if as_json:
            _print_json(show_rollouts.record(one))
        else:
            out.print(show_rollouts.page(one, full=full))
    elif as_json:
        _print_json([show_rollouts.summary(each) for each in read_rollouts(path)])
    else:
        out.print(show_rollouts.overview(read_rollouts(path)))


def _show_tasks(tasks: Path, as_json: bool) -> None:
    folders = taskset.find_tasks(tasks)
    if as_json:
        _print_json([taskset.read_row(folder) for folder in folders])
    elif len(folders) == 1 and folders[0].name == tasks.name:
        out.print(show_command.page(taskset.read_row(folders[0])))
    else:
        out.print(show_command.overview(folders))


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Say what is here, what is missing and how to get it, and what each sandbox guarantees here.

    Exit code 4 if build cannot run.
    """
    probes = doctor_command.examine(cache_folder())
    ready = doctor_command.is_ready(probes)
    if as_json:
        guarantees = doctor_command.guaranteed(probes)
        _print_json({"ready": ready, "probes": [asdict(probe) for probe in probes], "guarantees": guarantees})
    else:
        for probe in probes:
            out.print(f"{'ok     ' if probe.available else 'MISSING'} {probe.name}: {probe.detail}", markup=False)
            if not probe.available and probe.hint:
                out.print(f"        {probe.hint}", markup=False)
        out.print(guarantee_table(doctor_command.guaranteed(probes)))
        out.print("ready" if ready else "not ready: build needs everything above, and one of bubblewrap and docker")
    if not ready:
        raise typer.Exit(EXIT_GATE)


def main() -> None:
    """The entry point: known faults become a message and a code, unknown ones a log."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    code = EXIT_UNEXPECTED
    try:
        app()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except TaskgenError as error:
        code = _fail(str(error))
    except Interrupted:
        code = EXIT_INTERRUPTED
        err.print("interrupted: what was done is kept; the same command goes on from here", markup=False)
    except Exception as error:
        code = _fail(full) if (full := _disk_fault(error)) else _unexpected()
    _leave(code)


def _interrupt(_signal: int, _frame: object) -> None:
    # Once is enough: the run is being wound up.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise Interrupted


def _fail(message: str) -> int:
    err.print(f"error: {message}", markup=False, style="red")
    return EXIT_ERROR


def _disk_fault(error: Exception) -> str:
    """The message for a disk that is full or read-only, wherever it was met; '' for another fault."""
    if not isinstance(error, OSError):
        return ""
    try:
        with disk_faults(Path(error.filename or tempfile.gettempdir())):
            raise error
    except StoreError as known:
        return str(known)
    except OSError:
        return ""


def _unexpected() -> int:
    text = f"taskgen {__version__}, Python {sys.version}\narguments: {sys.argv}\n\n{traceback.format_exc()}"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="taskgen-", suffix=".log", delete=False) as log:
            log.write(text)
    except OSError:  # no room for a log
        err.print(text, markup=False)
    else:
        err.print(f"unexpected error; please report it with {log.name}", markup=False, style="red")
    return EXIT_UNEXPECTED


def _leave(code: int) -> NoReturn:
    """Exit, also when a thread still waits for something that cannot be stopped: it has nothing half-done to lose."""
    sys.stdout.flush()
    sys.stderr.flush()
    if any(t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon):
        os._exit(code)
    sys.exit(code)
