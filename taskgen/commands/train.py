"""Train a policy: the trainer is a process of its own, since it needs torch and taskgen does not."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import taskgen
from taskgen import process
from taskgen.errors import CommandError, ConfigError, PrerequisiteError
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
    if importlib.util.find_spec("torch") is None:
        raise PrerequisiteError("train: torch is not installed", hint="pip install 'taskgen[train]'")
    # -P: a folder named trainer where the user happens to be is not ours.
    return process.run([sys.executable, "-P", "-m", "trainer", *arguments], env=_environment(), timeout_s=TIMEOUT_S)


def _environment() -> Mapping[str, str]:
    """Ours, with the folder that taskgen was imported from, and the terminal's width, which a pipe does not have."""
    root = str(Path(taskgen.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    columns = str(shutil.get_terminal_size((140, 50)).columns)
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": columns}
