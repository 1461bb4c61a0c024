"""The seam of the attack suite: what an attack adapts to, and what it hands in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from taskgen.archive import ArchiveEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What generators adapt to.

    Attributes:
        row: the task's row.
        workspace: the tree that the agent gets, by path.
        tests: the hidden tests' files, by path. An attacker may guess their names and contents.
        gold: the contents of the files that the gold patch changes, by path: for leaks and partial answers.
    """

    row: Mapping[str, Any]
    workspace: Mapping[str, ArchiveEntry]
    tests: Mapping[str, ArchiveEntry]
    gold: Mapping[str, bytes]


class Kind(StrEnum):
    """What an entry of a tree is. Only FILE can be part of an honest answer."""

    FILE = "file"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"
    FIFO = "fifo"
    SOCKET = "socket"
    DEVICE = "device"
    GITLINK = "gitlink"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An entry that is new or changed. Its path is as the attacker wrote it, and may be hostile.

    Attributes:
        target: where a link points; for a device its "major:minor", for a gitlink its commit.
    """

    path: str
    kind: Kind = Kind.FILE
    content: bytes = b""
    target: str = ""
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What a cheat leaves behind.

    Attributes:
        items: what the agent's final tree has new or changed, against the workspace.
        deleted: paths of the workspace that it lacks.
        script: shell commands that the agent ran at the end in its own sandbox. A grader that goes on to use
            that machine is exposed to them; any other is not. They expect the workspace as their folder.
    """

    items: tuple[Item, ...] = ()
    deleted: tuple[str, ...] = ()
    script: str = ""


Make = Callable[[Target], Submission | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """An attack. ``make`` returns None where it cannot be adapted to a task."""

    number: int
    name: str
    group: str
    why: str
    make: Make


@dataclass(frozen=True, slots=True)
class Group:
    """Collects the attacks of a module: a function's name becomes the attack's, its docstring says why it works."""

    name: str
    attacks: list[Attack] = field(default_factory=list)

    def attack(self, number: int) -> Callable[[Make], Make]:
        """A decorator that adds a function under a number."""

        def add(make: Make) -> Make:
            why = (make.__doc__ or "").strip().partition("\n")[0]
            self.add(number, make.__name__.replace("_", "-"), why, make)
            return make

        return add

    def add(self, number: int, name: str, why: str, make: Make) -> None:
        """Add an attack that needs no function of its own."""
        self.attacks.append(Attack(number=number, name=name, group=self.name, why=why, make=make))
