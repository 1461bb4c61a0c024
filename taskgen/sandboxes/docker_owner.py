"""Which process a container belongs to, so that those of dead processes can be removed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from taskgen.errors import SandboxUnavailable
from taskgen.sandboxes.docker_exec import Client, engine

OWNER_LABEL = "taskgen.owner"


def owner() -> str:
    """This process: the boot of its machine, its pid namespace, its number and when it started."""
    return f"{_machine()}:{os.getpid()}:{_started(os.getpid())}"


def remove_stale(client: Client) -> None:
    """Remove the containers of processes of this machine that are gone. Never raises."""
    with contextlib.suppress(SandboxUnavailable), engine("list containers"):
        ours = client.containers.list(all=True, filters={"label": OWNER_LABEL}, ignore_removed=True)
        for container in ours:
            machine, pid, started = str(container.labels[OWNER_LABEL]).rsplit(":", 2)
            # Another machine, or another container, may use the engine, too: its processes are not visible.
            if machine == _machine() and started != _started(int(pid)):
                with contextlib.suppress(SandboxUnavailable), engine("remove a container"):
                    container.remove(force=True, v=True)


def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; empty if there is no such process."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return ""
    # The name in parentheses may contain anything; the 22nd field is the 20th after it.
    return stat.rpartition(")")[2].split()[19]
