"""One program in a container: started by ``docker exec``, its streams, its end, and what it left behind."""

from __future__ import annotations

import contextlib
import io
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import requests
from docker.errors import DockerException, ImageNotFound

from taskgen.errors import SandboxUnavailable
from taskgen.sandbox import UID

# The SDK has no types.
Client: TypeAlias = Any
Container: TypeAlias = Any
Image: TypeAlias = Any
Sink: TypeAlias = Callable[[bytes], None]

USER = f"{UID}:{UID}"
TOKEN_VARIABLE = "SANDBOX_EXEC"
STDERR_STREAM = 2
KILL_WITHIN_S = 30.0
# Room for the program that kills, when a fork bomb has used up the limit.
SPARE_PROCESSES = 64
# kill(-1) reaches everything of this uid but the killer itself; more than once, in case of a race.
KILL_ALL = "for i in 1 2 3; do kill -KILL -1 2>/dev/null; done; exit 0"
KILL_MARKED = (
    'for i in 1 2 3; do for f in $(grep -lsz "^$0=$1\\$" /proc/[0-9]*/environ); do '
    'p=${f#/proc/}; kill -KILL "${p%/environ}" 2>/dev/null; done; done; exit 0'
)


@contextmanager
def engine(doing: str, *, hint: str | None = None) -> Iterator[None]:
    """The single place where the engine's faults become SandboxUnavailable."""
    try:
        yield
    except ImageNotFound as error:
        raise SandboxUnavailable(f"cannot {doing}: {error.explanation or error}", hint=hint) from error
    except (DockerException, requests.RequestException, OSError) as error:
        raise SandboxUnavailable(f"cannot {doing}: {error}") from error


class DockerExec:
    """A running program; its output goes to two callables from a thread of its own."""

    def __init__(
        self,
        container: Container,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        on_stdout: Sink,
        on_stderr: Sink,
    ) -> None:
        """Start it. Raises SandboxUnavailable."""
        self.token = uuid.uuid4().hex
        self._api = container.client.api
        self._sinks = (on_stdout, on_stderr)
        self._over = threading.Event()
        self._callback: Callable[[], None] | None = None
        self._seen_output = False
        self.fault: SandboxUnavailable | None = None  # why the program was never started
        with engine("start a program in a container"):
            self._id = self._api.exec_create(
                container.id,
                list(argv),
                stdin=True,
                user=USER,
                workdir=cwd,
                environment={**env, TOKEN_VARIABLE: self.token},
            )["Id"]
            # The SDK's own exec_start gives the bare socket away, past a buffer that may already hold
            # output which came together with the headers: so the response's own reader is used here.
            self._response = self._api._post_json(
                self._api._url("/exec/{0}/start", self._id),
                headers={"Connection": "Upgrade", "Upgrade": "tcp"},
                data={"Tty": False, "Detach": False},
                stream=True,
            )
            self._api._raise_for_status(self._response)
            self._reader: io.BufferedReader = self._response.raw._fp.fp
            self._socket: socket.socket = self._reader.raw._sock  # a SocketIO
            self._socket.settimeout(None)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        # The connection may be closed under this thread when the sandbox is closed.
        with contextlib.suppress(OSError, ValueError):
            while len(header := self._reader.read(8)) == 8:
                stream, left = struct.unpack(">BxxxL", header)
                sink = self._sinks[1 if stream == STDERR_STREAM else 0]
                while left and (chunk := self._reader.read1(min(left, 1 << 16))):
                    left -= len(chunk)
                    if self.fault is None and not self._is_fault(chunk):
                        sink(chunk)
        self._over.set()
        if self._callback:
            self._callback()

    def _is_fault(self, chunk: bytes) -> bool:
        """Whether this is the engine's message that it could not start the program.

        The engine sends it as if the program had written it. A program can write the same words, but
        it cannot make the engine say that there never was a process.
        """
        if self._seen_output or not chunk.startswith(b"OCI runtime exec failed"):
            self._seen_output = True
            return False
        try:
            with engine("look after a program in a container"):
                state = self._api.exec_inspect(self._id)
            # While it starts it counts as running, and may write before the engine knows its number.
            started = bool(state["Pid"] or state["Running"])
        except SandboxUnavailable:
            started = False  # the container is gone
        if not started:
            why = chunk.decode(errors="replace").strip()
            self.fault = SandboxUnavailable(f"cannot start a program in a container: {why}")
        self._seen_output = True
        return not started

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the output is over."""
        self._callback = callback
        if self._over.is_set():
            callback()

    def write(self, data: bytes) -> bool:
        """Write to the program's stdin. Returns whether it still reads."""
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return not self._over.is_set()

    def write_all(self, data: bytes) -> None:
        """Write ``data`` and end the program's stdin; does not wait for the program to read it."""

        def feed() -> None:
            # A program that ends without reading its input is not a fault.
            with contextlib.suppress(OSError):
                self._socket.sendall(data)
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

        if data:
            threading.Thread(target=feed, daemon=True).start()
        else:
            feed()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the program's end; return its code, or None after ``timeout_s``.

        Raises:
            SandboxUnavailable: it was never started, or the engine is gone.
        """
        deadline = time.monotonic() + timeout_s
        pause_s, linger_s = 0.1, 0.005
        while True:
            over = self._over.wait(max(0.0, min(pause_s, deadline - time.monotonic())))
            # Something that the program left behind can hold its output open: ask the engine, too.
            with engine("look after a program in a container"):
                state = self._api.exec_inspect(self._id)
            if not state["Running"] and state["ExitCode"] is not None:
                return self._code(state)
            if time.monotonic() >= deadline:
                return None
            if over:
                # The engine notes the code a moment after the output's end.
                time.sleep(linger_s)
                linger_s = min(0.5, linger_s * 2)
            pause_s = min(1.0, pause_s * 2)

    def _code(self, state: Mapping[str, Any]) -> int:
        if not state["Pid"]:
            self._over.wait(5.0)
            raise self.fault or SandboxUnavailable("cannot start a program in a container")
        return int(state["ExitCode"])

    def close(self) -> None:
        """Close the connection, after what was left of the output was read. Never raises."""
        self._over.wait(5.0)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5.0)
        with contextlib.suppress(OSError, ValueError):
            self._response.close()
        with contextlib.suppress(OSError, ValueError):
            self._reader.close()
        self._socket.close()


def kill_all(container: Container, processes: int, only: str | None) -> None:
    """Kill everything of uid 1000 in a container, or only what carries the token ``only``.

    ``processes`` is the container's own limit. Raises SandboxUnavailable.
    """
    command = ["/bin/sh", "-c", KILL_ALL]
    if only is not None:
        command = ["/bin/sh", "-c", KILL_MARKED, TOKEN_VARIABLE, only]
    api = container.client.api
    with engine("kill the programs in a container"):
        if only is None and not _has_programs(container):
            return
        _limit_processes(api, container.id, processes + SPARE_PROCESSES)
        try:
            started = api.exec_create(container.id, command, user=USER, workdir="/")
            api.exec_start(started["Id"])
        finally:
            _limit_processes(api, container.id, processes)


def _has_programs(container: Container) -> bool:
    """Whether anything but docker-init and the idle process runs."""
    return len(container.top()["Processes"]) > 2


def _limit_processes(api: Client, container: str, processes: int) -> None:
    # The SDK's update_container knows no such setting; the engine's interface does.
    response = api._post_json(api._url("/containers/{0}/update", container), data={"PidsLimit": processes})
    api._raise_for_status(response)
