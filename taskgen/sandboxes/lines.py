"""What both kinds of channel share: a bounded queue of lines, and the tail of a stream."""

from __future__ import annotations

import threading
import time
from collections import deque

from taskgen.errors import SandboxUnavailable

MAX_LINE_BYTES = 64 << 20
TAIL_BYTES = 4 << 10


class LineQueue:
    """Turns chunks into lines for a reader in another thread.

    ``feed`` blocks while 64 MiB wait unread, so that a program that floods a channel is slowed down
    and costs no memory.
    """

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max = max_line_bytes
        self._lines: deque[bytes | None] = deque()  # None stands for a line that was too long
        self._waiting_bytes = 0
        self._partial = bytearray()
        self._too_long = False
        self._finished = False
        self._fault: SandboxUnavailable | None = None
        self._changed = threading.Condition()

    def feed(self, chunk: bytes) -> None:
        """Add bytes as they came; blocks while too much waits unread."""
        *complete, rest = chunk.split(b"\n")
        with self._changed:
            for piece in complete:
                self._extend(piece)
                self._end_line()
            self._extend(rest)
            self._changed.notify_all()
            while self._waiting_bytes > self._max and not self._finished:
                self._changed.wait()

    def _extend(self, piece: bytes) -> None:
        if self._too_long:
            return
        if len(self._partial) + len(piece) > self._max:
            self._too_long = True  # the rest of it is skipped
            self._partial.clear()
            self._lines.append(None)
        else:
            self._partial += piece

    def _end_line(self) -> None:
        if not self._too_long:
            self._lines.append(bytes(self._partial))
            self._waiting_bytes += len(self._partial) + 1
        self._partial.clear()
        self._too_long = False

    def finish(self, fault: SandboxUnavailable | None = None) -> None:
        """No more bytes will come; ``fault`` says that the program was never started.

        A last line without a newline is dropped: it is not complete.
        """
        with self._changed:
            self._finished = True
            self._fault = self._fault or fault
            self._changed.notify_all()

    def receive(self, timeout_s: float) -> bytes:
        """Return the next line. Raises TimeoutError, EOFError or ValueError, as ``Channel.receive``.

        Raises SandboxUnavailable if the program was never started.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._lines:
                if self._fault:
                    raise self._fault
                if self._finished:
                    raise EOFError("the program has ended")
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    raise TimeoutError(f"no complete line in {timeout_s:g} s")
            line = self._lines.popleft()
            if line is None:
                raise ValueError(f"a line is longer than {self._max} bytes")
            self._waiting_bytes -= len(line) + 1
            self._changed.notify_all()
            return line


class Tail:
    """Keeps the last 4 KiB of a stream."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._lock = threading.Lock()

    def feed(self, chunk: bytes) -> None:
        """Add bytes as they came."""
        with self._lock:
            self._kept += chunk
            del self._kept[:-TAIL_BYTES]

    def text(self) -> str:
        """The tail, decoded with replacement."""
        with self._lock:
            return self._kept.decode(errors="replace")
