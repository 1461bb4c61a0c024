"""Which kinds of sandbox work on this machine, and the choice of one. Code never runs on the host itself."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Literal

from taskgen.errors import PrerequisiteError, SandboxUnavailable
from taskgen.sandbox import Probe, SandboxProvider
from taskgen.sandboxes import cgroup
from taskgen.sandboxes.bubblewrap import BubblewrapProvider
from taskgen.sandboxes.docker import DockerProvider

Kind = Literal["auto", "bubblewrap", "docker"]

BUBBLEWRAP_HINT = "apt-get install bubblewrap"
DOCKER_HINT = "apt-get install docker.io, and set DOCKER_HOST if the engine is not at the default place"
NAMESPACES_HINT = (
    "user namespaces may be switched off: sysctl kernel.unprivileged_userns_clone=1, or an AppArmor profile"
)
IMAGE_HINT = "the engine answers, but its base image is missing; make it: sudo sandbox/make-base-image.sh"


def probe_bubblewrap() -> Probe:
    """Whether bubblewrap sandboxes work here: runs ``true`` in one. Never raises."""
    name = BubblewrapProvider.name
    if shutil.which("bwrap") is None:
        return Probe(name=name, available=False, detail="bwrap is not installed", hint=BUBBLEWRAP_HINT)
    with tempfile.TemporaryDirectory(prefix="taskgen-probe-", ignore_cleanup_errors=True) as cache:
        try:
            with BubblewrapProvider(Path(cache)).create() as sandbox:
                code = sandbox.exec(["true"], timeout_s=30.0).returncode
        except SandboxUnavailable as error:
            return Probe(name=name, available=False, detail=error.args[0], hint=NAMESPACES_HINT)
    if code != 0:
        return Probe(name=name, available=False, detail=f"true ended with code {code} in a sandbox")
    bound = "by control groups" if cgroup.find() else "for each process alone: no control group is writable"
    return Probe(name=name, available=True, detail=f"works; memory and processes are bounded {bound}")


def probe_docker() -> Probe:
    """Whether a Docker engine answers and has the base image. Never raises."""
    name = DockerProvider.name
    where = os.environ.get("DOCKER_HOST", "the default socket")
    try:
        provider = DockerProvider()
    except SandboxUnavailable as error:
        return Probe(name=name, available=False, detail=f"no engine at {where}: {error.args[0]}", hint=DOCKER_HINT)
    try:
        image = provider.fingerprint()
    except SandboxUnavailable as error:
        return Probe(name=name, available=False, detail=error.args[0], hint=IMAGE_HINT)
    return Probe(name=name, available=True, detail=f"an engine at {where} answers; base image {image}")


def select(kind: Kind, cache: Path) -> SandboxProvider:
    """Return a provider of ``kind``; ``auto`` is bubblewrap where it works, else Docker.

    Raises:
        PrerequisiteError: it does not work on this machine; the message names what to install.
    """
    tried = []
    if kind in ("auto", "bubblewrap"):
        probe = probe_bubblewrap()
        if probe.available:
            return BubblewrapProvider(cache)
        tried.append(probe)
    if kind in ("auto", "docker"):
        probe = probe_docker()
        if probe.available:
            return DockerProvider()
        tried.append(probe)
    lines = [f"  {probe.name}: {probe.detail}" for probe in tried]
    raise PrerequisiteError(
        "\n".join(["no sandbox works on this machine:", *lines]),
        hint="; or ".join(probe.hint for probe in tried if probe.hint) or None,
    )
