"""Sandboxes by a Docker engine: one container each, with a read-only root once /env is a snapshot.

The container's first processes belong to root without capabilities; every program runs as uid 1000, so
it cannot end them. /tmp, /workspace and /home/agent are in memory and count against the memory limit.
"""

from __future__ import annotations

import io
import os
import ssl
import tarfile
import threading
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import docker  # the SDK has no types
from docker.errors import ImageNotFound

from taskgen.errors import SandboxUnavailable
from taskgen.process import BoundedKeeper
from taskgen.sandbox import HOME_DIR, UID, WORKSPACE_DIR, Channel, ExecResult, Limits, Location
from taskgen.sandboxes import mounts, seccomp
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
from taskgen.sandboxes.docker_channel import DockerChannel
from taskgen.sandboxes.docker_exec import Client, DockerExec, Image, Sink, engine, kill_all
from taskgen.sandboxes.docker_owner import OWNER_LABEL, owner, remove_stale

DEFAULT_IMAGE = "taskgen-python:3.11"
SNAPSHOTS = "taskgen-env"
FORKS = "taskgen-fork"
MISSING_IMAGE_HINT = "make it: sandbox/make-base-image.sh"
CA_BUNDLE = "/tmp/.taskgen-ca-certificates.crt"
# docker-init and the idle process are in the container's count, too.
OWN_PROCESSES = 2
CPU_PERIOD_US = 100_000
#: An engine that takes longer to answer counts as gone.
API_TIMEOUT_S = 60
# Images are named by one thread at a time, so that no snapshot replaces another.
_naming = threading.Lock()


class DockerProvider:
    """Makes Docker sandboxes; environments are kept in the engine, as images ``taskgen-env:<key>``."""

    name = "docker"

    def __init__(self, image: str | None = None) -> None:
        """Connect to the engine of DOCKER_HOST. Raises SandboxUnavailable if none answers.

        ``image`` is the base image (default: $TASKGEN_DOCKER_IMAGE, else ``taskgen-python:3.11``).
        """
        self._image = image or os.environ.get("TASKGEN_DOCKER_IMAGE") or DEFAULT_IMAGE
        self._pid = 0
        self._lock = threading.Lock()
        remove_stale(self._connected())

    def _connected(self) -> Client:
        # Connections must not be shared with the parent after a fork.
        with self._lock:
            if self._pid != os.getpid():
                with engine("connect to the Docker engine"):
                    self._client = docker.from_env(max_pool_size=64, timeout=API_TIMEOUT_S)
                    self._client.ping()
                weakref.finalize(self, self._client.close)
                self._pid = os.getpid()
            return self._client

    def fingerprint(self) -> str:
        """Changes with the base image. Raises SandboxUnavailable."""
        with engine(f"look for image {self._image}", hint=MISSING_IMAGE_HINT):
            return f"docker-{self._connected().images.get(self._image).id}"

    def python(self) -> str:
        """The base image's interpreter."""
        return "/usr/bin/python3"

    def has_snapshot(self, key: str) -> bool:
        """Whether the engine has the image of ``key``. Raises SandboxUnavailable."""
        return _has_image(self._connected(), f"{SNAPSHOTS}:{check_key(key)}")

    def locate(self, snapshot: str, folder: str) -> Location | None:
        """Nothing: the engine may be on another machine."""
        return None

    def create(
        self, *, snapshot: str | None = None, network: bool = False, limits: Limits = DEFAULT_LIMITS
    ) -> DockerSandbox:
        """Start a container. Raises SandboxUnavailable, also when there is no such snapshot."""
        image = self._image if snapshot is None else f"{SNAPSHOTS}:{check_key(snapshot)}"
        return DockerSandbox(self._connected(), image, read_only=snapshot is not None, network=network, limits=limits)


class DockerSandbox:
    """One container."""

    def __init__(
        self,
        client: Client,
        image: str,
        *,
        read_only: bool,
        network: bool,
        limits: Limits,
        own_image: bool = False,
    ) -> None:
        self._client, self._image, self._own_image = client, image, own_image
        self._read_only, self._network, self._limits = read_only, network, limits
        self._active: set[DockerExec] = set()
        self._changing = threading.Lock()
        self._closed = False
        self._environment: dict[str, str] = dict(BASE_ENV)
        with engine(f"start a container of {image}", hint=MISSING_IMAGE_HINT):
            self._container = client.containers.create(image, ["sleep", "infinity"], **self._settings())
        try:
            with engine(f"start a container of {image}"):
                self._container.start()
            if network:
                self._add_network_settings()
        except BaseException:
            self.close()
            raise

    def _settings(self) -> dict[str, Any]:
        # The three file systems in memory together stay below the memory limit.
        memory = f"size={self._limits.memory_bytes // 4},nosuid,nodev,exec"
        own = f"{memory},uid={UID},gid={UID},mode=0755"
        return {
            "init": True,
            "user": "0:0",
            "hostname": "sandbox",
            "network_mode": "bridge" if self._network else "none",
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges", f"seccomp={seccomp.profile()}"],
            "cpu_period": CPU_PERIOD_US,
            "cpu_quota": int(self._limits.cpus * CPU_PERIOD_US),
            "pids_limit": self._limits.processes + OWN_PROCESSES,
            "mem_limit": self._limits.memory_bytes,
            "memswap_limit": self._limits.memory_bytes,
            "read_only": self._read_only,
            "tmpfs": {"/tmp": f"{memory},mode=1777", WORKSPACE_DIR: own, HOME_DIR: own},
            "labels": {"taskgen": "1", OWNER_LABEL: owner()},
        }

    def _add_network_settings(self) -> None:
        """Give an installer the host's settings. Paths of the host mean nothing in a container."""
        variables = mounts.network_variables()
        for name in list(variables):
            local = any("file://" in word or word.startswith("/") for word in variables[name].split())
            if name in mounts.CERTIFICATE_VARIABLES or local:
                del variables[name]
        bundle = ssl.get_default_verify_paths().cafile
        if bundle:
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                data = Path(bundle).read_bytes()
                member = tarfile.TarInfo(Path(CA_BUNDLE).name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
            self.put(str(Path(CA_BUNDLE).parent), buffer.getvalue())
            names = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
            variables.update(dict.fromkeys(names, CA_BUNDLE))
        self._environment.update(variables)

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
        timeout_s: float = 60.0,
        output_bytes: int = 1 << 16,
    ) -> ExecResult:
        began = time.monotonic()
        out, err = BoundedKeeper(output_bytes), BoundedKeeper(output_bytes)
        run = self._start(argv, env, cwd, out.feed, err.feed)
        try:
            run.write_all(stdin)
            code = run.wait(timeout_s)
        finally:
            self._finish(run)
        if self._closed:
            raise SandboxUnavailable("the sandbox was closed while a program ran in it")
        return ExecResult(
            returncode=124 if code is None else code,
            stdout=out.value(),
            stderr=err.value(),
            duration_s=time.monotonic() - began,
            timed_out=code is None,
            stdout_bytes=out.total_bytes,
            stderr_bytes=err.total_bytes,
        )

    def _start(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, out: Sink, err: Sink) -> DockerExec:
        check_argv(argv, env, cwd)
        with self._changing:
            if self._closed:
                raise SandboxUnavailable("the sandbox is closed")
            run = DockerExec(
                self._container,
                limited(argv, self._limits, alone=False),
                env={**self._environment, **env},
                cwd=cwd,
                on_stdout=out,
                on_stderr=err,
            )
            self._active.add(run)
        return run

    def _finish(self, run: DockerExec) -> None:
        """Kill what a program left behind: everything, unless another program is running."""
        with self._changing:
            self._active.discard(run)
            if not self._closed:
                only = run.token if self._active else None
                kill_all(self._container, self._limits.processes + OWN_PROCESSES, only)
        run.close()

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] = NO_ENV, cwd: str = WORKSPACE_DIR) -> Channel:
        """Start a program and return a channel to it. Raises SandboxUnavailable."""
        return DockerChannel(lambda out, err: self._start(argv, env, cwd, out, err), self._finish)

    def put(self, directory: str, archive: bytes) -> None:
        """Unpack a tar archive, inside the sandbox (see ``Sandbox.put``)."""
        put_archive(self._execute, directory, archive)

    def get(self, directory: str, *, max_bytes: int = 1 << 30) -> bytes:
        """Pack a directory, inside the sandbox (see ``Sandbox.get``)."""
        return get_archive(self._execute, directory, max_bytes)

    def fork(self) -> DockerSandbox:
        """Start a second container with copies of the three directories (see ``Sandbox.fork``)."""
        image = self._image
        if not self._read_only:
            tag = uuid.uuid4().hex
            self._commit(repository=FORKS, tag=tag)
            image = f"{FORKS}:{tag}"
        fork = DockerSandbox(
            self._client,
            image,
            read_only=self._read_only,
            network=self._network,
            limits=self._limits,
            own_image=not self._read_only,
        )
        try:
            for directory in (WORKSPACE_DIR, HOME_DIR):
                fork.put(directory, self.get(directory))
        except BaseException:
            fork.close()
            raise
        return fork

    def snapshot(self, key: str) -> None:
        """Commit /env as an image (see ``Sandbox.snapshot``)."""
        name = f"{SNAPSHOTS}:{check_key(key)}"
        if not self._closed and _has_image(self._client, name):
            return
        if self._read_only:
            raise SandboxUnavailable("a sandbox that was made from a snapshot cannot be kept as another one")
        image = self._commit()
        with engine(f"keep {name}"), _naming:
            # Another thread or process may have kept the same environment in the meantime.
            if _has_image(self._client, name):
                image.remove(force=True)
            else:
                image.tag(SNAPSHOTS, key)

    def _commit(self, **name: str) -> Image:
        if self._closed:
            raise SandboxUnavailable("the sandbox is closed")
        with engine("commit a container"):
            return self._container.commit(**name)

    def close(self) -> None:
        """Remove the container. Never raises; may be called twice."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
            active = list(self._active)
        try:
            with engine("remove a container"):
                self._container.remove(force=True, v=True)
            if self._own_image:
                with engine("remove an image"):
                    self._client.images.remove(self._image, force=True)
        except SandboxUnavailable:
            pass  # the engine is gone, or the container is: the next provider removes what is left
        for run in active:
            run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _has_image(client: Client, name: str) -> bool:
    with engine(f"look for image {name}"):
        try:
            client.images.get(name)
        except ImageNotFound:
            return False
    return True
