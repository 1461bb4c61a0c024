"""What makes a proven candidate hard to cheat: its guards, and how much wrong code its tests let pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, zip_longest

from taskgen.all_languages import LANGUAGES
from taskgen.archive import ArchiveEntry
from taskgen.grading import differential, twins
from taskgen.grading.intake import Rules
from taskgen.guards import Differential, Guards, Target
from taskgen.languages.python_mutants import Mutant, mutants
from taskgen.languages.python_recording import instrumented, recordable
from taskgen.repository import Repository
from taskgen.session import SessionCrashed, TestSession
from taskgen.stubs import Stub, stubbed
from taskgen.types import Candidate, Definition, Protection, Rejection

#: Mutants tried a task. Fewer where the hidden tests are slow.
MAX_MUTANTS, MIN_MUTANTS, MUTATION_S = 20, 8, 60.0
#: Hidden tests that let more wrong code pass than this need a differential check beside them.
MIN_SCORE = 0.8
Passes = Callable[[Mapping[str, bytes | None], frozenset[str]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Protector:
    """Makes guards in two sessions on the pristine tree that differ in their hash seed.

    Attributes:
        passes: whether tests pass in the candidate's workspace with some files laid over.
    """

    repository: Repository
    session: TestSession
    other: TestSession
    seed: int

    def protect(
        self, candidate: Candidate, fail_to_pass: frozenset[str], statement: str,
        workspace: tuple[ArchiveEntry, ...], passes: Passes,
    ) -> tuple[Guards, Protection] | Rejection:  # fmt: skip
        """The guards of a candidate and its mutation scores; a Rejection if its tests accept wrong code and no other
        check can be made. Raises SandboxUnavailable."""
        repository = self.repository
        if untaken := self._not_taken(candidate, workspace):
            reason = "a grader would not take the files of the gold patch"
            return Rejection(candidate=candidate.instance_id, stage="gold", reason=reason, detail=untaken)
        tests = {path: repository.entries[path].content for path in repository.test_files}
        try:
            asked, why = self._differential(candidate, fail_to_pass, statement, [*tests.values(), *_code(workspace)])
            chosen = twins.choose(self.session, repository.suite, tests, fail_to_pass)
        except SessionCrashed as error:
            asked, why, chosen = None, f"recording ended the runner: {error}"[:300], ()
        tried = list(self._mutants(candidate, fail_to_pass))
        alive = [m for m in tried if passes({**self._gold(candidate), m.path: m.source}, fail_to_pass)]
        unseen = [m for m in alive if asked is None or self._agrees(asked, {m.path: m.source}, fail_to_pass)]
        score = _share(len(tried) - len(alive), len(tried))
        if asked is None and score < MIN_SCORE:
            reason = "hidden tests accept wrong code, and no calls could be recorded"
            detail = f"mutation score {score:.2f}; {why}; {_named(alive)}"
            return Rejection(candidate=candidate.instance_id, stage="strength", reason=reason, detail=detail)
        cases = asked.cases if asked else ()
        return Guards(differential=asked, twins=chosen), Protection(
            n_mutants=len(tried),
            mutation_score=score,
            guarded_score=_share(len(tried) - len(unseen), len(tried)),
            n_twins=len(chosen),
            n_calls=sum(not case.mutated for case in cases),
            n_changed_calls=sum(case.mutated for case in cases),
            not_recorded=why,
        )

    def _not_taken(self, candidate: Candidate, workspace: tuple[ArchiveEntry, ...]) -> str:
        repository = self.repository
        rules = Rules.of(
            LANGUAGES[repository.environment.language],
            sources=repository.survey.project.sources,
            test_files=repository.test_files,
            workspace={entry.path: entry for entry in workspace},
        )
        problems = ((path, rules.problem(path)) for path in sorted(candidate.deletion.files))
        return "; ".join(f"{path}: {problem}" for path, problem in problems if problem)

    def _differential(
        self, candidate: Candidate, fail_to_pass: frozenset[str], statement: str, texts: list[bytes]
    ) -> tuple[Differential | None, str]:
        project, suite = self.repository.survey.project, self.repository.suite
        promised = set(re.findall(r"\w+", statement))
        found = [
            d for d in recordable([d.definition for d in candidate.deletion.deleted])
            if d.name in promised or (d.kind == "method" and d.name.startswith("__") and d.owner in promised)
        ]  # fmt: skip
        if not found:
            return None, "the statement names nothing that could be called"
        by_path: dict[str, dict[int, Definition]] = {}
        for number, definition in enumerate(found):
            by_path.setdefault(definition.path, {})[number] = definition
        files = {path: instrumented(project.sources[path], wanted) for path, wanted in by_path.items()}
        run = replace(suite.request(files=files, select=fail_to_pass), run_timeout_s=differential.RUN_TIMEOUT_S)
        asked, why = differential.record(
            self.session,
            self.other,
            run,
            [Target(module=project.sources[d.path].module, name=d.qualified_name) for d in found],
            tests=self.repository.test_files,
            hidden=twins.hidden_files(fail_to_pass),
            modules=self._modules(),
            visible=differential.visible_names(texts),
        )
        if asked is not None and self._agrees(asked, stubbed(project, candidate.deletion, Stub.NONE), fail_to_pass):
            return None, "the recorded calls do not tell the feature from a stub"
        return asked, why

    def _agrees(self, asked: Differential, files: Mapping[str, bytes | None], fail_to_pass: frozenset[str]) -> bool:
        hidden = twins.hidden_files(fail_to_pass)
        try:
            answers, _ = differential.replay(self.session, {**hidden, **files}, asked, self._modules())
        except SessionCrashed:
            return False
        return differential.compare(asked, answers).passes

    def _modules(self) -> list[str]:
        return [file.module for file in self.repository.survey.project.sources.values()]

    def _gold(self, candidate: Candidate) -> dict[str, bytes | None]:
        sources = self.repository.survey.project.sources
        return {path: sources[path].source for path in candidate.deletion.files}

    def _mutants(self, candidate: Candidate, fail_to_pass: frozenset[str]) -> Iterator[Mutant]:
        """Mutants of all files in turn."""
        baseline, sources = self.repository.survey.baseline, self.repository.survey.project.sources
        seconds = sum(baseline.seconds.get(test, 0.0) for test in fail_to_pass)
        limit = max(MIN_MUTANTS, min(MAX_MUTANTS, int(MUTATION_S / max(seconds, 0.01))))
        by_path: dict[str, list[Definition]] = {}
        for deleted in candidate.deletion.deleted:
            by_path.setdefault(deleted.definition.path, []).append(deleted.definition)
        each = [
            mutants(p, sources[p].source, wanted, limit=limit, seed=self.seed) for p, wanted in sorted(by_path.items())
        ]
        in_turn = (mutant for row in zip_longest(*each) for mutant in row if mutant is not None)
        yield from islice(in_turn, limit)


def _code(workspace: tuple[ArchiveEntry, ...]) -> Iterator[bytes]:
    return (entry.content for entry in workspace if entry.path.endswith(".py"))


def _share(part: int, whole: int) -> float:
    """No mutant at all proves nothing."""
    return round(part / whole, 4) if whole else 0.0


def _named(alive: list[Mutant]) -> str:
    return "; ".join(f"{m.definition}:{m.line} {m.operator}" for m in alive[:4])
