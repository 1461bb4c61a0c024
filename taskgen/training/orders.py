"""Harder tasks, ordered from build while training goes on: when few are left that the policy can learn from.

Build runs as a process of its own, one recipe after the other; what it has finished joins the curriculum between two
batches. When that is depends on how long build takes: it is the one thing in a run that timing decides. The tasks that
have joined are part of the run's state.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from taskgen import fill, process, taskset, trainer_process
from taskgen.attempts import loaded
from taskgen.errors import FormatError
from taskgen.fill import Site
from taskgen.training.config import OrderSection

_OUTPUT_BYTES = 16 << 10


@dataclass(slots=True, kw_only=True)
class Orders:
    """``begun``: how many recipes were ordered so far; ``heldout``: repositories whose tasks are only for evaluation;
    ``on_note`` is told what is ordered and what came of it."""

    section: OrderSection
    out: Path
    begun: int
    heldout: frozenset[str]
    on_note: Callable[[str], None]
    _build: subprocess.Popen[bytes] | None = None
    _said: process.BoundedReader | None = None
    _printed: process.BoundedReader | None = None

    def poll(self, n_learnable: int) -> dict[str, Path]:
        """Tasks that have come since the last call; begins an order if fewer than wanted are left to learn from."""
        new = self._ended() if self._build is not None and self._build.poll() is not None else {}
        wanted = n_learnable + len(new) < self.section.when_below
        if self._build is None and wanted and self.begun < len(self.section.recipes):
            self._begin(self.section.recipes[self.begun])
        return new

    def close(self) -> None:
        """End what is being built: build keeps what it has done, and the next run orders it again."""
        if self._build is not None:
            process.kill_tree(self._build)
            self._forget()

    def _begin(self, recipe: str) -> None:
        arguments = ["build", *([str(self.section.repos)] if self.section.repos else []), "--recipe", recipe]
        arguments += ["--max-tasks", str(self.section.max_tasks), "--out", str(self._folder(recipe)), "--jobs", "1"]
        self.on_note(f"few tasks are left to learn from: ordering tasks of recipe {recipe}")
        env = trainer_process.environment()
        self._build = process.start([sys.executable, "-P", "-m", "taskgen", *arguments], env=env)
        assert self._build.stdin and self._build.stdout and self._build.stderr
        self._build.stdin.close()
        # Both are read, so that neither pipe fills up; only what it says of itself is kept.
        self._printed = process.BoundedReader(self._build.stdout, 0)
        self._said = process.BoundedReader(self._build.stderr, _OUTPUT_BYTES)
        self.begun += 1

    def _folder(self, recipe: str) -> Path:
        return self.out / "ordered" / recipe

    def _ended(self) -> dict[str, Path]:
        assert self._build is not None and self._said is not None
        folder, code = self._folder(self.section.recipes[self.begun - 1]), self._build.returncode
        self._said.finish(1.0)
        last = self._said.value().decode(errors="replace").strip().rpartition("\n")[2]
        self._forget()
        try:
            found = {path.name: path for path in taskset.find_tasks(folder)}
        except FormatError:
            found = {}
        new = {name: path for name, path in found.items() if self._fits(path)}
        self.on_note(f"{len(new)} of {len(found)} ordered tasks join" + (f"; build: {last[:300]}" if code else ""))
        return new

    def _fits(self, folder: Path) -> bool:
        task = loaded(folder)
        return str(task.row["repo"]) not in self.heldout and isinstance(fill.site_of(task), Site)

    def _forget(self) -> None:
        assert self._build is not None and self._said is not None and self._printed is not None
        for reader, stream in ((self._printed, self._build.stdout), (self._said, self._build.stderr)):
            reader.finish(1.0)
            if stream is not None:
                stream.close()
        self._build = self._said = self._printed = None
