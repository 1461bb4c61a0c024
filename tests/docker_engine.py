"""Fixtures for tests that need a sandbox: a Docker engine with the base image, and bubblewrap.

Where something is missing, tests fail in CI (which must install it) and are skipped elsewhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import docker
import pytest
from docker.errors import ImageNotFound

from taskgen.sandboxes.docker import DEFAULT_IMAGE

SCRIPT = Path(__file__).parents[1] / "sandbox" / "make-base-image.sh"
ENGINE_STARTS_WITHIN_S = 60.0


def missing(what: str, package: str) -> NoReturn:
    """Fail in CI, skip elsewhere."""
    message = f"{what}; install the package {package}"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def need(program: str, package: str) -> None:
    """See that a program is installed."""
    if shutil.which(program) is None:
        missing(f"{program} is missing", package)


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    """bwrap is installed."""
    need("bwrap", "bubblewrap")


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[None]:
    """A Docker engine answers (one is started if none does) and has the base image."""
    need("docker", "docker.io")
    if _answers():
        _make_image()
        yield
        return
    if os.environ.get("DOCKER_HOST"):
        missing(f"no Docker engine answers at {os.environ['DOCKER_HOST']}", "docker.io")
    need("dockerd", "docker.io")
    if os.geteuid() != 0:
        missing("no Docker engine answers, and only root can start one", "docker.io (and start it)")
    with _own_engine():
        _make_image()
        yield


def _answers() -> bool:
    # Not by the SDK: it leaves the sockets of refused connections to the garbage collector.
    return subprocess.run(["docker", "version"], capture_output=True, timeout=60, check=False).returncode == 0


def _make_image() -> None:
    client = docker.from_env()
    try:
        client.images.get(os.environ.get("TASKGEN_DOCKER_IMAGE", DEFAULT_IMAGE))
    except ImageNotFound:
        need("debootstrap", "debootstrap")
        made = subprocess.run([SCRIPT], capture_output=True, text=True, timeout=900, check=False)
        if made.returncode != 0:
            pytest.fail(f"{SCRIPT.name} failed:\n{made.stdout}{made.stderr}", pytrace=False)
    finally:
        client.close()


@contextmanager
def _own_engine() -> Iterator[None]:
    """A dockerd with its data, sockets and log in a directory of its own."""
    directory = Path(tempfile.mkdtemp(prefix="dockerd-", dir="/tmp"))
    socket = f"unix://{directory}/docker.sock"
    with (directory / "log").open("wb") as log:
        engine = subprocess.Popen(
            [
                *("dockerd", "--host", socket, "--pidfile", directory / "pid"),
                *("--data-root", directory / "data", "--exec-root", directory / "exec"),
            ],
            stdout=log,
            stderr=log,
        )
    os.environ["DOCKER_HOST"] = socket
    try:
        deadline = time.monotonic() + ENGINE_STARTS_WITHIN_S
        while not _answers():
            if engine.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"dockerd did not start:\n{(directory / 'log').read_text()[-2000:]}", pytrace=False)
            time.sleep(0.2)
        yield
    finally:
        del os.environ["DOCKER_HOST"]
        engine.terminate()
        try:
            engine.wait(30)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()
        shutil.rmtree(directory, ignore_errors=True)
