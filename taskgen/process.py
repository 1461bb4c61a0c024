"""The only place that starts a host process: a time limit, the whole tree killed, bounded output."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from taskgen.errors import CommandError

DEFAULT_OUTPUT_BYTES = 8 << 20
#: How often a reader looks whether its stream counts as over.
POLL_S = 1.0
#: Reads of what a program that ended left in its pipe: more than fits into one, but not all that a daemon may write on.
MOST_LEFT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A host process that ended. ``returncode`` is negative when a signal ended it, as in ``subprocess``."""

    returncode: int
    stdout: bytes
    stderr: bytes
    duration_s: float
    timed_out: bool
    stdout_bytes: int
    stderr_bytes: int


class BoundedKeeper:
    """Keeps only the head and the tail of what it is fed, so that a flood costs no memory."""

    def __init__(self, limit_bytes: int) -> None:
        self._half = max(1, limit_bytes // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Add bytes as they came."""
        self.total_bytes += len(chunk)
        room = self._half - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def value(self) -> bytes:
        """What was kept; a line says how much was left out."""
        tail = bytes(self._tail[-self._half :])
        left_out = self.total_bytes - len(self._head) - len(tail)
        note = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out > 0 else b""
        return bytes(self._head) + note + tail


def is_ready(handle: int, timeout_s: float) -> bool:
    """Whether a descriptor can be read (or is over) within a time. Unlike select's, its number may be above 1023."""
    polled = select.poll()
    polled.register(handle, select.POLLIN)
    return bool(polled.poll(timeout_s * 1000))


class BoundedReader(threading.Thread):
    """Drains a pipe in a thread of its own and keeps only the head and the tail."""

    def __init__(self, stream: IO[bytes], limit_bytes: int) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._kept = BoundedKeeper(limit_bytes)
        self._reading = threading.Lock()
        self._over = False
        os.set_blocking(stream.fileno(), False)
        self.start()

    def run(self) -> None:
        # A closed pipe raises ValueError or OSError in the reading thread: the stream is over then.
        with contextlib.suppress(ValueError, OSError):
            while not self._over:
                if is_ready(self._stream.fileno(), POLL_S):
                    self._read()

    def _read(self) -> bool:
        """Take what is there; False: that was nothing."""
        with self._reading, contextlib.suppress(BlockingIOError):
            if not self._over:
                chunk = os.read(self._stream.fileno(), 1 << 16)
                self._kept.feed(chunk)
                self._over = not chunk
                return bool(chunk)
        return False

    def finish(self, wait_s: float = 5.0) -> None:
        """Wait for the end of the stream; call it when the program has ended, and before the stream is closed.

        A program that was left behind may hold the stream open: then it counts as over. What was written before is
        kept all the same, however late a busy machine runs the reading thread.
        """
        self.join(wait_s)
        with contextlib.suppress(ValueError, OSError):
            for _ in range(MOST_LEFT):
                if not self._read():
                    break
        with self._reading:
            self._over = True

    @property
    def total_bytes(self) -> int:
        """How much was written, kept or not."""
        return self._kept.total_bytes

    def value(self) -> bytes:
        """What was kept; a line says how much was left out."""
        return self._kept.value()


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process in its own session with three pipes. Raises FileNotFoundError if there is none."""
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if env is None else dict(env),
        cwd=cwd,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill the process's whole group and reap it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 600.0,
    output_bytes: int = DEFAULT_OUTPUT_BYTES,
) -> Completed:
    """Run a process to its end and return how it ended, whatever its code.

    Raises:
        FileNotFoundError: there is no such program.
    """
    began = time.monotonic()
    process = start(argv, env=env, cwd=cwd)
    assert process.stdin and process.stdout and process.stderr
    out, err = BoundedReader(process.stdout, output_bytes), BoundedReader(process.stderr, output_bytes)
    feeder = threading.Thread(target=feed, args=(process.stdin, stdin), daemon=True)
    feeder.start()
    timed_out = False
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        kill_tree(process)
        for reader in (out, err):
            reader.finish()
        for stream in (process.stdout, process.stderr):
            stream.close()
    return Completed(
        returncode=124 if timed_out else process.returncode,
        stdout=out.value(),
        stderr=err.value(),
        duration_s=time.monotonic() - began,
        timed_out=timed_out,
        stdout_bytes=out.total_bytes,
        stderr_bytes=err.total_bytes,
    )


def feed(stream: IO[bytes], data: bytes) -> None:
    """Write all of ``data`` to a program's stdin and close it."""
    # A program that ends without reading its input is not a fault.
    with contextlib.suppress(BrokenPipeError, OSError):
        stream.write(data)
    with contextlib.suppress(BrokenPipeError, OSError):
        stream.close()


def check(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 600.0,
    output_bytes: int = DEFAULT_OUTPUT_BYTES,
) -> bytes:
    """Run a process and return its stdout.

    Raises:
        CommandError: it ended with a non-zero code or ran past ``timeout_s``.
        FileNotFoundError: there is no such program.
    """
    done = run(argv, stdin=stdin, env=env, cwd=cwd, timeout_s=timeout_s, output_bytes=output_bytes)
    if done.returncode != 0:
        raise CommandError(
            argv,
            done.returncode,
            done.stdout.decode(errors="replace")[-4000:],
            done.stderr.decode(errors="replace")[-4000:],
            timed_out=done.timed_out,
        )
    return done.stdout
