"""The audit of candidates while a task set is built: nothing that leaks is worth running."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from taskgen.leaks import surroundings
from taskgen.leaks.blob import Blob
from taskgen.leaks.findings import Finding
from taskgen.leaks.fingerprints import Fingerprint, of_file
from taskgen.leaks.judging import fails, judge
from taskgen.leaks.loot import Want
from taskgen.leaks.query import Query, make_query
from taskgen.leaks.scanner import Scan, Scanner
from taskgen.leaks.subject import Subject, is_source, known_words
from taskgen.leaks.thief import Haul, Theft, rob
from taskgen.repository import Repository, edited
from taskgen.scrubrules import Scrubber
from taskgen.types import Candidate, Rejection

#: A workspace with more source text than this is not read for renamed copies.
MAX_THOROUGH_BYTES = 64 << 20


@dataclass(kw_only=True)
class LeakGate:
    """Audits the candidates of one repository. Its environment is scanned once, for all of them.

    Attributes:
        pool: all candidates.
        cache: where scans of environments are kept.
    """

    repository: Repository
    pool: Sequence[Candidate]
    cache: Path
    jobs: int = 1
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _around: Scan | None = None
    _query: Query | None = None

    def check(self, candidate: Candidate) -> Rejection | None:
        """Why a candidate leaks; None if it does not. Raises SandboxUnavailable."""
        subject = self._subject(candidate)
        for where, findings in (
            ("elsewhere in the tree", self._in_workspace(candidate, subject)),
            ("in its environment", self._in_environment(subject)),
        ):
            if leaks := fails(findings):
                shown = "; ".join(f"{f.level} of {f.definition} in {f.path}" for f in leaks[:5])
                return Rejection(
                    candidate=candidate.instance_id,
                    stage="audit",
                    reason=f"deleted code can be read {where}",
                    detail=shown,
                )
        return None

    def rob(self, candidate: Candidate, submit: Callable[[Theft], float]) -> Haul:
        """Send the thief to what the agent will have."""
        files = self._workspace(candidate)
        subject = self._subject(candidate)
        around = self._environment()
        mine = {f.name for f in subject.deleted}
        query = self._query
        assert query is not None
        hits = [hit for hit in around.hits if query.fingerprints[hit.match.fingerprint].name in mine]
        beside = surroundings.suspects(
            self.repository.provider, self.repository.environment.key, Scan(hits=hits), query.limits
        )
        own = [Blob.of_bytes(path, data) for path, data in files.items()]
        wants = [Want(path=f.path, qualified_name=f.qualified_name) for f in subject.deleted]
        return rob([*own, *(beside if hits else ())], wants, files, submit)

    @property
    def n_bytes(self) -> int:
        """Bytes of the environment that were scanned."""
        return self._environment().n_bytes

    def _workspace(self, candidate: Candidate) -> dict[str, bytes]:
        entries = edited(self.repository.entries, candidate.deletion.files)
        return {entry.path: entry.content for entry in entries if entry.link_target is None}

    def _subject(self, candidate: Candidate) -> Subject:
        deleted = tuple(self._fingerprints(candidate))
        known = known_words(deleted, (data for p, data in self._workspace(candidate).items() if is_source(p)))
        return Subject(name=candidate.instance_id, deleted=deleted, known=known)

    def _fingerprints(self, candidate: Candidate) -> Iterable[Fingerprint]:
        for path in candidate.deletion.files:
            before = self.repository.entries[path].content
            yield from of_file(path, before, candidate.deletion.removed_lines.get(path, frozenset()))

    def _in_workspace(self, candidate: Candidate, subject: Subject) -> list[Finding]:
        files = self._workspace(candidate)
        size = sum(len(data) for path, data in files.items() if is_source(path))
        scanner = Scanner(make_query([subject], thorough=size <= MAX_THOROUGH_BYTES))
        scan = scanner.scan(Blob.of_bytes(path, data) for path, data in sorted(files.items()))
        return judge(scan, [subject], scrubber=Scrubber(files))[subject.name]

    def _in_environment(self, subject: Subject) -> list[Finding]:
        around = self._environment()
        query = self._query
        assert query is not None
        places = {fingerprint: number for number, fingerprint in enumerate(subject.deleted)}
        hits = []
        for hit in around.hits:
            number = places.get(query.fingerprints[hit.match.fingerprint])
            if number is not None:
                hits.append(hit.at(number))
        return judge(Scan(hits=hits), [subject], in_environment=True)[subject.name]

    def _environment(self) -> Scan:
        with self._mutex:
            if self._around is None:
                every = dict.fromkeys(f for candidate in self.pool for f in self._fingerprints(candidate))
                self._query = Query(fingerprints=tuple(every), thorough=False, sparing=True)
                self._around = surroundings.scan(
                    self.repository.provider, self.repository.environment.key, self._query,
                    jobs=self.jobs, cache=self.cache,
                )  # fmt: skip
            return self._around
