"""A channel to a program in a bubblewrap sandbox."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from taskgen.errors import SandboxUnavailable, TaskgenError
from taskgen.sandboxes.bwrap_process import BwrapProcess, close_pipes
from taskgen.sandboxes.lines import LineQueue, Tail


class BwrapChannel:
    """Speaks to a program line by line (see ``Channel``)."""

    def __init__(
        self,
        start: Callable[[], BwrapProcess],
        finish: Callable[[BwrapProcess], None],
        ended: Callable[[BwrapChannel], None],
    ) -> None:
        """Start the program. Raises SandboxUnavailable."""
        self._lines, self._tail = LineQueue(), Tail()
        self._sending = threading.Lock()
        self._started = threading.Event()
        self._run: BwrapProcess | None = None
        self._error: TaskgenError | None = None
        self._closed = False
        # bwrap dies with the thread that starts it: one thread starts it, reads it and reaps it.
        self._thread = threading.Thread(target=self._live, args=(start, finish, ended), daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error:
            raise self._error

    def _live(
        self,
        start: Callable[[], BwrapProcess],
        finish: Callable[[BwrapProcess], None],
        ended: Callable[[BwrapChannel], None],
    ) -> None:
        try:
            run = self._run = start()
        except TaskgenError as error:
            self._error = error
            return
        finally:
            self._started.set()
        assert run.process.stdout and run.process.stderr
        stderr = run.process.stderr.fileno()
        errors = threading.Thread(target=_pump, args=(stderr, self._tail.feed), daemon=True)
        errors.start()
        _pump(run.process.stdout.fileno(), self._lines.feed)
        # A program may close its stdout and go on.
        run.wait(float("inf"), lambda: None)
        finish(run)
        errors.join(5.0)
        self._lines.finish(self._fault(run))
        with self._sending:
            close_pipes(run.process)
        ended(self)

    def _fault(self, run: BwrapProcess) -> SandboxUnavailable | None:
        """Why the program was never started, if it was not and nobody closed the channel."""
        if not self._closed:
            try:
                run.exit_code(self._tail.text().encode())
            except SandboxUnavailable as error:
                return error
        return None

    def send(self, line: bytes) -> None:
        """Write one line. Raises EOFError if the program has ended."""
        assert self._run and self._run.process.stdin
        with self._sending:
            try:
                self._run.process.stdin.write(line + b"\n")
                self._run.process.stdin.flush()
            except (OSError, ValueError) as error:
                raise EOFError(f"the program has ended: {self._tail.text()}") from error

    def receive(self, timeout_s: float) -> bytes:
        """Return the next line (see ``Channel.receive``)."""
        return self._lines.receive(timeout_s)

    def stderr_tail(self) -> str:
        """The last 4 KiB of stderr."""
        return self._tail.text()

    def close(self) -> None:
        """Kill the program and wait until everything that it started is gone."""
        self._closed = True
        if self._run:
            self._lines.finish()
            self._run.kill()
            self._thread.join(10.0)


def _pump(fd: int, feed: Callable[[bytes], None]) -> None:
    while chunk := os.read(fd, 1 << 16):
        feed(chunk)
