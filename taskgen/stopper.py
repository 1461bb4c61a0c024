"""Stopping a run of many threads: each sooner or later waits for a sandbox, and that wait can be ended."""

from __future__ import annotations

import threading
import weakref

from taskgen.sandbox import Limits, Sandbox, SandboxProvider
from taskgen.sandboxes.common import DEFAULT_LIMITS


class Interrupted(BaseException):
    """The run was asked to stop; what was done is kept. Like KeyboardInterrupt, no handler of faults catches it."""


class Stopper:
    """Asks all threads of a run to stop, and closes the sandboxes that they wait for."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._open: weakref.WeakSet[Sandbox] = weakref.WeakSet()
        self._mutex = threading.Lock()

    def check(self) -> None:
        """Raises Interrupted once ``stop`` was called."""
        if self._event.is_set():
            raise Interrupted

    def watch(self, sandbox: Sandbox) -> Sandbox:
        """Close a sandbox when the run is stopped. Raises Interrupted if it was stopped already."""
        with self._mutex:
            self._open.add(sandbox)
        if self._event.is_set():
            sandbox.close()
            raise Interrupted
        return sandbox

    def stop(self) -> None:
        """From now on, every wait for a sandbox ends and ``check`` raises."""
        self._event.set()
        with self._mutex:
            waiting = list(self._open)
        for sandbox in waiting:
            sandbox.close()


class StoppableProvider:
    """A provider whose sandboxes are closed when the run is stopped."""

    def __init__(self, inner: SandboxProvider, stopper: Stopper) -> None:
        self.name = inner.name
        self.fingerprint, self.python, self.has_snapshot = inner.fingerprint, inner.python, inner.has_snapshot
        self.locate = inner.locate
        self._inner, self._stopper = inner, stopper

    def create(self, *, snapshot: str | None = None, network: bool = False, limits: Limits = DEFAULT_LIMITS) -> Sandbox:
        self._stopper.check()
        return self._stopper.watch(self._inner.create(snapshot=snapshot, network=network, limits=limits))
