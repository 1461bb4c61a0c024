"""One run of bwrap: started, waited for, killed with its whole pid namespace, and its outcome read."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from taskgen import process
from taskgen.errors import SandboxUnavailable
from taskgen.sandboxes import seccomp
from taskgen.sandboxes.cgroup import Cgroup

CHECK_EVERY_S = 0.1
START_WITHIN_S = 60.0
GONE_WITHIN_S = 5.0
# bwrap itself runs with this and nothing else; what the program sees is set by --setenv.
HOST_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}


class BwrapProcess:
    """bwrap with a program in it. ``process`` has the program's three pipes.

    bwrap dies with the thread that started it: that thread must outlive the program.
    """

    def __init__(self, options: Sequence[str], argv: Sequence[str], group: Cgroup | None) -> None:
        """Start it. Raises SandboxUnavailable."""
        self._group = group
        self._init: int | None = None
        self._exceeded = False
        self._reaping = threading.Lock()
        self._reaped = False
        # Options go through a file, so that long values cannot exceed the limit of a command line.
        compiled = seccomp.program()
        self._status, status = os.pipe()
        passed = [status]
        try:
            passed.append(_in_memory(b"\0".join(os.fsencode(option) for option in options) + b"\0"))
            own = ["--args", str(passed[-1]), "--json-status-fd", str(status)]
            if compiled is not None:
                passed.append(_in_memory(compiled))
                own += ["--seccomp", str(passed[-1])]
            command = ["bwrap", *own, "--", *argv]
            self.process = process.start(
                group.wrap(command) if group else command, env=HOST_ENV, pass_fds=tuple(passed)
            )
        except (OSError, ValueError) as error:
            os.close(self._status)
            if group:
                group.remove()
            hint = "apt-get install bubblewrap" if isinstance(error, FileNotFoundError) else None
            raise SandboxUnavailable(f"cannot start bwrap: {error}", hint=hint) from error
        finally:
            for handle in passed:
                os.close(handle)
        self._text = self._first_status()

    def _first_status(self) -> bytes:
        """Wait until bwrap made the sandbox's first process, and keep a handle to that process."""
        if not process.is_ready(self._status, START_WITHIN_S):
            return b""
        text = os.read(self._status, 1 << 16)
        with contextlib.suppress(ValueError, KeyError, ProcessLookupError):
            self._init = os.pidfd_open(json.loads(text.splitlines()[0])["child-pid"]) if text else None
        return text

    def wait(self, timeout_s: float, check: Callable[[], None]) -> bool:
        """Wait for the end, calling ``check`` ten times a second. Returns whether it ended in time."""
        deadline = time.monotonic() + timeout_s
        handle = os.pidfd_open(self.process.pid)
        try:
            while (left_s := deadline - time.monotonic()) > 0:
                if process.is_ready(handle, min(left_s, CHECK_EVERY_S)):
                    return True
                check()
            return False
        finally:
            os.close(handle)

    def kill(self) -> None:
        """Kill bwrap, and with it everything in its pid namespace. Does not wait."""
        with self._reaping:
            if not self._reaped:  # afterwards the number may be another process's
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, signal.SIGKILL)

    def finish(self) -> None:
        """Kill what is left, wait until the whole pid namespace is gone, free everything but the pipes."""
        with self._reaping:
            process.kill_tree(self.process)
            self._reaped = True
        if self._init is not None:
            # The namespace's first process ends only after all the others in it.
            process.is_ready(self._init, GONE_WITHIN_S)
            os.close(self._init)
            self._init = None
        os.set_blocking(self._status, False)
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self._status, 1 << 16):
                self._text += more
        os.close(self._status)
        self._exceeded = self._group.memory_exceeded() if self._group else False
        if self._group:
            self._group.remove()

    def exit_code(self, stderr: bytes) -> int:
        """The program's code, 128 + signal when a signal ended it; call it after ``finish``.

        Raises:
            SandboxUnavailable: the program was never started.
        """
        for line in self._text.splitlines():
            with contextlib.suppress(ValueError):
                status = json.loads(line)
                if "exit-code" in status:  # bwrap writes it only if it got as far as the program
                    return int(status["exit-code"])
        if self._exceeded:
            return 128 + signal.SIGKILL
        message = stderr.decode(errors="replace").strip()[-2000:]
        raise SandboxUnavailable(f"bwrap ended without starting the program: {message or self._ended()}")

    def _ended(self) -> str:
        return f"code {self.process.returncode}"


def _in_memory(data: bytes) -> int:
    """A file for bwrap to read, as a descriptor at its start."""
    handle = os.memfd_create("bwrap")
    try:
        os.write(handle, data)
        os.lseek(handle, 0, os.SEEK_SET)
    except OSError:
        os.close(handle)
        raise
    return handle


def close_pipes(started: subprocess.Popen[bytes]) -> None:
    """Close the three pipes. Never raises."""
    for stream in (started.stdin, started.stdout, started.stderr):
        # Closing flushes what a dead program did not read.
        with contextlib.suppress(OSError, ValueError):
            if stream:
                stream.close()
