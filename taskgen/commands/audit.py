"""``taskgen audit``: what in a target would let somebody take deleted code instead of writing it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from taskgen.errors import ConfigError
from taskgen.leaks import archives, git_state, installed, instructions, judging, secrets, targets
from taskgen.leaks.blob import DEFAULT_LIMITS, Blob, Limits
from taskgen.leaks.findings import Finding
from taskgen.leaks.judging import judge
from taskgen.leaks.policy import is_own
from taskgen.leaks.query import make_query
from taskgen.leaks.records import Problem
from taskgen.leaks.scanner import Fault, Scan, Scanner, scan_files
from taskgen.leaks.scrub import condemned, copy_without
from taskgen.leaks.subject import Subject, is_source, make_subject
from taskgen.leaks.targets import Listing, TargetKind
from taskgen.scrubrules import Scrubber

#: A tree with more source text than this is not read for renamed copies file by file.
MAX_THOROUGH_BYTES = 64 << 20
#: Larger files are not read for secrets and instructions: these stand in what people write.
_MAX_TEXT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to audit what is no task.

    Attributes:
        against: a gold patch (workspace -> solved).
        repo: the repository that rows are about.
        environment: folders (virtual environments, site-packages) that the agent has beside the target.
        fix: where to write a clean copy of a folder, which is then audited again.
    """

    against: Path | None = None
    repo: Path | None = None
    environment: tuple[Path, ...] = ()
    jobs: int = 1
    fix: Path | None = None
    limits: Limits = DEFAULT_LIMITS


@dataclass(slots=True, kw_only=True)
class Report:
    """The outcome of an audit.

    Attributes:
        findings: by subject: instance id, or the patch's name.
        rewards: what the thief earned, by instance id, where it was sent.
        removed: files that a clean copy was made without.
    """

    target: str
    kind: TargetKind
    findings: dict[str, list[Finding]] = field(default_factory=lambda: defaultdict(list))
    rewards: dict[str, float] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    n_files: int = 0
    n_bytes: int = 0
    seconds: float = 0.0

    def add(self, scan: Scan, findings: Mapping[str, Iterable[Finding]]) -> None:
        """Take up a scan and what was made of it."""
        self.n_files += scan.n_files
        self.n_bytes += scan.n_bytes
        for name, found in findings.items():
            self.findings[name] += found

    def all(self) -> list[Finding]:
        """The findings of all subjects."""
        return [finding for found in self.findings.values() for finding in found]

    def failures(self) -> list[Finding]:
        """What the gate stops at."""
        return judging.fails(self.all())

    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        rows = [
            {"subject": name, **{k: _printable(v) for k, v in asdict(finding).items()}}
            for name, found in self.findings.items()
            for finding in found
        ]
        return {
            "target": self.target,
            "kind": self.kind.value,
            "files": self.n_files,
            "bytes": self.n_bytes,
            "seconds": self.seconds,
            "subjects": list(self.findings),
            "actions": dict(Counter(str(row["action"]) for row in rows)),
            "rewards": self.rewards,
            "removed": list(self.removed),
            "findings": rows,
        }


def _printable(value: object) -> object:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def audit(target: str, kind: TargetKind, options: Options) -> Report:
    """Audit a folder, a file, an image, or rows about a repository.

    Raises:
        ConfigError, FormatError: the target, the patch or an option makes no sense.
        PrerequisiteError: an image cannot be had.
    """
    began = time.monotonic()
    report = Report(target=target, kind=kind)
    if kind is TargetKind.ROWS:
        _audit_rows(Path(target), options, report)
    elif kind is TargetKind.TREE:
        _audit_tree(Path(target), options, report)
        if options.fix is not None:
            report = _fixed(Path(target), options, report)
    elif options.fix is not None:
        raise ConfigError(f"--fix writes clean folders and tasks; {target} is neither")
    else:
        _audit_stream(target, kind, options, report)
    report.seconds = round(time.monotonic() - began, 3)
    return report


# --- Folders -------------------------------------------------------------------------------------


def _audit_tree(root: Path, options: Options, report: Report) -> None:
    listing = targets.walk(root)
    scrubber = Scrubber(listing.files)
    own = (p for p in listing.files if is_source(p) and is_own(p, scrubber))
    sources = (data for p in own if (data := targets.read_file(root, p)) is not None)
    subject = _subject(options, lambda path: targets.read_file(root, path), sources)
    _scan_tree(root, listing, [subject], options, report)


def _audit_rows(path: Path, options: Options, report: Report) -> None:
    if options.repo is None:
        raise ConfigError(f"{path} holds rows: which repository are they about?", hint="add --repo PATH")
    root = options.repo
    listing = targets.walk(root)
    scrubber = Scrubber(listing.files)
    own = (p for p in listing.files if is_source(p) and is_own(p, scrubber))
    sources = [data for p in own if (data := targets.read_file(root, p)) is not None]
    subjects = [
        make_subject(
            row.instance_id, row.patch, lambda p: targets.read_file(root, p), sources,
            test_patch=row.test_patch, stated=row.problem_statement,
        )
        for row in targets.rows(path)
    ]  # fmt: skip
    _scan_tree(root, listing, subjects, options, report)


def _scan_tree(root: Path, listing: Listing, subjects: Sequence[Subject], options: Options, report: Report) -> None:
    size = sum(path.stat().st_size for p in listing.files if is_source(p) and (path := root / p).is_file())
    query = make_query(subjects, options.limits, thorough=size <= MAX_THOROUGH_BYTES)
    scan = scan_files(root, listing.files, query, jobs=options.jobs)
    scan.faults += listing.faults
    report.add(scan, judge(scan, subjects, scrubber=Scrubber(listing.files)))
    report.findings[subjects[0].name] += _about_tree(root, listing)
    for folder in options.environment:
        around = targets.walk(folder)
        beside = scan_files(
            folder, around.files, make_query(subjects, options.limits, thorough=False), jobs=options.jobs
        )
        beside.faults += around.faults
        report.add(beside, judge(beside, subjects, in_environment=True))


def _fixed(root: Path, options: Options, first: Report) -> Report:
    """Write the clean copy, and audit that: what is left to find is in the report, and what was removed."""
    assert options.fix is not None
    removed = condemned(first.all())
    # A history is one thing: nothing of it can stay.
    folders = {path.rpartition(".git/")[0] + ".git" for path in removed if ".git/" in f"/{path}"}
    files = targets.walk(root).files
    gone = {p for p in files if p in removed or any(p.startswith(f"{folder}/") for folder in folders)}
    copy_without(root, files, gone, options.fix)
    report = Report(target=str(options.fix), kind=TargetKind.TREE, removed=tuple(sorted(gone)))
    _audit_tree(options.fix, options, report)
    return report


def _about_tree(root: Path, listing: Listing) -> Iterator[Finding]:
    """What the other detectors find: it is about the tree, whatever was deleted from it."""

    def read(path: str) -> bytes | None:
        place = root / path
        return targets.read_file(root, path) if place.is_file() and place.stat().st_size <= _MAX_TEXT_BYTES else None

    yield from git_state.examine(listing.files, read)
    yield from installed.examine(listing.files, read, root.resolve().name)
    for path in listing.files:
        if "/objects/" not in path and (data := read(path)) is not None:
            yield from instructions.find(path, data)
            yield from secrets.find(path, data)


def _subject(options: Options, read: Callable[[str], bytes | None], sources: Iterable[bytes]) -> Subject:
    if options.against is None:
        raise ConfigError("the target is no task: which deleted code is to be looked for?", hint="add --against PATCH")
    try:
        patch = options.against.read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise ConfigError(f"{options.against} cannot be read: {error.strerror}") from error
    return make_subject(options.against.name, patch, read, sources)


# --- Archives and images ---------------------------------------------------------------------------


def _audit_stream(target: str, kind: TargetKind, options: Options, report: Report) -> None:
    subject = _subject(options, lambda _path: None, ())
    scanner = Scanner(make_query([subject], options.limits, thorough=True))
    scan = Scan()
    seen: list[str] = []
    for found in _stream(target, kind, options.limits):
        if isinstance(found, Problem):
            scan.faults.append(Fault(trail=(target,), reason=found.reason))
            continue
        seen.append(found.trail[0])
        scanner.scan_blob(found, scan)
        if found.size_bytes <= _MAX_TEXT_BYTES:
            report.findings[subject.name] += secrets.find(found.trail[0], found.read())
    report.add(scan, judge(scan, [subject], scrubber=Scrubber(seen)))


def _stream(target: str, kind: TargetKind, limits: Limits) -> Iterator[Blob | Problem]:
    if kind is TargetKind.FILE:
        return archives.members(Path(target), limits)
    if target.startswith(targets.IMAGE_PREFIX):
        return archives.engine_image(target.removeprefix(targets.IMAGE_PREFIX), limits)
    return archives.image_files(Path(target), limits)
