"""Train a policy: the trainer is a process of its own, since it needs torch and taskgen does not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from taskgen import process, trainer_process
from taskgen.errors import CommandError, ConfigError
from taskgen.process import Completed

TIMEOUT_S = 600.0


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
