"""Train a policy: the trainer is a process of its own, since it needs torch and taskgen does not."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from taskgen import fill, process, taskset, trainer_process
from taskgen.atomic import disk_faults
from taskgen.attempts import Grader, loaded
from taskgen.commands.train_text import train_text
from taskgen.commands.training_run import (
    CHECKPOINTS,
    ROLLOUTS,
    WEIGHTS,
    Options,
    Trained,
    gently_stopped,
    keep_config,
    must_be_as_begun,
)
from taskgen.errors import CommandError, ConfigError, FormatError, StoreError
from taskgen.fill import Site
from taskgen.hints.rules import DEFAULT, load_rules
from taskgen.hints.writer import Hinter
from taskgen.process import Completed
from taskgen.rollout import policy_named
from taskgen.rollout_file import RolloutFile, open_rollouts
from taskgen.stopper import StoppableProvider, Stopper
from taskgen.training import state as states
from taskgen.training.config import TrainConfig
from taskgen.training.evaluation import Evaluation
from taskgen.training.groups import Sampler
from taskgen.training.learner import Learner
from taskgen.training.loop import Loop
from taskgen.training.metrics import MetricsWriter, read_metrics
from taskgen.training.orders import Orders
from taskgen.training.page import write_page
from taskgen.training.progress import TrainingProgress
from taskgen.training.reading_config import load_stage
from taskgen.training.state import RunState

TIMEOUT_S = 600.0


def train(path: Path, options: Options) -> Trained:
    """Train by a configuration of any stage, or go on with the run that is in ``options.out``.

    Raises:
        ConfigError: the configuration is wrong, or not the one that the run began with.
        FormatError: there are no tasks, or none that can be attempted in one turn.
        PrerequisiteError: no torch, no weights.
        PolicyFault, StoreError, Interrupted: what was saved stays, and the same command goes on from there.
    """
    config = load_stage(path)
    if not isinstance(config, TrainConfig):
        return train_text(path, config, options)
    must_be_as_begun(path, config, options.out)
    folders = _attemptable(config.tasks, options.on_note)
    heldout = _attemptable(config.evaluate.tasks, options.on_note) if config.evaluate.tasks else {}
    _must_be_apart(folders, heldout)
    stopper, stop = Stopper(), threading.Event()
    with (
        open_rollouts(options.out / ROLLOUTS) as file,
        ThreadPoolExecutor(options.jobs) as pool,
        Learner(config.policy, config.setup(options.cache), options.out / CHECKPOINTS) as learner,
        TrainingProgress(config.steps, quiet=options.quiet) as progress,
    ):
        keep_config(path, options.out)
        state = _state_of(learner, file, options)
        # -1: nothing was saved yet; what a killed run has recorded is done again.
        resume_step = learner.step if learner.progress else -1
        provider = StoppableProvider(options.provider, stopper)
        grader = Grader(provider, options.cache, file.grades)

        def sampler(tasks: dict[str, Path], label: str) -> Sampler:
            return Sampler(
                learner, tasks, config.sampling.record(), seed=config.seed, label=label, behaviour=config.behaviour,
                hinter=_hinter(config, options.cache), grader=grader, file=file, pool=pool, stopper=stopper,
            )  # fmt: skip

        with MetricsWriter(options.out, resume_step=resume_step, on_note=progress.note) as metrics:
            folders |= state.ordered
            section = config.curriculum.order
            orders = None if section is None else Orders(
                section=section, out=options.out, begun=state.n_orders, heldout=_repositories(heldout),
                on_note=progress.note,
            )  # fmt: skip
            loop = Loop(
                config=config, orders=orders, learner=learner, sampler=sampler(folders, "train"),
                evaluation=Evaluation(sampler(heldout, "heldout") if heldout else None, config.evaluate.samples),
                metrics=metrics, progress=progress, state=state, stop=stop,
                size_of_rollouts=lambda: file.path.stat().st_size if file.path.exists() else 0,
            )  # fmt: skip
            try:
                with gently_stopped(stop, progress.note):
                    loop.run()
            except BaseException:
                stopper.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            finally:
                if orders is not None:
                    orders.close()
        learner.export(config.setup(options.cache), options.out / WEIGHTS)
        page = write_page(options.out)
        records = tuple(read_metrics(metrics.path)) if metrics.path.exists() else ()
        return Trained(step=learner.step, stopped=learner.step < config.steps, page=page, records=records)


def _attemptable(tasks: Path, on_note: Callable[[str], None]) -> dict[str, Path]:
    """The tasks of a set that can be attempted by writing one body."""
    folders = taskset.find_tasks(tasks)
    found = {folder.name: folder for folder in folders if isinstance(fill.site_of(loaded(folder)), Site)}
    if not found:
        raise FormatError(
            f"{tasks}: none of {len(folders)} tasks can be attempted in one turn",
            hint="build some of one body each: taskgen build --recipe short-function",
        )
    on_note(f"{tasks}: {len(found)} of {len(folders)} tasks can be attempted in one turn")
    return found


def _must_be_apart(folders: dict[str, Path], heldout: dict[str, Path]) -> None:
    if both := sorted(_repositories(folders) & _repositories(heldout)):
        raise ConfigError(
            f"evaluate.tasks: repositories that are also trained on: {', '.join(both)}",
            hint="hold out whole repositories: tasks of one repository share its code",
        )


def _repositories(folders: dict[str, Path]) -> frozenset[str]:
    return frozenset(str(loaded(folder).row["repo"]) for folder in folders.values())


def _state_of(learner: Learner, file: RolloutFile, options: Options) -> RunState:
    """Where the run stands; rollouts of work that will be done again are cut off, their grades are still known."""
    state = states.restore(learner.progress) if learner.progress else RunState()
    if file.path.exists():
        size = file.path.stat().st_size
        if size < state.rollout_bytes:
            raise StoreError(f"{file.path} has {size} bytes, and had {state.rollout_bytes} at the checkpoint")
        with disk_faults(file.path.parent), file.path.open("rb+") as handle:
            handle.truncate(state.rollout_bytes)
    if learner.progress:
        options.on_note(f"going on from step {learner.step}")
    return state


def _hinter(config: TrainConfig, cache: Path) -> Hinter:
    rules = load_rules(config.feedback.rules or DEFAULT)
    if not rules.writer:
        return Hinter(rules)
    chosen = policy_named(rules.writer, cache)
    return Hinter(rules, chosen.policy)


def plan(config: Path, *, target_s: float | None, picture: Path | None, as_json: bool) -> Completed:
    """What a step of training costs, by ``python -m trainer --plan``: its output and its exit code.

    Raises:
        PrerequisiteError: torch is not installed.
        ConfigError: there is no such configuration.
        CommandError: the trainer was killed, or ran past its time limit.
    """
    if not config.is_file():
        raise ConfigError(f"{config}: there is no such file", hint="give the path of a configuration (docs/train.md)")
    arguments = [str(config), "--plan"]
    arguments += [] if target_s is None else ["--target", str(target_s)]
    arguments += [] if picture is None else ["--picture", str(picture)]
    done = _trainer([*arguments, *(["--json"] if as_json else [])])
    if done.timed_out or done.returncode < 0:
        raise CommandError(
            ["python", "-m", "trainer", *arguments],
            done.returncode,
            "",
            done.stderr.decode(errors="replace")[-4000:],
            timed_out=done.timed_out,
        )
    return done


def _trainer(arguments: Sequence[str]) -> Completed:
    trainer_process.must_have_torch("train: torch is not installed")
    # A pipe does not have the terminal's width.
    env = trainer_process.environment(COLUMNS=str(shutil.get_terminal_size((140, 50)).columns))
    return process.run(trainer_process.command(arguments), env=env, timeout_s=TIMEOUT_S)
