"""``taskgen build``: from repositories to a task set.

For each repository: make it ready, propose candidates, validate them in rounds, pack what is proven. Whatever is
done is recorded at once, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from taskgen import __version__, candidates, taskset
from taskgen.atomic import disk_faults
from taskgen.errors import PrerequisiteError, StoreError, TaskgenError
from taskgen.grading.protect import Protector
from taskgen.guards import Guards
from taskgen.leaks.gate import LeakGate
from taskgen.packing import Audited, Packed, pack
from taskgen.repository import Repository, prepare
from taskgen.sandbox import SandboxProvider
from taskgen.stopper import StoppableProvider, Stopper
from taskgen.store import RunState
from taskgen.types import SCHEMA_VERSION, Candidate, Evidence, Recipe, Rejection, RepoSpec
from taskgen.validation import Proven, Validator

#: How long a stopped run waits for its threads.
STOP_S = 10.0
#: With less than this no result can be trusted: a test may have failed for want of room.
MIN_FREE_BYTES = 64 << 20
LITTLE_FREE_BYTES = 4 << 30
#: Changes when candidates must be decided anew: there is a check that older verdicts did not make.
CHECKS_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the result depends on.

    Attributes:
        n_runs: how often the pristine suite and each candidate's tests run.
        full_runs: how many of a candidate's runs are of the whole suite.
        max_tasks: a limit per repository over all recipes, or None.
    """

    recipes: tuple[Recipe, ...]
    seed: int = 0
    n_runs: int = 3
    full_runs: int = 3
    max_tasks: int | None = None

    def digest(self) -> dict[str, Any]:
        """The settings as JSON, for the run state and build.json."""
        return {
            "seed": self.seed,
            "n_runs": self.n_runs,
            "full_runs": self.full_runs,
            "max_tasks": self.max_tasks,
            "recipes": {recipe.name: recipe.sha256 for recipe in self.recipes},
        }


@dataclass(kw_only=True)
class RepoSummary:
    """What came of a repository. ``error`` is set when it was skipped."""

    name: str
    commit: str = ""
    error: str = ""
    proposed: int = 0
    tried: int = 0
    accepted: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    unpredicted: int = 0
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def n_accepted(self) -> int:
        return sum(self.accepted.values())


class Progress(Protocol):
    """Told what happens, from several threads."""

    def stage(self, repo: str, stage: str) -> None:
        """A repository enters a stage."""

    def candidate(self, repo: str, accepted: bool, done: int, planned: int) -> None:
        """A candidate was decided; ``planned`` is how many this round and the earlier ones have."""

    def finished(self, summary: RepoSummary) -> None:
        """A repository is done or was skipped."""


@dataclass(kw_only=True)
class _Run:
    """What the stages of one command share."""

    provider: SandboxProvider
    cache: Path
    out: Path
    settings: Settings
    state: RunState
    progress: Progress
    stopper: Stopper
    workers: int

    @property
    def recipes(self) -> Mapping[str, Recipe]:
        return {recipe.name: recipe for recipe in self.settings.recipes}


def build(
    specs: Sequence[RepoSpec],
    settings: Settings,
    *,
    provider: SandboxProvider,
    cache: Path,
    out: Path,
    jobs: int,
    progress: Progress,
    stopper: Stopper,
) -> list[RepoSummary]:
    """Build a task set in ``out``; one summary a repository, in the order of ``specs``.

    A repository that cannot be used is reported and skipped. The tables are written whenever a repository is
    done, and at the end.

    Raises:
        StoreError: ``out`` or the cache cannot be used.
        Interrupted: ``stopper`` was asked to stop.
        PrerequisiteError: something is missing on this machine that every repository needs.
    """
    with closing(RunState(out, settings.digest())) as state:
        taskset.remove_leftovers(out)
        run = _Run(
            provider=StoppableProvider(provider, stopper), cache=cache, out=out, settings=settings,
            state=state, progress=progress, stopper=stopper, workers=max(1, jobs // max(1, len(specs))),
        )  # fmt: skip
        summaries: dict[str, RepoSummary] = {}
        pool = ThreadPoolExecutor(max_workers=max(1, min(jobs, len(specs))))
        pending = {pool.submit(_repository, spec, run): spec for spec in specs}
        try:
            faults = _collect(pending, run, summaries)
        except BaseException:
            stopper.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            # A thread that waits for a download or a lock cannot be stopped; it ends with the process.
            wait(pending, timeout=STOP_S)
            with suppress(StoreError):
                _write_tables(run, summaries)
            raise
        pool.shutdown()
        _write_tables(run, summaries)
        if faults:
            raise faults[0]
        return [summaries[spec.name] for spec in specs]


def _collect(
    pending: dict[Future[RepoSummary], RepoSpec], run: _Run, summaries: dict[str, RepoSummary]
) -> list[Exception]:
    """Wait for all repositories. A fault of taskgen's own ends one of them; the others go on before it is raised."""
    waiting, faults = set(pending), []
    while waiting:
        # Wakes up now and then, so that Ctrl-C is seen.
        done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
        for future, spec in pending.items():
            if future not in done:
                continue
            try:
                summary = future.result()
            except TaskgenError:
                raise
            except Exception as error:
                faults.append(error)
                summary = RepoSummary(name=spec.name, error=f"unexpected error: {error!r}")
            summaries[spec.name] = summary
            run.state.put("summary", spec.name, asdict(summary))
            run.progress.finished(summary)
        if done and waiting:
            _write_tables(run, summaries)
    return faults


def _repository(spec: RepoSpec, run: _Run) -> RepoSummary:
    summary = RepoSummary(name=spec.name)
    began, stage = time.monotonic(), "fetch"

    def on_stage(name: str) -> None:
        nonlocal began, stage
        run.stopper.check()
        now = time.monotonic()
        summary.seconds[stage] = round(summary.seconds.get(stage, 0.0) + now - began, 3)
        began, stage = now, name
        run.progress.stage(spec.name, name)

    try:
        repository = prepare(
            spec, run.provider, run.cache, n_runs=run.settings.n_runs, seed=run.settings.seed, on_stage=on_stage
        )
        summary.commit, summary.notes = repository.checkout.commit, repository.notes
        on_stage("candidates")
        pool = candidates.propose(repository.survey, run.settings.recipes, spec, repository.checkout.commit)
        summary.proposed = len(pool)
        on_stage("validation")
        _rounds(repository, pool, run, summary)
        on_stage("done")
    except (StoreError, PrerequisiteError):
        raise
    except TaskgenError as error:
        run.stopper.check()  # a sandbox that was closed under us is not a fault
        _must_have_room(run, str(error.args[0]))
        summary.error = f"{stage}: {error}"
    except OSError as error:
        with disk_faults(Path(error.filename or run.cache)):
            raise
    return summary


def _must_have_room(run: _Run, message: str) -> None:
    """Raises StoreError if a failure came of a full disk: there is no room, or little, and the message says so."""
    free = shutil.disk_usage(run.cache).free
    says_so = os.strerror(errno.ENOSPC) in message or "disk full" in message
    if free < MIN_FREE_BYTES or (free < LITTLE_FREE_BYTES and says_so):
        raise StoreError(
            f"the disk of {run.cache} is full ({free >> 20} MiB are free)\n  {message}",
            hint="free some space there, or name another cache with TASKGEN_CACHE, and repeat the command",
        )


# -- candidates ----------------------------------------------------------------------------------------


def _rounds(repository: Repository, pool: list[Candidate], run: _Run, summary: RepoSummary) -> None:
    """Validate in rounds: each fills the places that the rejections of the last one left open."""
    tried: dict[str, bool] = {}
    accepted: list[Candidate] = []
    limit = run.settings.max_tasks
    gate = LeakGate(repository=repository, pool=pool, cache=run.cache / "audits", jobs=run.workers)
    with _benches(repository, run) as benches:
        while batch := candidates.next_batch(pool, run.settings.recipes, accepted, tried):
            if limit is not None:
                batch = batch[: max(0, limit - len(accepted))]
            if not batch:
                break
            planned = len(tried) + len(batch)
            for candidate, ok in _decide_all(batch, repository, run, benches, gate, summary):
                tried[candidate.instance_id] = ok
                summary.tried = len(tried)
                if ok:
                    accepted.append(candidate)
                    summary.accepted[candidate.recipe] = summary.accepted.get(candidate.recipe, 0) + 1
                run.progress.candidate(repository.spec.name, ok, len(tried), planned)


@dataclass(frozen=True, slots=True)
class _Bench:
    """Where a thread decides candidates: the sessions of both are kept from one candidate to the next."""

    validator: Validator
    protector: Protector


@contextmanager
def _benches(repository: Repository, run: _Run) -> Iterator[list[_Bench]]:
    made = []
    for _ in range(run.workers):
        validator = Validator(
            session=repository.session(),
            survey=repository.survey,
            suite=repository.suite,
            recipes=run.recipes,
            n_runs=run.settings.n_runs,
            full_runs=run.settings.full_runs,
            build=repository.run_build if repository.environment.build_command else None,
        )
        other = repository.session(hash_seed=1 + run.settings.seed % 4_000_000_000)
        protector = Protector(repository=repository, session=validator.session, other=other, seed=run.settings.seed)
        made.append(_Bench(validator, protector))
    try:
        yield made
    finally:
        for bench in made:
            bench.validator.session.close()
            bench.protector.other.close()


def _decide_all(
    batch: Sequence[Candidate],
    repository: Repository,
    run: _Run,
    benches: Sequence[_Bench],
    gate: LeakGate,
    summary: RepoSummary,
) -> Iterator[tuple[Candidate, bool]]:
    """Decide a batch, each bench working through its share; yields in the batch's order."""
    with ThreadPoolExecutor(max_workers=len(benches)) as threads:
        idle = list(benches)
        mutex = threading.Lock()

        def decide(candidate: Candidate) -> dict[str, Any]:
            run.stopper.check()
            with mutex:
                bench = idle.pop()
            try:
                return _decide(candidate, repository, run, bench, gate)
            finally:
                with mutex:
                    idle.append(bench)

        for candidate, verdict in zip(batch, threads.map(decide, batch), strict=True):
            summary.unpredicted += verdict.get("unpredicted", 0)
            if not verdict["accepted"]:
                reason = f"{verdict['stage']}: {verdict['reason']}"
                summary.rejected[reason] = summary.rejected.get(reason, 0) + 1
            yield candidate, verdict["accepted"]


def _decide(candidate: Candidate, repository: Repository, run: _Run, bench: _Bench, gate: LeakGate) -> dict[str, Any]:
    """The verdict on a candidate: recorded, or found by audit, validation, packing and protection, then recorded."""
    recipe = run.recipes[candidate.recipe]
    key = _verdict_key(candidate, repository, recipe)
    known = run.state.get("verdict", key)
    folder = run.out / "tasks" / candidate.instance_id
    if known is not None and (not known["accepted"] or (folder / taskset.ROW_FILE).exists()):
        return dict(known)
    validator, guards = bench.validator, Guards()
    # The audit costs less than the first run of tests.
    result = gate.check(candidate) or (_proven(known) if known is not None else validator.validate(candidate))
    packed: Packed | Rejection
    if isinstance(result, Rejection):
        packed = result
    else:
        hidden = frozenset(result.fail_to_pass)
        haul = gate.rob(candidate, lambda theft: float(validator.passes(candidate, theft.files, hidden)))
        audited = Audited(environment_bytes=gate.n_bytes, thief_reward=haul.reward)
        packed = pack(repository, candidate, result, recipe, audited)
        if isinstance(packed, Packed):
            protected = bench.protector.protect(
                candidate, hidden, packed.row["problem_statement"], packed.workspace,
                lambda files, tests: validator.passes(candidate, files, tests),
            )  # fmt: skip
            if isinstance(protected, Rejection):
                packed = protected
            else:
                guards, protection = protected
                packed.row["checks"] |= asdict(protection)
    verdict: dict[str, Any] = {"accepted": False, "repo": repository.spec.name}
    run.stopper.check()  # a run that was cut off says nothing about its candidate
    if isinstance(packed, Rejection):
        _must_have_room(run, packed.detail)
        taskset.remove_task(run.out, candidate.instance_id)
        verdict |= asdict(packed)
    else:
        assert isinstance(result, Proven)
        taskset.write_task(run.out, packed.row, packed.workspace, packed.tests, guards)
        verdict |= {"accepted": True, "candidate": candidate.instance_id, "proven": asdict(result)}
        verdict["unpredicted"] = 1 if result.unpredicted else 0
    run.state.put("verdict", key, verdict)
    return verdict


def _verdict_key(candidate: Candidate, repository: Repository, recipe: Recipe) -> str:
    parts = [CHECKS_VERSION, candidate.instance_id, repository.environment.key, repository.suite.args, recipe.sha256]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _proven(verdict: Mapping[str, Any]) -> Proven:
    value = dict(verdict["proven"])
    evidence = {**value.pop("evidence")}
    evidence["flaky"] = tuple(evidence["flaky"])
    return Proven(evidence=Evidence(**evidence), **{name: tuple(listed) for name, listed in value.items()})


# -- tables --------------------------------------------------------------------------------------------


def _write_tables(run: _Run, summaries: Mapping[str, RepoSummary]) -> None:
    """Write the tables over all that is recorded, that of earlier runs into this folder included."""
    verdicts = run.state.all("verdict").values()
    ids = sorted({v["candidate"] for v in verdicts if v["accepted"]})
    present = [name for name in ids if (run.out / "tasks" / name / taskset.ROW_FILE).exists()]
    rejections = [{k: v[k] for k in ("candidate", "stage", "reason", "detail")} for v in verdicts if not v["accepted"]]
    known = run.state.all("summary") | {name: asdict(summary) for name, summary in summaries.items()}
    totals: Counter[str] = Counter()
    for rejection in rejections:
        totals[rejection["stage"]] += 1
    taskset.write_tables(
        run.out,
        present,
        rejections,
        {
            "taskgen": __version__,
            "schema_version": SCHEMA_VERSION,
            "settings": run.settings.digest(),
            "seed": run.settings.seed,
            "sandbox": {"name": run.provider.name, "fingerprint": run.provider.fingerprint()},
            "counts": {"accepted": len(present), **{f"rejected at {stage}": n for stage, n in sorted(totals.items())}},
            "repos": [known[name] for name in sorted(known)],
        },
    )
