"""Test runs in a sandbox: a conversation with the fork server of ``languages/python_runner``.

What comes back was written next to hostile code, so each event is checked before it is believed.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import cloudpickle

from taskgen import archive, report
from taskgen.archive import ArchiveEntry
from taskgen.errors import SandboxUnavailable
from taskgen.sandbox import ENV_DIR, HOME_DIR, WORKSPACE_DIR, Channel, Limits, Sandbox, SandboxProvider
from taskgen.types import TestReport

TREE_DIR = f"{HOME_DIR}/.taskgen-tree"
RUNNER_DIR = f"{HOME_DIR}/.taskgen-runner"
SERVER = f"{RUNNER_DIR}/serve.py"
RUNNER = Path(__file__).parent / "languages" / "python_runner"
PYTHON = f"{ENV_DIR}/venv/bin/python"
#: Seconds beyond a run's own limit after which the sandbox counts as broken.
GRACE_S = 30.0
READY_S = 120.0
#: One program in place of three, for each start of one costs as much as a small run: unpack what stdin holds first, say
#: so, fill the workspace, and become the server. The interpreter reads .pth files as it starts, and drops paths that do
#: not exist yet: so the workspace is filled before. The server compares it with what it should be, whatever cp did.
START = f"""
mkdir -p -- "$1" "$2" && head -c "$3" | tar -x -p -f - --no-same-owner -C "$1" &&
head -c "$4" | tar -x -p -f - --no-same-owner -C "$2" && echo unpacked || exit 1
for origin in {ENV_DIR}/artifacts "$1"; do
    [ ! -d "$origin" ] || cp -a -- "$origin/." {WORKSPACE_DIR}
done
exec "$5" "$6"
"""
UNPACKED = b"unpacked"
UNPACK_S = 600.0
#: A server reads at once; one that code under test has stopped never does.
SEND_S = 60.0
#: The server keeps to less; this is for code that speaks in its place.
EVENTS_MAX_BYTES = 600 << 20
#: Options of every run: our own reports only, no state left behind, go on past collection errors.
BASE_ARGS = (
    f"--rootdir={WORKSPACE_DIR}", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--tb=line", "-q",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run.

    Attributes:
        files: laid over the pristine tree; None deletes.
        args: pytest options and paths of the repository.
        select: run only these tests (and collect only their files); None: all.
        deselect: never run these.
        shuffle: seed of a random order, or None for the natural one.
        stop_early: end at the first test that does not pass.
        protect: files that the run must not change (see ``TestReport.changed``).
    """

    files: Mapping[str, bytes | None] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    select: frozenset[str] | None = None
    deselect: frozenset[str] = frozenset()
    shuffle: int | None = None
    coverage: bool = False
    stop_early: bool = False
    protect: tuple[str, ...] = ()
    test_timeout_s: float = 60.0
    run_timeout_s: float = 1800.0


class SessionCrashed(SandboxUnavailable):
    """The fork server died twice on one request: the code under test kills what it runs beside."""


class TestSession:
    """A sandbox with a running fork server. Not thread-safe; restarts itself when the server is lost."""

    __test__ = False

    def __init__(
        self,
        provider: SandboxProvider,
        snapshot: str,
        tree: bytes,
        *,
        limits: Limits | None = None,
        environ: Mapping[str, str] | None = None,
        hash_seed: int = 0,
    ) -> None:
        """``tree``: the pristine tree as a tar; it is put into each sandbox that the session starts."""
        self._provider, self._snapshot, self._tree, self._limits = (
            provider,
            snapshot,
            tree,
            limits or Limits(),
        )
        self._environ = {
            "CI": "true",
            "PYTHONHASHSEED": str(hash_seed),
            # For the start alone, so that what is installed comes from its own bytecode; the server changes it then.
            "PYTHONDONTWRITEBYTECODE": "1",
            "VIRTUAL_ENV": f"{ENV_DIR}/venv",
            **(environ or {}),
        }
        self._sandbox: Sandbox | None = None
        self._channel: Channel | None = None

    def run(self, request: RunRequest) -> TestReport:
        """Run tests. Raises SandboxUnavailable, or SessionCrashed if the code under test kills the server."""
        events = self.ask(pytest_message(request), request.run_timeout_s)
        try:
            return report.of_events(events)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SessionCrashed(f"the code under test garbled its own report: {error!r}") from error

    def importable(
        self, modules: Sequence[str], files: Mapping[str, bytes | None], *, timeout_s: float = 120.0
    ) -> dict[str, str]:
        """Import modules one after another; return name -> '' or the error. Raises SandboxUnavailable."""
        message = {
            "kind": "import",
            "files": encode_files(files),
            "modules": list(modules),
            "test_timeout_s": timeout_s,
            "run_timeout_s": timeout_s,
        }
        found = dict.fromkeys(modules, "did not finish")
        for event in self.ask(message, timeout_s):
            if event["e"] == "import" and event.get("name") in found:
                found[event["name"]] = str(event.get("error", ""))
        return found

    def ask(self, message: Mapping[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        """Send a request and return its events, the last one ``done``. Raises as ``run``."""
        line = json.dumps(message).encode()
        for attempt in (1, 2):
            try:
                channel = self._connect()
                send_within(channel, line, SEND_S)
                return _read_events(channel, timeout_s + GRACE_S)
            except (EOFError, TimeoutError, ValueError) as error:
                detail = self._channel.stderr_tail() if self._channel else ""
                self.close()
                # What is no event was written by the code under test: it would be so again.
                if attempt == 2 or isinstance(error, ValueError):
                    raise SessionCrashed(f"the test runner in the sandbox was lost: {error!r} {detail}") from error
        raise AssertionError("unreachable")

    def _connect(self) -> Channel:
        if self._channel is None:
            self._sandbox = self._provider.create(snapshot=self._snapshot, limits=self._limits)
            try:
                self._channel = self._opened(self._sandbox)
            except BaseException:
                self.close()
                raise
            ready = json.loads(self._channel.receive(READY_S))
            if ready.get("e") != "ready":
                raise ValueError(f"unexpected greeting {ready!r}")
        return self._channel

    def _opened(self, sandbox: Sandbox) -> Channel:
        """A channel to the server, once the tree and the programs have been unpacked. Raises SandboxUnavailable."""
        programs = runner_archive()
        # The newline that ends what is sent goes to the second tar, behind the end of its archive.
        sizes = [str(len(self._tree)), str(len(programs) + 1)]
        command = ["/bin/sh", "-c", START, "start", TREE_DIR, RUNNER_DIR, *sizes, PYTHON, SERVER]
        channel = sandbox.open(command, env=self._environ)
        try:
            send_within(channel, self._tree + programs, UNPACK_S)
            if (said := channel.receive(UNPACK_S)) != UNPACKED:
                raise ValueError(f"{said!r:.200}")
        except (EOFError, TimeoutError, ValueError) as error:
            # No code under test has run yet: this is the sandbox's fault, whatever it is.
            detail = channel.stderr_tail()
            channel.close()
            raise SandboxUnavailable(f"cannot unpack the tree in a sandbox: {error} {detail}") from error
        return channel

    def close(self) -> None:
        """Free the sandbox. A later ``run`` starts another."""
        # The sandbox first: with it goes all that runs in it, which the channel would look for one by one.
        if self._sandbox is not None:
            self._sandbox.close()
        if self._channel is not None:
            self._channel.close()
        self._channel = self._sandbox = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def send_within(channel: Channel, line: bytes, seconds: float) -> None:
    """Write one line; a program that does not read it in time is killed, as nothing else ends a write to a full pipe.

    Raises EOFError if the program has ended, of itself or so.
    """
    timer = threading.Timer(seconds, channel.close)
    timer.daemon = True
    timer.start()
    try:
        channel.send(line)
    finally:
        timer.cancel()


def runner_archive() -> bytes:
    """The programs of ``languages/python_runner`` as a tar. Its digest is that of how tests are run.

    cloudpickle (pure Python, any version) goes with them, since environments do not have it.
    """
    files = {f.name: f for f in RUNNER.glob("*.py")}
    package = Path(cloudpickle.__file__).parent
    files |= {f"cloudpickle/{f.name}": f for f in package.glob("*.py")}
    return archive.pack([ArchiveEntry(path=name, content=f.read_bytes()) for name, f in sorted(files.items())])


def pytest_message(request: RunRequest) -> dict[str, Any]:
    """A run as the server is asked for it."""
    args = [*BASE_ARGS, *request.args]
    if request.stop_early:
        args.append("--maxfail=1")
    if request.select is not None:
        args += sorted({test.split("::")[0] for test in request.select})
    return {
        "kind": "pytest",
        "files": encode_files(request.files),
        "args": args,
        "select": None if request.select is None else sorted(request.select),
        "deselect": sorted(request.deselect),
        "shuffle": request.shuffle,
        "coverage": request.coverage,
        "protect": list(request.protect),
        "test_timeout_s": request.test_timeout_s,
        "run_timeout_s": request.run_timeout_s,
    }


def encode_files(files: Mapping[str, bytes | None]) -> dict[str, str | None]:
    """Files as a request carries them."""
    return {path: None if data is None else base64.b64encode(data).decode() for path, data in files.items()}


def _read_events(channel: Channel, timeout_s: float) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    deadline, total = time.monotonic() + timeout_s, 0
    while True:
        line = channel.receive(max(0.0, deadline - time.monotonic()))
        total += len(line)
        if total > EVENTS_MAX_BYTES:
            raise ValueError(f"more than {EVENTS_MAX_BYTES} bytes of events")
        event = json.loads(line)
        if not isinstance(event, dict) or not isinstance(event.get("e"), str):
            raise ValueError(f"not an event: {event!r:.200}")
        events.append(event)
        if event["e"] == "done":
            return events
