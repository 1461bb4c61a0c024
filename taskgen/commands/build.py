"""``taskgen build``: from repositories to a task set.

For each repository: make it ready, propose candidates, validate them in rounds, pack what is proven; with a target,
attempt what is packed and keep what lies in its band (``steered``). Whatever is done is recorded at once, so that the
same command goes on where it was stopped.
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
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from taskgen import __version__, candidates, steering, taskset
from taskgen.archive import ArchiveEntry
from taskgen.atomic import disk_faults
from taskgen.commands.calibrate import Options
from taskgen.commands.likelihood import surprises
from taskgen.commands.steered import (
    ATTEMPTS,
    ROLLOUTS,
    STAGE,
    OnStage,
    Steered,
    Target,
    one_at_a_time,
    pool_of,
    staging,
)
from taskgen.commands.summary import Progress, RepoSummary
from taskgen.errors import ConfigError, PolicyFault, PrerequisiteError, SandboxUnavailable, StoreError, TaskgenError
from taskgen.grading.grade import grade_intake
from taskgen.grading.intake import from_patch
from taskgen.grading.protect import Protector
from taskgen.grading.task import load
from taskgen.guards import Guards
from taskgen.leaks.gate import LeakGate
from taskgen.packing import Audited, Packed, pack
from taskgen.repository import Repository, prepare
from taskgen.rollout_file import RolloutFile, open_rollouts
from taskgen.sandbox import SandboxProvider
from taskgen.stopper import StoppableProvider, Stopper
from taskgen.store import RunState
from taskgen.types import SCHEMA_VERSION, Candidate, Evidence, Recipe, Rejection, RepoSpec, VerdictKind
from taskgen.validation import Proven, Validator

#: How long a stopped run waits for its threads.
STOP_S = 10.0
#: With less than this no result can be trusted: a test may have failed for want of room.
MIN_FREE_BYTES = 64 << 20
LITTLE_FREE_BYTES = 4 << 30
#: Changes when candidates must be decided anew: there is a check that older verdicts did not make.
CHECKS_VERSION = 3
#: Where a finished task lies, below the task set, while it is graded with its own gold patch.
_UNGRADED = Path(".taskgen") / "ungraded"
_Written = tuple[dict[str, Any], tuple[ArchiveEntry, ...], tuple[ArchiveEntry, ...], Guards]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the result depends on.

    Attributes:
        n_runs: how often the pristine suite and each candidate's tests run.
        full_runs: how many of a candidate's runs are of the whole suite.
        max_tasks: a limit per repository over all recipes, or None.
        target: the policy for which tasks are made, and the band; None: they are not attempted.
    """

    recipes: tuple[Recipe, ...]
    target: Target | None = None
    seed: int = 0
    n_runs: int = 3
    full_runs: int = 3
    max_tasks: int | None = None

    def digest(self) -> dict[str, Any]:
        """The settings as JSON, for the run state and build.json."""
        target = {} if self.target is None else {"target": self.target.digest(self.seed)}
        return {
            "seed": self.seed,
            "n_runs": self.n_runs,
            "full_runs": self.full_runs,
            "max_tasks": self.max_tasks,
            "recipes": {recipe.name: recipe.sha256 for recipe in self.recipes},
            **target,
        }

    @property
    def wanted(self) -> int:
        """How many tasks a repository should have where there is a target."""
        return self.max_tasks if self.max_tasks is not None else sum(recipe.max_tasks for recipe in self.recipes)


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
    target: Target | None = None
    rollouts: RolloutFile | None = None

    @property
    def recipes(self) -> Mapping[str, Recipe]:
        recipes, target = self.settings.recipes, self.target
        return {recipe.name: recipe for recipe in (recipes if target is None else target.recipes(recipes))}

    def recipe_of(self, candidate: Candidate) -> Recipe:
        """The recipe that proposed a candidate, as it was then."""
        recipe = self.recipes[candidate.recipe]
        return recipe if self.target is None else steering.with_knobs_of(recipe, candidate)

    def has(self, name: str) -> bool:
        """Whether a task that was accepted is there; one that lies out of the band need not be."""
        if self.target is None:
            return (self.out / "tasks" / name / taskset.ROW_FILE).exists()
        record = self.state.get(STAGE, name)
        if record is not None and not record["in_band"]:
            return True
        # Without a record it is to be attempted, and only those in the run's state are.
        places = [staging(self.out)] if record is None else [staging(self.out), self.out]
        return any((place / "tasks" / name / taskset.ROW_FILE).exists() for place in places)


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
        PolicyFault: the policy that tasks are made for does not answer.
    """
    with ExitStack() as stack:
        state = stack.enter_context(closing(RunState(out, settings.digest())))
        for place in (out, staging(out)):
            taskset.remove_leftovers(place)
        run = _Run(
            provider=StoppableProvider(provider, stopper), cache=cache, out=out, settings=settings,
            state=state, progress=progress, stopper=stopper, workers=max(1, jobs // max(1, len(specs))),
        )  # fmt: skip
        if (target := settings.target) is not None:
            run.target = replace(target, policy=one_at_a_time(target.policy))
            run.rollouts = stack.enter_context(open_rollouts(out / ROLLOUTS))
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

        def propose(recipes: Sequence[Recipe]) -> list[Candidate]:
            return candidates.propose(repository.survey, recipes, spec, repository.checkout.commit)

        if run.target is None:
            pool, note = propose(run.settings.recipes), ""
        else:
            pool, note = pool_of(run.target, propose, list(run.recipes.values()))
        summary.notes += (note,) if note else ()
        summary.proposed = len(pool)
        if run.target is None:
            on_stage("validation")
            _rounds(repository, pool, run, summary)
        else:
            _steered_rounds(repository, pool, run, run.target, summary, on_stage)
        on_stage("done")
    except (StoreError, PrerequisiteError, PolicyFault):
        raise
    except TaskgenError as error:
        if stage == ATTEMPTS and isinstance(error, ConfigError):  # the policy's: no repository can go on
            raise
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
                    summary.accept(candidate.recipe)
                run.progress.candidate(repository.spec.name, ok, len(tried), planned)


def _steered_rounds(
    repository: Repository, pool: list[Candidate], run: _Run, target: Target, summary: RepoSummary, on_stage: OnStage
) -> None:
    """As ``_rounds``, but what is tried next depends on what the policy solved."""
    assert run.rollouts is not None
    options = Options(
        design=target.design, sampling=target.sampling, provider=run.provider, cache=run.cache, jobs=run.workers,
        seed=run.settings.seed, stopper=run.stopper,
    )  # fmt: skip
    on_stage("likelihood")
    sources = {path: source.source for path, source in repository.survey.project.sources.items()}
    surprised = surprises(target.policy, target.sampling, pool, sources, run.state, run.stopper.check)
    steered = Steered(
        target, pool, out=run.out, state=run.state, file=run.rollouts, options=options, surprises=surprised
    )
    gate = LeakGate(repository=repository, pool=pool, cache=run.cache / "audits", jobs=run.workers)
    with _benches(repository, run) as benches:

        def sound(batch: Sequence[Candidate]) -> list[Candidate]:
            return [c for c, ok in _decide_all(batch, repository, run, benches, gate, summary) if ok]

        steered.run(run.settings.wanted, sound, summary, run.progress, on_stage)


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
                summary.reject(verdict["stage"], verdict["reason"])
            yield candidate, verdict["accepted"]


def _decide(candidate: Candidate, repository: Repository, run: _Run, bench: _Bench, gate: LeakGate) -> dict[str, Any]:
    """The verdict on a candidate: recorded, or found by audit, validation, packing and protection, then recorded."""
    recipe = run.recipe_of(candidate)
    key = _verdict_key(candidate, repository, recipe)
    known = run.state.get("verdict", key)
    if known is not None and (not known["accepted"] or run.has(candidate.instance_id)):
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
        place = run.out if run.target is None else staging(run.out)
        written = packed.row, packed.workspace, packed.tests, guards
        if refused := _gold_refused(written, run):
            taskset.remove_task(place, candidate.instance_id)
            verdict |= asdict(refused)
        else:
            taskset.write_task(place, *written)
            verdict |= {"accepted": True, "candidate": candidate.instance_id, "proven": asdict(result)}
            verdict["unpredicted"] = 1 if result.unpredicted else 0
    run.state.put("verdict", key, verdict)
    return verdict


def _gold_refused(written: _Written, run: _Run) -> Rejection | None:
    """The task as its users will grade it: why its own gold patch does not pass; None if it does.

    What validation ran is not all that grading runs: the differential check, another environment, another process. It
    lies elsewhere meanwhile: what is in the set was decided. Raises SandboxUnavailable for a fault of the machine.
    """
    folder = taskset.write_task(run.out / _UNGRADED, *written)
    try:
        task = load(folder)
        verdict = grade_intake(
            task, lambda: from_patch(task.row["patch"].encode(), task.rules), run.provider, run.cache
        )
    finally:
        taskset.remove_task(run.out / _UNGRADED, folder.name)
    if verdict.kind is VerdictKind.INFRA_ERROR:
        raise SandboxUnavailable(f"{folder.name}: its gold patch could not be graded: {verdict.reason}")
    if verdict.kind is VerdictKind.RESOLVED:
        return None
    return Rejection(candidate=folder.name, stage="gold", reason="its gold patch does not pass", detail=verdict.reason)


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
    refused = [v for v in verdicts if not v["accepted"]]
    refused += [record for record in run.state.all(STAGE).values() if not record["in_band"]]
    rejections = [{k: v[k] for k in ("candidate", "stage", "reason", "detail")} for v in refused]
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
