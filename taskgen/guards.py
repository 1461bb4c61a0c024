"""What a task carries besides its tests against answers that only look right: ``guards.json.zst`` in its folder.

Made when the task is built, read when it is graded, never shown to an agent. A task without it has no guards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from taskgen import archive
from taskgen.errors import FormatError

FILE, VERSION = "guards.json.zst", 1
MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Something that calls were recorded of: a function, a method or a class, by module and qualified name."""

    module: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A recorded call, or the operations on one object in their order.

    Attributes:
        target: index of its target.
        direct: a test made it; False: other code of the project did, or it was derived.
        mutated: derived from a recorded one by changing an argument.
        ops: (kind, method, pickled arguments in base64); unpickled in a sandbox alone.
        expected: what the gold code does, one description an operation.
    """

    target: int
    direct: bool
    mutated: bool
    ops: tuple[tuple[str, str, str], ...]
    expected: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Differential:
    """Calls to be replayed. ``visible``: attributes by which objects are compared."""

    targets: tuple[Target, ...]
    visible: tuple[str, ...]
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Twin:
    """A hidden test that has a copy with a wrong expectation: which of its expectations is changed there."""

    test: str
    expectation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """The guards of a task.

    Attributes:
        differential: None where no calls could be recorded.
        twins: copies of hidden tests that the gold code fails, as every honest answer must.
    """

    differential: Differential | None = None
    twins: tuple[Twin, ...] = ()


def to_bytes(guards: Guards) -> bytes:
    """The file's content; the same guards give the same bytes."""
    return archive.compress(json.dumps({"version": VERSION, **asdict(guards)}, sort_keys=True).encode())


def read(folder: Path) -> Guards:
    """The guards of a task's folder; empty ones if it has none. Raises FormatError if they cannot be read."""
    path = folder / FILE
    if not path.exists():
        return Guards()
    try:
        value = json.loads(archive.decompress(path.read_bytes(), max_bytes=MAX_BYTES))
        if value["version"] != VERSION:
            raise FormatError(f"{path}: version {value['version']!r}, this taskgen reads {VERSION}")
        found = value["differential"]
        return Guards(
            differential=None if found is None else _differential(found),
            twins=tuple(Twin(test=str(t["test"]), expectation=int(t["expectation"])) for t in value["twins"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path} cannot be read: {error!r}") from error


def _differential(value: Mapping[str, Any]) -> Differential:
    return Differential(
        targets=tuple(Target(module=str(t["module"]), name=str(t["name"])) for t in value["targets"]),
        visible=tuple(map(str, value["visible"])),
        cases=tuple(
            Case(
                target=int(c["target"]),
                direct=bool(c["direct"]),
                mutated=bool(c["mutated"]),
                ops=tuple((str(kind), str(name), str(data)) for kind, name, data in c["ops"]),
                expected=tuple(map(str, c["expected"])),
            )
            for c in value["cases"]
        ),
    )
