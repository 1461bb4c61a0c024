"""One-turn attempts: what of a completion becomes the body, and where it goes."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from taskgen.archive import ArchiveEntry
from taskgen.fill import (
    CannotFill,
    Site,
    body_of_answer,
    body_of_continuation,
    gold_body,
    patch_of,
    prompt_of,
    site_of,
)
from taskgen.grading.intake import from_patch
from taskgen.grading.task import Task
from taskgen.guards import Guards
from taskgen.policies.policy import Completion, Form
from taskgen.sandbox import Limits

PRISTINE = '''\
import math


class Circle:
    @property
    def area(self):
        """Return the area."""
        r = self.radius
        return math.pi * r * r

    def grow(self):
        self.radius += 1
'''
WORKSPACE = PRISTINE.replace(
    "        r = self.radius\n        return math.pi * r * r\n", "        raise NotImplementedError\n"
)
PATCH = '''\
diff --git a/shapes/circle.py b/shapes/circle.py
--- a/shapes/circle.py
+++ b/shapes/circle.py
@@ -5,7 +5,8 @@ class Circle:
     @property
     def area(self):
         """Return the area."""
-        raise NotImplementedError
+        r = self.radius
+        return math.pi * r * r
\x20
     def grow(self):
         self.radius += 1
'''
DELETED = {"path": "shapes/circle.py", "qualified_name": "Circle.area", "kind": "method"}


def task_of(newline: str = "\n", **row: object) -> Task:
    content = WORKSPACE.replace("\n", newline).encode()
    entries = [ArchiveEntry(path="shapes/circle.py", content=content), ArchiveEntry(path="shapes/__init__.py")]
    environment = {
        "language": "python", "runtime": "python 3.11", "install": [], "requirements": [], "build_command": "",
        "test_command": "pytest", "timeout_s": 10.0, "image": "",
    }  # fmt: skip
    return Task(
        row={
            "instance_id": "demo__function-0123456789", "repo": "local/demo", "patch": PATCH, "deleted": [DELETED],
            "problem_statement": "Implement `area`", "environment": environment, "test_files": [], **row,
        },
        workspace={e.path: e for e in entries}, tests={}, gold_patch=PATCH.encode(), guards=Guards(),
        test_timeout_s=1.0, limits=Limits(),
    )  # fmt: skip


def site_in(task: Task) -> Site:
    site = site_of(task)
    assert isinstance(site, Site)
    return site


def filled(task: Task, completion: Completion) -> str:
    """The file after a completion's patch; '' for an empty patch."""
    changes = from_patch(patch_of(task, site_in(task), completion), task.rules).changes
    return "".join(entry.content.decode() for entry in changes.values() if entry is not None)


def continuation(text: str) -> Completion:
    return Completion(text=text, form=Form.CONTINUATION, finish_reason="stop")


def test_the_gold_body_at_its_place_is_the_pristine_file() -> None:
    task = task_of()
    assert filled(task, continuation("\n" + gold_body(task))) == PRISTINE


def test_a_file_keeps_its_line_ends() -> None:
    task = task_of(newline="\r\n")
    assert filled(task, continuation("\n" + gold_body(task))) == PRISTINE.replace("\n", "\r\n")


def test_a_prompt_holds_what_stands_before_and_nothing_of_the_gold_body() -> None:
    task = task_of()
    prompt = prompt_of(task, Path("x"), site_in(task))
    assert prompt.folder == Path("x")
    assert prompt.text == PRISTINE.partition("        r = self")[0].rstrip("\n")
    assert prompt.indent == " " * 8
    said = "".join(turn.text for turn in prompt.messages)
    assert "Implement `area`" in said and "def area(self):" in said and "math.pi" not in said + prompt.text


def test_a_long_file_is_cut_above_and_the_definition_stays_whole() -> None:
    task = task_of()
    long = b"x = 1\n" * 2000 + WORKSPACE.encode()
    patch = PATCH.replace("-5,7 +5,8", "-2005,7 +2005,8")
    task = task_of(patch=patch)
    workspace = {**task.workspace, "shapes/circle.py": ArchiveEntry(path="shapes/circle.py", content=long)}
    task = Task(
        row=task.row, workspace=workspace, tests={}, gold_patch=patch.encode(), guards=Guards(), test_timeout_s=1.0,
        limits=Limits(),
    )  # fmt: skip
    text = prompt_of(task, Path("x"), site_in(task)).text
    assert len(text) < 2200 and text.startswith("x = 1\n") and text.endswith('"""Return the area."""')
    assert "@property\n    def area" in text
    head = prompt_of(task, Path("x"), site_in(task), 0).text
    assert head.startswith("    @property\n    def area") and head.endswith('"""Return the area."""')
    before = text.removesuffix(head)
    for chars in (1, 100, len(before) - 1):
        shorter = prompt_of(task, Path("x"), site_in(task), chars).text
        assert text.endswith(shorter) and len(head) <= len(shorter) <= len(head) + chars + 1
    assert prompt_of(task, Path("x"), site_in(task), len(before) - 1).text == text


def test_a_method_is_shown_how_its_class_begins() -> None:
    lines = ["import x", "", "class A:", '    """Doc."""', "    @overload", "    def __init__(self): ...", ""]
    lines += ["    def __init__(self):", "        self._size = 1", "", "    def other(self):"]
    lines += [f"        self.n = {i}" for i in range(100)]
    lines += ["", "    def size(self):", "        raise NotImplementedError", ""]
    at = len(lines) - 2
    site = Site(path="a.py", name="size", lines=tuple(lines), line=at, indent=" " * 8, newline="\n")

    def text(chars: int) -> str:
        return prompt_of(task_of(), Path("x"), site, chars).text

    made = "    def __init__(self):\n        self._size = 1\n\n"
    found = text(400)
    assert found.startswith("class A:\n" + made + "        self.n = ") and found.endswith("= 99\n\n    def size(self):")
    assert len(found) <= 400 + len("\n    def size(self):")
    assert text(50).startswith("class A:\n\n") and "__init__" not in text(50)
    assert text(0) == "    def size(self):"
    assert text(10_000) == "\n".join(lines[:at])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"deleted": [DELETED, DELETED]}, "2 definitions"),
        ({"deleted": [{**DELETED, "kind": "class"}]}, "a class was deleted"),
        ({"patch": PATCH + PATCH.replace("circle", "square")}, "other lines, too"),
        ({"patch": PATCH.replace("-        raise NotImplementedError\n", "").replace("-5,7", "-5,6")}, "is gone with"),
    ],
)
def test_tasks_that_one_body_does_not_solve(row: dict[str, object], reason: str) -> None:
    found = site_of(task_of(**row))
    assert isinstance(found, CannotFill) and reason in found.reason


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("\n    return 1\n", "    return 1"),
        ("\n    a = 1\n\n    return a\n\n\ndef other():\n    pass\n", "    a = 1\n\n    return a"),
        ("  # why\n    return 1", ""),
        ("", ""),
        ("\ndef other():\n    return 2\n", ""),
        ("\n    if a:\n        return 1\n  return 2", "    if a:\n        return 1"),
    ],
)
def test_a_continuation_ends_left_of_the_body(text: str, body: str) -> None:
    assert body_of_continuation(text, "    ") == body


DEFINITION = 'def area(self):\n    """Return the area."""\n    r = 2\n\n    return r\n'


@pytest.mark.parametrize(
    ("text", "body"),
    [
        (f"Here:\n```python\n{DEFINITION}```\nDone.", "  r = 2\n\n  return r"),
        (f"```py\n{indent('@property' + chr(10) + DEFINITION, '    ')}```", "  r = 2\n\n  return r"),
        ("```python\nclass Circle:\n    def area(self):\n        return 3\n```", "  return 3"),
        ("```\nreturn 4\n```", "  return 4"),
        ("return 5", "  return 5"),
        ("```python\ndef area(self): return 6\n```", "  return 6"),
        ("```python\ndef other(self):\n    return 7\n```", ""),
        ("```\ndef area(self):\n    return 1\n```\nBetter:\n```\ndef area(self):\n    return 2\n```", "  return 2"),
    ],
)  # fmt: skip
def test_the_body_of_an_answer(text: str, body: str) -> None:
    assert body_of_answer(text, "area", "  ") == body


def test_what_a_model_writes_may_be_anything() -> None:
    task = task_of()
    for text in ("\n        return '\ud800'", "\n        \0", "\n" + "        (" * 5000, "\n        \r\r\n        x"):
        patch_of(task, site_in(task), continuation(text))
        patch_of(task, site_in(task), Completion(text=text, form=Form.ANSWER, finish_reason="stop"))
    assert patch_of(task, site_in(task), continuation("\n\n\n")) == b""
