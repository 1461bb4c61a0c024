"""Text without the deleted code of tasks: what a policy has read it may remember, and a task then measures that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from taskgen import archive, taskset
from taskgen.leaks.blob import Blob
from taskgen.leaks.fingerprints import Fingerprint
from taskgen.leaks.matching import Match
from taskgen.leaks.query import make_query
from taskgen.leaks.records import Level, Likeness
from taskgen.leaks.scanner import Scanner
from taskgen.leaks.subject import Subject, is_source, make_subject
from taskgen.training.documents import Collected, Document, LeftOut

#: Up to so many fingerprints times bytes of text, every document is read for renamed copies (some minutes); beyond it,
#: those are that share names with deleted code.
MAX_THOROUGH = 20_000_000_000


def clean(found: Collected, tasks: Sequence[Path], on_note: Callable[[str], None]) -> Collected:
    """Leave out each document in which the audit finds the body of a task's deleted code, in whatever likeness, or a
    whole hidden test; and what the audit cannot read to its end.

    Raises FormatError: a task set holds no task, or a task is not whole.
    """
    subjects = [_subject(folder) for place in tasks for folder in taskset.find_tasks(place)]
    if not subjects:
        return found
    size = sum(len(document.text) for document in found.documents)
    thorough = size * sum(len(subject.deleted) for subject in subjects) <= MAX_THOROUGH
    if not thorough:
        on_note("tasks: the text is too large to look for renamed copies of deleted code in every document")
    code = _Search([replace(s, tests=()) for s in subjects], "deleted code", _is_code, thorough=thorough)
    tests = _Search([replace(s, deleted=s.tests, tests=()) for s in subjects], "a hidden test", _is_test, sparing=True)
    result = Collected([], list(found.left_out))
    for document in found.documents:
        if why := code.why(document) or tests.why(document):
            result.left_out.append(why)
        else:
            result.documents.append(document)
    return result


def _subject(folder: Path) -> Subject:
    taskset.must_be_whole(folder)
    row = taskset.read_row(folder)
    entries = archive.read_entries((folder / taskset.WORKSPACE).read_bytes())
    files = {entry.path: entry.content for entry in entries if entry.link_target is None}
    sources = [data for path, data in files.items() if is_source(path)]
    return make_subject(
        str(row["instance_id"]), row["patch"], files.get, sources, test_patch=row["test_patch"],
        stated=row["problem_statement"],
    )  # fmt: skip


class _Search:
    """Looks for what some subjects protect. ``counts``: which matches say that a document holds it."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        what: str,
        counts: Callable[[Match, Fingerprint], bool],
        *,
        thorough: bool = False,
        sparing: bool = False,
    ) -> None:
        self._owners = [(subject.name, fingerprint) for subject in subjects for fingerprint in subject.fingerprints]
        self._what, self._counts = what, counts
        self._scanner = Scanner(make_query(subjects, thorough=thorough, sparing=sparing))

    def why(self, document: Document) -> LeftOut | None:
        """Why a document is left out; None if it is not."""
        scan = self._scanner.scan([Blob.of_bytes(document.name, document.text.encode("utf-8", "surrogatepass"))])
        for hit in scan.hits:
            match, (task, wanted) = hit.match, self._owners[hit.match.fingerprint]
            if self._counts(match, wanted):
                detail = f"{task}: {wanted.label} ({match.likeness}, line {match.line})"
                return LeftOut(name=document.name, why=self._what, detail=detail)
        if scan.faults:
            return LeftOut(name=document.name, why="not checked to its end", detail=scan.faults[0].reason)
        return None


def _is_code(match: Match, _wanted: Fingerprint) -> bool:
    """Stricter than the audit of a workspace, which takes bodies that resemble each other for style: a document too
    many costs nothing."""
    return match.level is Level.BODY


def _is_test(match: Match, wanted: Fingerprint) -> bool:
    """As the audit of a workspace."""
    return match.likeness is Likeness.WHOLE and wanted.name.lower().startswith("test")
