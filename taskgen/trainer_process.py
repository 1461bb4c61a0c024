"""How the trainer is started: a process of its own, since it needs torch and taskgen does not."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import taskgen
from taskgen.errors import PrerequisiteError


def command(arguments: Sequence[str]) -> list[str]:
    """``python -m trainer`` with these arguments."""
    # -P: a folder named trainer where the user happens to be is not ours.
    return [sys.executable, "-P", "-m", "trainer", *arguments]


def environment(**more: str) -> Mapping[str, str]:
    """Our variables, with the folder that taskgen was imported from, and ``more``."""
    root = str(Path(taskgen.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **more}


def must_have_torch(message: str) -> None:
    """Raises PrerequisiteError, with ``message``, if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise PrerequisiteError(message, hint="pip install 'taskgen[train]'")
