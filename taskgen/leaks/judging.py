"""From what a scan saw to findings: the policy applied to each place, likeness told from style, one line for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from taskgen.leaks.findings import Finding
from taskgen.leaks.fingerprints import Fingerprint
from taskgen.leaks.matching import MIN_LINES
from taskgen.leaks.policy import Action, Place, Ruling, place_of, ruling
from taskgen.leaks.records import Level, Likeness
from taskgen.leaks.scanner import Fault, Hit, Scan
from taskgen.leaks.subject import Subject
from taskgen.scrubrules import Scrubber

#: A method that resembles its sibling is style, not a leak, unless it is this much of what went.
MIN_DELETION_SHARE = 0.3
#: How alike a renamed body in the repository's own sources must be; siblings often share their bones.
MIN_RENAMED_SHARE = 0.85
_ORDER = {"error": 0, "warning": 1, "note": 2}


def judge(
    scan: Scan, subjects: Sequence[Subject], *, scrubber: Scrubber | None = None, in_environment: bool = False
) -> dict[str, list[Finding]]:
    """Findings by the name of the subject. The scan's fingerprints are those of the subjects, in their order.

    Faults of the scan are findings of every subject: what was not read may hold anything.
    """
    owners = [(subject, n) for subject in subjects for n in range(len(subject.fingerprints))]
    mine: dict[str, list[tuple[Hit, int]]] = defaultdict(list)
    for hit in scan.hits:
        subject, number = owners[hit.match.fingerprint]
        mine[subject.name].append((hit, number))
    unreadable = [_unreadable(fault) for fault in scan.faults]
    result = {}
    for subject in subjects:
        hits = mine[subject.name]
        found = [*_of_subject(subject, hits, scrubber, in_environment=in_environment), *unreadable]
        result[subject.name] = sorted(found, key=lambda f: (_ORDER[f.severity], f.path, f.definition))
    return result


def _of_subject(
    subject: Subject, hits: Iterable[tuple[Hit, int]], scrubber: Scrubber | None, *, in_environment: bool
) -> Iterable[Finding]:
    placed = [
        (hit, number, place_of(hit.trail[0], hit.formats, in_environment=in_environment, scrubber=scrubber))
        for hit, number in hits
    ]
    style = _mere_style(subject, placed)
    for hit, number, place in placed:
        if (hit.trail, number) in style:
            continue
        if number < len(subject.deleted):
            yield _of_code(subject, subject.deleted[number], hit, place)
        elif hit.match.likeness is Likeness.WHOLE and subject.fingerprints[number].name.lower().startswith("test"):
            yield _of_test(subject.fingerprints[number], hit, place)


def _mere_style(subject: Subject, placed: Iterable[tuple[Hit, int, Place]]) -> set[tuple[tuple[str, ...], int]]:
    """Likenesses that are no leak. In the repository's own sources: short bodies, siblings that are written in the
    same manner, and whatever is too little of what went; elsewhere: short definitions of everyday names."""
    total = sum(f.n_body_lines for f in subject.deleted) or 1
    style: set[tuple[tuple[str, ...], int]] = set()
    alike: dict[int, list[tuple[str, ...]]] = defaultdict(list)
    for hit, number, place in placed:
        match, wanted = hit.match, subject.fingerprints[number]
        if match.level is not Level.BODY or match.likeness is Likeness.WHOLE:
            continue
        if place not in (Place.SOURCE, Place.DOCUMENT):
            if match.likeness is Likeness.TWIN:
                style.add((hit.trail, number))  # a short definition that any program may have
            continue
        if match.likeness is Likeness.TWIN:
            continue
        if len(wanted.lines) < MIN_LINES or (match.likeness is Likeness.RENAMED and match.share < MIN_RENAMED_SHARE):
            style.add((hit.trail, number))
        else:
            alike[number].append(hit.trail)
    share = sum(subject.fingerprints[n].n_body_lines for n in alike if n < len(subject.deleted)) / total
    if share < MIN_DELETION_SHARE:
        style |= {(trail, number) for number, trails in alike.items() for trail in trails}
    return style


def _of_code(subject: Subject, wanted: Fingerprint, hit: Hit, place: Place) -> Finding:
    level = hit.match.level
    ruled = ruling(level, place, is_stated=is_stated(subject, wanted, level), has_machine_code=hit.match.machine)
    return _finding(
        hit,
        wanted,
        ruled,
        detector=hit.formats[-1] if hit.formats else "text",
        message=_message(wanted, hit, place, ruled),
    )


def _message(wanted: Fingerprint, hit: Hit, place: Place, ruled: Ruling) -> str:
    also = ", and its machine code," if hit.match.machine else ""
    near = {Likeness.ALIKE: "most of the body", Likeness.RENAMED: "the body in other words"}
    what = (
        near.get(hit.match.likeness, f"the {hit.match.level.label}")
        if hit.match.likeness
        else f"the {hit.match.level.label}"
    )
    ends = {
        Action.REJECT: "choose another target, or take the twin away",
        Action.SCRUB: "remove the file",
        Action.REPORT: "nothing needs to be done",
        Action.SPECIFICATION: "part of the repository, and fair to read",
    }
    return f"{what}{also} of {wanted.label} can be read in this {place.value}: {ends[ruled.action]}"


def _of_test(wanted: Fingerprint, hit: Hit, place: Place) -> Finding:
    action = Action.REPORT if place is Place.SOURCE else Action.SCRUB
    ruled = Ruling(action=action, severity="warning" if action is Action.REPORT else "error")
    return _finding(
        hit, wanted, ruled, detector="hidden-test", message=f"the hidden test {wanted.label} can be read here"
    )


def _finding(hit: Hit, wanted: Fingerprint, ruled: Ruling, *, detector: str, message: str) -> Finding:
    return Finding(
        detector=detector,
        path="!".join(hit.trail),
        level=hit.match.level.label,
        definition=wanted.label,
        severity=ruled.severity,
        action=ruled.action.value,
        excerpt=hit.match.excerpt,
        message=message,
        line=hit.match.line,
    )


def _unreadable(fault: Fault) -> Finding:
    return Finding(
        detector="unreadable", path="!".join(fault.trail), level="", definition="", severity="warning",
        action=Action.REPORT.value, excerpt="", message=f"not read to its end: {fault.reason}",
    )  # fmt: skip


def is_stated(subject: Subject, wanted: Fingerprint, level: Level) -> bool:
    """Whether the agent is told as much anyway: the header is in the workspace, or the statement spells it."""
    if level is Level.SIGNATURE and not wanted.header and wanted.parameters is not None:
        return True  # only the body went
    if not subject.stated:
        return False
    said = "".join(subject.stated.split())
    if level is Level.SIGNATURE:
        return "".join(wanted.header.split()) in said or all(
            name in subject.stated for name in (wanted.name, *(wanted.parameters or ()))
        )
    return bool(wanted.doc_lines) and all(b"".join(line.split()).decode() in said for line in wanted.doc_lines)


def fails(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that the gate stops at."""
    return [finding for finding in findings if finding.action in (Action.REJECT.value, Action.SCRUB.value)]
