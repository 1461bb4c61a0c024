"""The trainer as a process of its own, since it needs torch and taskgen does not; spoken to in JSON lines."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import taskgen
from taskgen import process
from taskgen.errors import PrerequisiteError

_MAX_LINE_BYTES = 256 << 20
_STDERR_BYTES = 64 << 10


class TrainerDied(Exception):
    """The process ended, or did not answer in time: with what it last said."""


class TrainerProcess:
    """The process and its pipes. ``close`` kills it: it has nothing to save."""

    def __init__(self, arguments: Sequence[str], threads: int) -> None:
        # Libraries of arithmetic start no more threads than said.
        env = environment(OMP_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="false", PYTHONSAFEPATH="1")
        self._process: subprocess.Popen[bytes] = process.start(arguments, env=env)
        assert self._process.stdout and self._process.stderr
        self._said = process.BoundedReader(self._process.stderr, _STDERR_BYTES)
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, message: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and wait for its answer. Raises TrainerDied, ValueError for an answer of another form."""
        self.tell(message)
        return self.hear(timeout_s)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a request. Raises TrainerDied."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise TrainerDied(self._last_words()) from error

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """Wait for what it says next. Raises as ``ask``."""
        assert self._process.stdout
        handle, deadline = self._process.stdout.fileno(), time.monotonic() + timeout_s
        parts = [self._rest]
        size = len(self._rest)
        while b"\n" not in parts[-1]:
            if not process.is_ready(handle, max(0.0, deadline - time.monotonic())):
                raise TrainerDied(f"no answer within {timeout_s:.0f} s")
            chunk = os.read(handle, 1 << 16)
            size += len(chunk)
            if not chunk or size > _MAX_LINE_BYTES:
                raise TrainerDied(self._last_words())
            parts.append(chunk)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        value = json.loads(line)
        if not isinstance(value, dict):
            raise ValueError(f"not an object: {value!r:.100}")
        return value

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.poll()
        ended = f"signal {-code}" if code is not None and code < 0 else f"code {code}"
        self._said.finish(1.0)
        said = self._said.value().decode(errors="replace").strip()
        return f"it ended with {ended}" + (f": {said[-600:]}" if said else "")

    def close(self) -> None:
        """Kill the process, and free its pipes."""
        process.kill_tree(self._process)
        self._said.finish(1.0)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def command(arguments: Sequence[str]) -> list[str]:
    """``python -m trainer`` with these arguments."""
    # -P: a folder named trainer where the user happens to be is not ours.
    return [sys.executable, "-P", "-m", "trainer", *arguments]


def torchrun_command(arguments: Sequence[str], ranks: int, more: Sequence[str]) -> list[str]:
    """The same on ``ranks`` processes of this machine, with ``more`` options for torchrun. Rank 0 must be here."""
    torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    # Runs beside each other on one machine need ports of their own.
    torchrun += list(more) or ["--standalone"]
    return [*torchrun, "-m", "trainer", *arguments]


def environment(**more: str) -> Mapping[str, str]:
    """Our variables, with the folder that taskgen was imported from, and ``more``."""
    root = str(Path(taskgen.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **more}


def must_have_torch(message: str) -> None:
    """Raises PrerequisiteError, with ``message``, if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise PrerequisiteError(message, hint="pip install 'taskgen[train]'")
