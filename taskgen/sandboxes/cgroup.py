"""Control groups: limits of memory, processes and processor time over everything that one ``exec`` starts.

Works with version 1 (memory and pids controllers) and version 2 (a subtree that we may write to).
Where neither can be used, ``find`` returns None and the caller falls back to resource limits.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from taskgen.errors import SandboxUnavailable

MOUNT = Path("/sys/fs/cgroup")
PREFIX = "taskgen-"
REMOVE_WITHIN_S = 5.0
# bubblewrap itself needs two processes in the group.
OWN_PROCESSES = 2
CPU_PERIOD_US = 100_000
# Enters every group, then becomes the program: "0" names the writing process itself.
ENTER = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo 0 >"$1" || exit 125; shift; n=$((n-1)); done; exec "$@"'

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One group (version 1: one directory for each controller)."""

    directories: tuple[Path, ...]

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """The command line that enters the group and then becomes ``argv``."""
        files = [str(directory / "cgroup.procs") for directory in self.directories]
        return ["/bin/sh", "-c", ENTER, "sh", str(len(files)), *files, *argv]

    def memory_exceeded(self) -> bool:
        """Whether the kernel killed a process of the group for its memory."""
        for directory in self.directories:
            for name in ("memory.oom_control", "memory.events"):
                with contextlib.suppress(OSError):
                    fields = dict(line.split()[:2] for line in (directory / name).read_text().splitlines())
                    if int(fields.get("oom_kill", "0")) > 0:
                        return True
        return False

    def remove(self) -> None:
        """Remove the group; waits a moment for its last processes to be gone. Never raises."""
        for directory in self.directories:
            deadline = time.monotonic() + REMOVE_WITHIN_S
            while directory.exists():
                try:
                    directory.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        break  # a later process of taskgen removes it as stale
                    time.sleep(0.002)


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where groups can be made. ``parents`` are one directory a controller (memory, pids, and cpu if it is there), or
    one for all (version 2)."""

    parents: tuple[Path, ...]
    version: int

    def bounds_cpu(self) -> bool:
        """Whether processor time is bounded, too."""
        if self.version == 1:
            return len(self.parents) == 3
        return "cpu" in (self.parents[0] / "cgroup.subtree_control").read_text().split()

    def make(self, *, memory_bytes: int, processes: int, cpus: float) -> Cgroup:
        """Make a group with these limits. Raises SandboxUnavailable."""
        name = f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        group = Cgroup(tuple(parent / name for parent in self.parents))
        try:
            for directory in group.directories:
                directory.mkdir()
            self._limit(group.directories, memory_bytes, processes + OWN_PROCESSES, int(cpus * CPU_PERIOD_US))
        except OSError as error:
            group.remove()
            raise SandboxUnavailable(f"cannot make a control group: {error}") from error
        return group

    def _limit(self, directories: tuple[Path, ...], memory_bytes: int, processes: int, quota_us: int) -> None:
        settings: list[tuple[Path, object]]
        if self.version == 2:
            (directory,) = directories
            settings = [(directory / "memory.max", memory_bytes), (directory / "pids.max", processes)]
            optional = [(directory / "memory.swap.max", 0), (directory / "cpu.max", f"{quota_us} {CPU_PERIOD_US}")]
        else:
            memory, pids, *cpu = directories
            settings = [(memory / "memory.limit_in_bytes", memory_bytes), (pids / "pids.max", processes)]
            settings += [(directory / "cpu.cfs_quota_us", quota_us) for directory in cpu]
            optional = [(memory / "memory.memsw.limit_in_bytes", memory_bytes)]
        # Swap accounting may be off in the kernel, the cpu controller may not be ours; the files are missing then.
        for file, value in (*settings, *((file, value) for file, value in optional if file.exists())):
            file.write_text(str(value))

    def remove_stale(self) -> None:
        """Remove the groups of processes of taskgen that are gone. Never raises."""
        for parent in self.parents:
            for directory in parent.glob(f"{PREFIX}*"):
                pid = directory.name.removeprefix(PREFIX).partition("-")[0]
                if pid.isdigit() and not Path("/proc", pid).exists():
                    # A group that still has processes refuses to go; they die with their parent.
                    with contextlib.suppress(OSError):
                        directory.rmdir()


@cache
def find() -> Cgroups | None:
    """The place for groups on this machine, tried out once in a process; None if there is none."""
    membership = Path("/proc/self/cgroup")
    if not membership.exists():
        return None
    for cgroups in candidates(MOUNT, membership.read_text()):
        if _works(cgroups):
            cgroups.remove_stale()
            return cgroups
    return None


def candidates(mount: Path, membership: str) -> list[Cgroups]:
    """Where groups could be made, best first, from the mount point and the text of /proc/self/cgroup."""
    own: dict[str, str] = {}
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    found = []
    for root in (mount, mount / "unified"):
        if "" in own and (root / "cgroup.controllers").exists():
            # A group with processes of its own cannot have limited children: look at the ancestors, too.
            place = root / own[""].lstrip("/")
            ancestors = [p for p in (place, *place.parents) if p.is_relative_to(root)]
            found += [Cgroups((p,), 2) for p in ancestors if _delegates(p)]
    if "memory" in own and "pids" in own:
        parents = tuple(_version1(mount / name, own[name]) for name in ("memory", "pids"))
        if "cpu" in own and os.access(cpu := _version1(mount / "cpu", own["cpu"]), os.W_OK):
            parents = (*parents, cpu) if (cpu / "cpu.cfs_quota_us").exists() else parents
        if all(os.access(parent, os.W_OK) for parent in parents):
            found.append(Cgroups(parents, 1))
    return found


def _delegates(directory: Path) -> bool:
    try:
        enabled = (directory / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
    return {"memory", "pids"} <= set(enabled) and os.access(directory, os.W_OK)


def _version1(controller: Path, own: str) -> Path:
    # Inside a container the path may be the host's and not exist below the mount.
    place = controller / own.lstrip("/")
    return place if place.is_dir() else controller


def _works(cgroups: Cgroups) -> bool:
    try:
        group = cgroups.make(memory_bytes=64 << 20, processes=16, cpus=1.0)
    except SandboxUnavailable:
        return False
    try:
        return subprocess.run(group.wrap(["true"]), capture_output=True, timeout=30).returncode == 0
    finally:
        group.remove()
