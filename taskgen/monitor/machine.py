"""The machine as the monitor imagines it: where the agent is, what it wrote, what a command would touch.

Nothing is run. Commands are followed as far as their words are known without running them; what is not known is
``UNKNOWN``, which stands for any text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from taskgen.monitor import tables
from taskgen.monitor.project import Project
from taskgen.monitor.tables import Access

UNKNOWN = "\0"
#: Unknown text that came out of a decoder.
DECODED = "\0\1\0"
#: Commands within commands (bash -c, eval, exec) deeper than this are not followed.
MAX_DEPTH = 12
#: Commands followed in one rollout's call: loops and functions are not run, so more are hostile.
MAX_STEPS = 4000
#: Texts longer than this are not parsed, and no value is made longer.
MAX_TEXT = 1 << 20
#: Rules that count for code that is written into the project; the others are about what an agent does itself.
_SOLUTION_RULES = frozenset(
    {"read-cache", "git-history", "fetch-project", "installed-copy", "hidden-files", "grader-files", "forge-results",
     "detect-tests", "opaque-code", "exit-hook"}
)  # fmt: skip
#: Where agents find their repository.
_WORKSPACES = re.compile(r"^/(?:workspace|testbed|repo|app|src|code|work|project)(?:/|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A rule that matched. ``needles``: words that an error message about it would have; ``command``: its source."""

    rule: str
    evidence: str
    command: str
    needles: tuple[str, ...] = ()
    shows: bool = True


class Run(Protocol):
    """Follow a text of shell or Python, or the words of a command; returns what it would print, None if unknown."""

    def __call__(self, machine: Machine, text: str, stdin: str | None = None) -> str | None: ...


class RunWords(Protocol):
    """Follow a command that is a list of words."""

    def __call__(self, machine: Machine, argv: Sequence[str], stdin: str | None = None) -> str | None: ...


@dataclass(slots=True, kw_only=True)
class Machine:
    """State of the imagined machine during one rollout.

    Attributes:
        files: contents of files that the agent wrote, where they are known. created: those that it made.
        seen: existing files that it read or listed. decoded: texts that came out of a decoder.
        mentioned: paths and names of test files that tools have shown.
        fresh_shells: each call starts in the workspace, wherever the last one ended.
        variables: of the shell. aliases: of git.
        argv: words of the Python program that is followed, itself included.
        commits, stashes: how many the agent made itself.
        in_solution: Python that is written into the project, rather than run by the agent.
        hidden_output: where what is printed goes where the agent does not see it (a file, another program).
    """

    project: Project
    run_shell: Run
    run_python: Run
    run_words: RunWords
    hits: list[Hit] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    created: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    decoded: set[str] = field(default_factory=set)
    mentioned: set[str] = field(default_factory=set)
    fresh_shells: bool = False
    argv: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    commits: int = 0
    stashes: int = 0
    command: str = ""
    in_solution: bool = False
    hidden_output: bool = False
    depth: int = 0
    steps: int = 0

    def hit(self, rule: str, evidence: str, *needles: str) -> None:
        """Note that a rule matched here."""
        if self.in_solution and rule not in _SOLUTION_RULES:
            return
        found = Hit(
            rule=rule, evidence=evidence.replace(UNKNOWN, "?"), command=self.command,
            needles=tuple(n for n in needles if n and UNKNOWN not in n), shows=not self.hidden_output,
        )  # fmt: skip
        if found not in self.hits:
            self.hits.append(found)

    @contextmanager
    def deeper(self) -> Iterator[bool]:
        """A level of commands within commands; False: too deep, or too many steps."""
        self.depth += 1
        self.steps += 1
        try:
            yield self.depth <= MAX_DEPTH and self.steps <= MAX_STEPS
        finally:
            self.depth -= 1

    def run_decoded(self, text: str, how: str) -> None:
        """Note that a text is run, which is opaque if it came out of a decoder."""
        if DECODED in text or text.strip() in self.decoded:
            self.hit("opaque-code", f"runs decoded text as {how}: {text.strip()[:80]}")

    # --- Paths ---------------------------------------------------------------------------------------

    def resolve(self, path: str) -> str:
        """A normal path: relative where it is in the workspace, absolute elsewhere."""
        path = path.removeprefix("file://")
        if len(path) > 4096:
            path = path[:4096]
        if not path.startswith(("/", "~")) and self.cwd:
            path = f"{self.cwd}/{path}"
        normal = posixpath.normpath(path) if path else ""
        if normal.startswith("//"):
            normal = normal[1:]
        if found := _WORKSPACES.match(normal):
            normal = normal[found.end() :] or "."
        return normal

    def touch(self, access: Access, path: str) -> None:
        """Note what rules say of reading, listing, writing or removing a path."""
        normal = self.resolve(path)
        if not normal or normal in self.created:
            return
        if access in (Access.READ, Access.LIST):
            self.seen.add(normal)
        for rule in tables.PATH_RULES:
            if access in rule.access and rule.pattern.search(normal):
                if rule.rule:
                    self.hit(rule.rule, f"{access.value} {normal}", _base(normal))
                break
        if access is Access.READ and self.project.is_copy(normal):
            self.hit("installed-copy", f"reads {normal}", _base(normal))

    def read(self, path: str) -> str | None:
        """Note that a path is read. Returns its text where the agent wrote it."""
        self.touch(Access.READ, path)
        return self.files.get(self.resolve(path))


def _base(path: str) -> str:
    return posixpath.basename(path)
