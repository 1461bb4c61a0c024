"""The made-up hardness that scripted policies meet, against sums done by hand."""

from __future__ import annotations

import pytest

from taskgen.archive import ArchiveEntry
from taskgen.grading.task import Task
from taskgen.guards import Guards
from taskgen.hardness import hardness_of
from taskgen.statement import HINTS_HEADING

STUB = "    raise NotImplementedError\n"
PATCH = """\
diff --git a/m.py b/m.py
--- a/m.py
+++ b/m.py
@@ -1,2 +1,6 @@
 def f(x):
-    raise NotImplementedError
+    a = x
+
+    b = a
+    c = b
+    return c
"""


def task(*, doc: str = '    """Say x."""\n', statement: str = "Write f.\n", names: tuple[str, ...] = ("f",)) -> Task:
    source = f"def f(x):\n{doc}{STUB}".encode()
    row = {
        "patch": PATCH, "problem_statement": statement,
        "deleted": [{"path": "m.py", "qualified_name": name, "kind": "function"} for name in names],
    }  # fmt: skip
    entry = ArchiveEntry(path="m.py", content=source, executable=False)
    return Task(row=row, workspace={"m.py": entry}, tests={}, gold_patch=PATCH.encode(), guards=Guards())


def test_by_hand() -> None:
    assert hardness_of(task()) == pytest.approx(2.0)  # four lines that are not blank
    assert hardness_of(task(doc="")) == pytest.approx(3.0)
    assert hardness_of(task(statement=f"Write f.\n\n{HINTS_HEADING}\n\n- `f`: 5 lines\n")) == pytest.approx(1.0)
    assert hardness_of(task(names=("f", "g", "h", "i"))) == pytest.approx(4.0)
