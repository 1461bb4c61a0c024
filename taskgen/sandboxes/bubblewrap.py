"""Sandboxes by bubblewrap: no daemon and no image; the host's own /usr, read-only.

A sandbox is a private directory on the host; every ``exec`` is a fresh set of namespaces around it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from taskgen import process
from taskgen.errors import SandboxUnavailable
from taskgen.sandbox import ENV_DIR, HOME_DIR, UID, WORKSPACE_DIR, Channel, ExecResult, Limits, Location
from taskgen.sandboxes import cgroup, mounts
from taskgen.sandboxes.bwrap_channel import BwrapChannel
from taskgen.sandboxes.bwrap_process import BwrapProcess, close_pipes
from taskgen.sandboxes.common import (
    BASE_ENV,
    DEFAULT_LIMITS,
    NO_ENV,
    check_argv,
    check_key,
    get_archive,
    limited,
    put_archive,
)
from taskgen.sandboxes.run_directory import make_run_directory, remove_stale, remove_tree

MIN_FREE_BYTES = 256 << 20
COPY_TIMEOUT_S = 1800.0


class BubblewrapProvider:
    """Makes bubblewrap sandboxes; environments are kept below ``cache``."""

    name = "bubblewrap"

    def __init__(self, cache: Path) -> None:
        """Raises SandboxUnavailable when ``cache`` cannot be written."""
        self._snapshots = cache.absolute() / "snapshots"
        sandboxes = cache.absolute() / "sandboxes"
        try:
            for directory in (self._snapshots, sandboxes):
                directory.mkdir(parents=True, exist_ok=True)
            remove_stale(sandboxes)
            self._run, self._lock = make_run_directory(sandboxes)
            mounts.write_etc(self._run / "etc")
        except OSError as error:
            raise SandboxUnavailable(f"cannot use {cache}: {error}") from error

    def fingerprint(self) -> str:
        """Changes with the operating system, the machine type and the running interpreter."""
        system = platform.freedesktop_os_release()
        return "-".join(
            (
                *("bubblewrap", system.get("ID", ""), system.get("VERSION_ID", ""), platform.machine()),
                *(platform.python_version(), self.python()),
            )
        )

    def python(self) -> str:
        """The interpreter that runs taskgen, outside of any virtual environment."""
        return os.path.realpath(getattr(sys, "_base_executable", sys.executable))

    def has_snapshot(self, key: str) -> bool:
        """Whether ``key`` was kept in this cache."""
        return (self._snapshots / check_key(key)).is_dir()

    def locate(self, snapshot: str, folder: str) -> Location | None:
        """The environment lies in the cache; the system is the machine's own (see ``mounts.system``)."""
        path = Path(folder)
        if path.is_relative_to(ENV_DIR):
            return Location(root=self._snapshots / check_key(snapshot) / path.relative_to(ENV_DIR))
        return Location(root=path, hidden=frozenset(mounts.hidden())) if mounts.is_shared(path) else None

    def create(
        self, *, snapshot: str | None = None, network: bool = False, limits: Limits = DEFAULT_LIMITS
    ) -> BubblewrapSandbox:
        """Make a sandbox. Raises SandboxUnavailable, also when there is no such snapshot."""
        if snapshot is not None and not self.has_snapshot(snapshot):
            raise SandboxUnavailable(f"no snapshot {snapshot!r} in {self._snapshots}")
        env = None if snapshot is None else self._snapshots / snapshot
        return BubblewrapSandbox(self._run, self._snapshots, env, network=network, limits=limits)


class BubblewrapSandbox:
    """One sandbox: a private directory with env, workspace and home."""

    def __init__(self, run: Path, snapshots: Path, snapshot: Path | None, *, network: bool, limits: Limits) -> None:
        self._run, self._snapshots, self._snapshot = run, snapshots, snapshot
        self._network, self._limits = network, limits
        self._running: set[BwrapProcess] = set()
        self._channels: set[BwrapChannel] = set()
        self._changing = threading.Lock()
        self._closed = False
        try:
            # mkdtemp makes it private: other users of the host cannot reach the tree.
            self._dir = Path(tempfile.mkdtemp(prefix="sandbox-", dir=run))
            for name in ("env", "home", "workspace"):
                (self._dir / name).mkdir()
        except OSError as error:
            raise SandboxUnavailable(f"cannot make a sandbox in {run}: {error}") from error
        self._groups = cgroup.find()

    def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] = NO_ENV,
        cwd: str = WORKSPACE_DIR,
        timeout_s: float = 60.0,
    ) -> ExecResult:
        """Run a program to its end (see ``Sandbox.exec``)."""
        return self._execute(
            argv, stdin=stdin, env=env, cwd=cwd, timeout_s=timeout_s, output_bytes=self._limits.output_bytes
        )

    def _execute(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] = NO_ENV,
        cwd: str = "/",
        timeout_s: float = COPY_TIMEOUT_S,
        output_bytes: int = 1 << 16,
        more: Sequence[str] = (),
    ) -> ExecResult:
        began = time.monotonic()
        run = self._start(argv, env, cwd, more)
        pipes = run.process
        assert pipes.stdin and pipes.stdout and pipes.stderr
        out, err = (process.BoundedReader(pipe, output_bytes) for pipe in (pipes.stdout, pipes.stderr))
        feeder = threading.Thread(target=process.feed, args=(pipes.stdin, stdin), daemon=True)
        feeder.start()
        try:
            in_time = run.wait(timeout_s, self._check_disk)
        finally:
            self._finish(run)
            for reader in (out, err):
                reader.finish()
            feeder.join(5.0)
            close_pipes(pipes)
        if self._closed:
            raise SandboxUnavailable("the sandbox was closed while a program ran in it")
        return ExecResult(
            returncode=run.exit_code(err.value()) if in_time else 124,
            stdout=out.value(),
            stderr=err.value(),
            duration_s=time.monotonic() - began,
            timed_out=not in_time,
            stdout_bytes=out.total_bytes,
            stderr_bytes=err.total_bytes,
        )

    def _start(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, more: Sequence[str] = ()) -> BwrapProcess:
        check_argv(argv, env, cwd)
        with self._changing:
            if self._closed:
                raise SandboxUnavailable("the sandbox is closed")
            limits = self._limits
            group = (
                self._groups.make(memory_bytes=limits.memory_bytes, processes=limits.processes, cpus=limits.cpus)
                if self._groups
                else None
            )
            options = [*self._options(more), "--chdir", cwd, *self._environment(env)]
            run = BwrapProcess(options, limited(argv, limits, alone=group is None), group)
            self._running.add(run)
        return run

    def _options(self, more: Sequence[str]) -> list[str]:
        env = ("--bind", str(self._dir / "env"), ENV_DIR)
        if self._snapshot is not None:
            env = ("--ro-bind", str(self._snapshot), ENV_DIR)
        return [
            *("--unshare-all", "--unshare-user", "--uid", str(UID), "--gid", str(UID), "--cap-drop", "ALL"),
            *("--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv"),
            *(["--disable-userns"] if _can_disable_userns() else []),
            *mounts.system(self._run / "etc"),
            *(mounts.network() if self._network else []),
            # Read-only: the files of /proc/sys belong to root, and so does this uid when taskgen runs as root.
            # Without this, a program could write the host's kernel settings. bwrap covers only part of /proc.
            *("--dev", "/dev", "--proc", "/proc", "--remount-ro", "/proc"),
            # What is in /tmp and /dev/shm counts as memory, too: three quarters of it at most.
            *("--perms", "1777", "--size", str(self._limits.memory_bytes // 4), "--tmpfs", "/dev/shm"),
            *("--remount-ro", "/dev"),
            *("--perms", "1777", "--size", str(self._limits.memory_bytes // 2), "--tmpfs", "/tmp"),
            *env,
            *("--bind", str(self._dir / "workspace"), WORKSPACE_DIR),
            *("--bind", str(self._dir / "home"), HOME_DIR),
            *more,
            *("--remount-ro", "/"),
        ]

    def _environment(self, env: Mapping[str, str]) -> list[str]:
        variables = {**BASE_ENV, **(mounts.network_variables() if self._network else {}), **env}
        return [word for name, value in variables.items() for word in ("--setenv", name, value)]

    def _finish(self, run: BwrapProcess) -> None:
        run.finish()
        with self._changing:
            self._running.discard(run)

    def _check_disk(self) -> None:
        free = os.statvfs(self._snapshots)
        if free.f_bavail * free.f_frsize < MIN_FREE_BYTES:
            raise SandboxUnavailable(
                f"disk full: less than {MIN_FREE_BYTES >> 20} MiB are free on the disk of {self._run}",
                hint="free space there, or put the cache on another disk",
            )

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] = NO_ENV, cwd: str = WORKSPACE_DIR) -> Channel:
        """Start a program and return a channel to it. Raises SandboxUnavailable."""

        def start() -> BwrapProcess:
            # The program itself is the namespace's first process. bwrap's own would hold the program's pipes, and
            # could be read by whatever runs beside it; and nothing in the namespace can kill a first process.
            return self._start(argv, env, cwd, ("--as-pid-1",))

        channel = BwrapChannel(start, self._finish, self._channels.discard)
        self._channels.add(channel)
        return channel

    def put(self, directory: str, archive: bytes) -> None:
        """Unpack a tar archive, inside the sandbox (see ``Sandbox.put``)."""
        put_archive(self._execute, directory, archive)

    def get(self, directory: str, *, max_bytes: int = 1 << 30) -> bytes:
        """Pack a directory, inside the sandbox (see ``Sandbox.get``)."""
        return get_archive(self._execute, directory, max_bytes)

    def fork(self) -> BubblewrapSandbox:
        """Copy the three directories into a new sandbox (see ``Sandbox.fork``)."""
        fork = BubblewrapSandbox(self._run, self._snapshots, self._snapshot, network=self._network, limits=self._limits)
        try:
            names = {"workspace": WORKSPACE_DIR, "home": HOME_DIR}
            if self._snapshot is None:
                names["env"] = ENV_DIR
            for name, source in names.items():
                self._copy(source, fork._dir / name)
        except BaseException:
            fork.close()
            raise
        return fork

    def _copy(self, source: str, target: Path) -> None:
        # Copied inside: whatever the tree does meanwhile, nothing else of the host can be reached.
        done = self._execute(
            ["cp", "-a", "--reflink=auto", "-T", source, "/copy"], more=("--bind", str(target), "/copy")
        )
        if done.returncode != 0:
            raise SandboxUnavailable(f"cannot copy {source}: {done.stderr.decode(errors='replace').strip()}")

    def snapshot(self, key: str) -> None:
        """Keep a copy of /env under ``key`` (see ``Sandbox.snapshot``)."""
        target = self._snapshots / check_key(key)
        if target.is_dir():
            return
        if self._snapshot is not None:
            raise SandboxUnavailable("a sandbox that was made from a snapshot cannot be kept as another one")
        copy = self._run / f"copy-{uuid.uuid4().hex}"
        try:
            copy.mkdir()
            self._copy(ENV_DIR, copy)
            copy.chmod(0o755)
            copy.rename(target)
        except OSError as error:
            # Another process may have kept the same environment in the meantime.
            if not target.is_dir():
                raise SandboxUnavailable(f"cannot keep {target}: {error}") from error
        finally:
            remove_tree(copy)

    def close(self) -> None:
        """Kill everything and remove the directory. Never raises; may be called twice."""
        with self._changing:
            self._closed = True
            running = list(self._running)
        for run in running:
            run.kill()
        for channel in list(self._channels):
            channel.close()
        remove_tree(self._dir)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@cache
def _can_disable_userns() -> bool:
    """Whether this bwrap (0.8 or newer) can keep programs from making user namespaces of their own."""
    with contextlib.suppress(OSError):
        return b"--disable-userns" in process.run(["bwrap", "--help"], timeout_s=30.0).stdout
    return False
