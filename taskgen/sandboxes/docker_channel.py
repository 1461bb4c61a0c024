"""A channel to a program in a Docker sandbox."""

from __future__ import annotations

import threading
from collections.abc import Callable

from taskgen.errors import SandboxUnavailable
from taskgen.sandboxes.docker_exec import DockerExec, Sink
from taskgen.sandboxes.lines import LineQueue, Tail

Start = Callable[[Sink, Sink], DockerExec]


class DockerChannel:
    """Speaks to a program line by line (see ``Channel``)."""

    def __init__(self, start: Start, finish: Callable[[DockerExec], None]) -> None:
        """Start the program. Raises SandboxUnavailable."""
        self._finish = finish
        self._lines, self._tail = LineQueue(), Tail()
        self._closing = threading.Lock()
        self._closed = False
        self._run = start(self._lines.feed, self._tail.feed)
        self._run.when_over(lambda: self._lines.finish(self._run.fault))

    def send(self, line: bytes) -> None:
        """Write one line. Raises EOFError if the program has ended."""
        if self._closed or not self._run.write(line + b"\n"):
            raise EOFError(f"the program has ended: {self._tail.text()}")

    def receive(self, timeout_s: float) -> bytes:
        """Return the next line (see ``Channel.receive``)."""
        return self._lines.receive(timeout_s)

    def stderr_tail(self) -> str:
        """The last 4 KiB of stderr."""
        return self._tail.text()

    def close(self) -> None:
        """Kill the program and everything that it started."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._lines.finish()
        try:
            self._finish(self._run)
        except SandboxUnavailable:
            self._run.close()  # the engine is gone, and the program with it
