"""The sandbox seam: the only place where code of a repository, an agent or a patch runs.

Every sandbox shows the same small machine:

    /env         what was installed; writable until ``snapshot``, read-only in a sandbox made from a snapshot
    /workspace   the tree; writable, empty at first
    /home/agent  the home directory; writable, empty at first
    /tmp         private; contents need not survive from one ``exec`` to the next
    the system   read-only; nothing else of the host is visible

Code in it runs as uid 1000 without capabilities, in its own pid namespace, and without a network unless
the sandbox was created with one. One conformance suite (tests/test_sandbox_conformance.py) runs against
every member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

ENV_DIR = "/env"
WORKSPACE_DIR = "/workspace"
HOME_DIR = "/home/agent"
UID = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what runs in a sandbox.

    Attributes:
        memory_bytes: resident memory of all its processes together.
        processes: processes and threads at one time.
        file_bytes: size of a single file.
        cpus: processor time a second, of all its processes together.
        output_bytes: how much of each of stdout and stderr is kept (the head and the tail of it).
    """

    memory_bytes: int = 4 << 30
    processes: int = 512
    file_bytes: int = 1 << 30
    cpus: float = 2.0
    output_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a program in a sandbox ended.

    ``returncode`` is that of the program, 128 + the signal's number when a signal ended it, or 124 with
    ``timed_out`` set. ``stdout_bytes`` and ``stderr_bytes`` count what was written before truncation.
    """

    returncode: int
    stdout: bytes
    stderr: bytes
    duration_s: float
    timed_out: bool = False
    stdout_bytes: int = 0
    stderr_bytes: int = 0


class Channel(Protocol):
    """A program in a sandbox that is spoken to over its stdin and stdout, line by line.

    Every method may raise SandboxUnavailable when the sandbox itself is gone.
    """

    def send(self, line: bytes) -> None:
        """Write one line (without its newline). Raises EOFError if the program has ended."""

    def receive(self, timeout_s: float) -> bytes:
        """Return the next line, without its newline.

        Raises:
            TimeoutError: nothing complete came in ``timeout_s``.
            EOFError: the program has ended.
            ValueError: the line is longer than the channel allows (64 MiB).
        """

    def stderr_tail(self) -> str:
        """Return the last 4 KiB that the program wrote to stderr, decoded with replacement."""

    def close(self) -> None:
        """Kill the program and everything that it started. Never raises; may be called twice."""


class Sandbox(Protocol):
    """One sandbox. A context manager: leaving it calls ``close``."""

    def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] = ...,
        cwd: str = WORKSPACE_DIR,
        timeout_s: float = 60.0,
    ) -> ExecResult:
        """Run a program to its end; kill its whole process tree at the end or at the time limit.

        A program that cannot be found ends with code 127. ``env`` is added to a small fixed environment
        (PATH, HOME, LANG=C.UTF-8, TMPDIR); nothing of the host's environment is passed on.

        Raises:
            SandboxUnavailable: the sandbox could not start the program at all or is closed.
        """

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] = ..., cwd: str = WORKSPACE_DIR) -> Channel:
        """Start a program and return a channel to it. Raises SandboxUnavailable."""

    def put(self, directory: str, archive: bytes) -> None:
        """Unpack an uncompressed tar archive into ``directory`` (made if missing), as uid 1000.

        Raises SandboxUnavailable if the sandbox refuses or the archive cannot be unpacked there.
        """

    def get(self, directory: str, *, max_bytes: int = 1 << 30) -> bytes:
        """Return ``directory`` as an uncompressed tar archive with relative names.

        The archive is data from a hostile place: read it with care, never ``extractall``.

        Raises:
            SandboxUnavailable: the sandbox is gone, or there is no such directory.
            ValueError: the archive is larger than ``max_bytes``.
        """

    def fork(self) -> Sandbox:
        """Return an independent sandbox with the same limits and a copy of /env, /workspace and /home/agent.

        Raises SandboxUnavailable.
        """

    def snapshot(self, key: str) -> None:
        """Keep /env under ``key`` (lower-case letters, digits and dashes), atomically, replacing nothing.

        Doing it again with a key that exists is a no-op. Raises SandboxUnavailable.
        """

    def close(self) -> None:
        """Kill everything and free what the sandbox holds. Never raises; may be called twice."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A folder of a sandbox on this machine. ``hidden``: folders on this machine that the sandbox does not show."""

    root: Path
    hidden: frozenset[Path] = frozenset()


class SandboxProvider(Protocol):
    """Makes sandboxes of one kind. Safe to use from several threads and several processes."""

    name: str

    def fingerprint(self) -> str:
        """A short string that changes when environments built by this provider must be built anew."""

    def python(self) -> str:
        """The path, inside a sandbox, of the Python interpreter that environments are made with."""

    def has_snapshot(self, key: str) -> bool:
        """Whether ``key`` was kept on this machine (or engine). Raises SandboxUnavailable."""

    def locate(self, snapshot: str, folder: str) -> Location | None:
        """Where a folder of sandboxes made from ``snapshot`` lies on this machine; None if only they can read it."""

    def create(self, *, snapshot: str | None = None, network: bool = False, limits: Limits = ...) -> Sandbox:
        """Start a sandbox: from a snapshot (its /env read-only), or with an empty, writable /env.

        Raises:
            SandboxUnavailable: it could not be started, or there is no such snapshot.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Whether a sandbox kind can work here, and if not, what to install (``hint``)."""

    name: str
    available: bool
    detail: str
    hint: str = field(default="")
