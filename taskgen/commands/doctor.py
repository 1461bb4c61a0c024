"""``taskgen doctor``: what is here, what is missing, and how to get it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from taskgen import process
from taskgen.sandbox import Probe
from taskgen.sandboxes.guarantees import KINDS, guarantees
from taskgen.sandboxes.select import probe_bubblewrap, probe_docker

MIN_FREE_BYTES = 5 << 30


def examine(cache: Path) -> list[Probe]:
    """One finding a prerequisite. Never raises."""
    return [_python(), _git(), _ruff(), _disk(cache), probe_bubblewrap(), probe_docker()]


def is_ready(probes: list[Probe]) -> bool:
    """Whether build can run: everything but the sandboxes, and one of those."""
    needed = [p for p in probes if p.name not in ("bubblewrap", "docker")]
    return all(p.available for p in needed) and any(p.available for p in probes if p not in needed)


def guaranteed(probes: Sequence[Probe]) -> dict[str, dict[str, str]]:
    """Guarantee -> kind of sandbox that works here -> how it is given ('' : it is not)."""
    here = [p.name for p in probes if p.available and p.name in KINDS]
    return {g.name: {kind: g.by[kind] for kind in here} for g in guarantees()}


def _python() -> Probe:
    version = sys.version.split()[0]
    return Probe(
        name="python",
        available=sys.version_info >= (3, 11),
        detail=f"{version} at {sys.executable}",
        hint="install Python 3.11 or newer",
    )


def _git() -> Probe:
    if shutil.which("git") is None:
        return Probe(name="git", available=False, detail="not installed", hint="apt-get install git")
    version = process.run(["git", "--version"], timeout_s=30.0).stdout.decode().strip()
    return Probe(name="git", available=True, detail=version)


def _ruff() -> Probe:
    found = (Path(sys.executable).parent / "ruff").exists() or shutil.which("ruff") is not None
    return Probe(
        name="ruff",
        available=found,
        detail="found" if found else "not installed",
        hint="" if found else "pip install ruff",
    )


def _disk(cache: Path) -> Probe:
    place = next(p for p in (cache, *cache.parents) if p.exists())
    free = shutil.disk_usage(place).free
    return Probe(
        name="cache",
        available=free >= MIN_FREE_BYTES,
        detail=f"{cache}: {free / 2**30:.1f} GiB free",
        hint="" if free >= MIN_FREE_BYTES else "free some space, or name another folder with TASKGEN_CACHE",
    )
