"""How hard a task looks from outside: a made-up measure, for scripted policies alone, to try things out with.

    hardness = log2(lines) + log2(definitions) + 1 (no deleted definition kept its docstring) - 1 (hints)

``lines``: those that the gold patch adds and that are not blank. How hard a task is for a real policy, only attempts
tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from unidiff.patch import PatchSet

from taskgen.grading.task import Task
from taskgen.languages.python_syntax import parse_python
from taskgen.statement import HINTS_HEADING


def hardness_of(task: Task) -> float:
    """On the scale of logits: a policy of that skill solves the task half of the time."""
    lines = sum(
        line.is_added and bool(line.value.strip()) for file in PatchSet(task.row["patch"]) for h in file for line in h
    )
    hints = f"\n{HINTS_HEADING}\n" in str(task.row["problem_statement"])
    size = math.log2(max(1, lines)) + math.log2(max(1, len(task.row["deleted"])))
    return size + (not any(_docstrings(task))) - hints


def _docstrings(task: Task) -> Iterator[str]:
    """What the workspace still says of the deleted definitions."""
    for deleted in task.row["deleted"]:
        entry = task.workspace.get(deleted["path"])
        if entry is not None:
            for definition in parse_python(deleted["path"], "", entry.content).definitions:
                if definition.qualified_name == deleted["qualified_name"]:
                    yield definition.docstring
