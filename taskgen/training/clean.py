"""Text without the deleted code of tasks: what a policy has read it may remember, and a task then measures that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from taskgen import archive, taskset
from taskgen.leaks.blob import Blob
from taskgen.leaks.query import make_query
from taskgen.leaks.records import Level, Likeness
from taskgen.leaks.scanner import Hit, Scan, Scanner
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
    owners = [(subject, number) for subject in subjects for number in range(len(subject.fingerprints))]
    size = sum(len(document.text) for document in found.documents)
    thorough = size * len(owners) <= MAX_THOROUGH
    if not thorough:
        on_note("tasks: the text is too large to look for renamed copies of deleted code in every document")
    scanner = Scanner(make_query(subjects, thorough=thorough))
    result = Collected([], list(found.left_out))
    for document in found.documents:
        why = _why(document, scanner, owners)
        if why is None:
            result.documents.append(document)
        else:
            result.left_out.append(why)
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


def _why(document: Document, scanner: Scanner, owners: Sequence[tuple[Subject, int]]) -> LeftOut | None:
    scan = scanner.scan([Blob.of_bytes(document.name, document.text.encode("utf-8", "surrogatepass"))])
    for subject, number, hit in _telling(scan, owners):
        test = number >= len(subject.deleted)
        what = "a hidden test" if test else "deleted code"
        label = subject.fingerprints[number].label
        return LeftOut(
            name=document.name,
            why=what,
            detail=f"{subject.name}: {label} ({hit.match.likeness}, line {hit.match.line})",
        )
    if scan.faults:
        return LeftOut(name=document.name, why="not checked to its end", detail=scan.faults[0].reason)
    return None


def _telling(scan: Scan, owners: Sequence[tuple[Subject, int]]) -> Iterable[tuple[Subject, int, Hit]]:
    """Stricter than the audit of a workspace, which takes bodies that resemble each other for style: a document too
    many costs nothing."""
    for hit in scan.hits:
        subject, number = owners[hit.match.fingerprint]
        if number < len(subject.deleted):
            if hit.match.level is Level.BODY:
                yield subject, number, hit
        elif hit.match.likeness is Likeness.WHOLE and subject.fingerprints[number].name.lower().startswith("test"):
            yield subject, number, hit
