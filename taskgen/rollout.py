"""Attempts of a policy at tasks: asked in batches, graded side by side, recorded one by one as they end."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from taskgen import fill, hardness
from taskgen.errors import PolicyFault, PrerequisiteError, StoreError, TaskgenError
from taskgen.fill import CannotFill, Site
from taskgen.grading.grade import grade_intake
from taskgen.grading.intake import from_patch
from taskgen.grading.task import Task, load
from taskgen.policies.policy import Completion, Form, Policy, Prompt, Sampled, Sampling
from taskgen.policies.select import Chosen, choose
from taskgen.rollout_file import (
    COST,
    FAULT,
    GRADING_SECONDS,
    INDEX,
    PATCH_SHA256,
    PROMPT_TOKENS,
    REASON,
    RUN,
    SECONDS,
    TOKENS,
    VERDICT,
    Grade,
    RolloutFile,
)
from taskgen.sandbox import SandboxProvider
from taskgen.stopper import StoppableProvider, Stopper
from taskgen.types import Rollout, Turn, VerdictKind

ATTEMPT = "fill"
#: Batches in a row without one answer, after which a policy counts as gone.
DEAD_BATCHES = 2
#: Workspaces that are kept in memory.
_KEPT_TASKS = 32
OnRollout = Callable[[Rollout], None]


class GradingFault(TaskgenError):
    """Grading could not be done: an infrastructure fault, which says nothing about the patch."""


@dataclass(frozen=True, slots=True)
class Request:
    """One attempt that is wanted: ``index`` counts the attempts at a task from 0."""

    folder: Path
    index: int


@lru_cache(maxsize=_KEPT_TASKS)
def loaded(folder: Path) -> Task:
    """A task; the last ones are kept. Raises FormatError."""
    return load(folder)


class Grader:
    """Grades patches; the same patch of a task is graded once, also by an earlier run into the same file."""

    def __init__(self, provider: SandboxProvider, cache: Path, known: dict[tuple[str, str], Grade]) -> None:
        self._provider, self._cache, self._known = provider, cache, known
        self._locks: dict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)

    def grade(self, folder: Path, patch: bytes) -> tuple[str, Grade, float]:
        """The patch's digest, its grade, and the seconds that this call spent on it.

        Raises GradingFault, or any TaskgenError of a sandbox or an environment that cannot be had.
        """
        digest = hashlib.sha256(patch).hexdigest()
        key = folder.name, digest
        with self._locks[key]:
            if key in self._known:
                return digest, self._known[key], 0.0
            task = loaded(folder)
            verdict = grade_intake(
                task, lambda: from_patch(patch, task.rules), self._provider, self._cache, fail_fast=True
            )
            if verdict.kind is VerdictKind.INFRA_ERROR:
                raise GradingFault(f"grading: {verdict.reason}")
            grade = Grade(float(verdict.kind is VerdictKind.RESOLVED), verdict.kind.value, verdict.reason)
            self._known[key] = grade
        return digest, grade, verdict.seconds


class Collector:
    """Makes rollouts of one policy with one way of sampling.

    Attributes:
        run: names policy, version, sampling and seed; rollouts of one run are attempts of one thing.
    """

    def __init__(
        self, policy: Policy, sampling: Sampling, *, seed: int, provider: SandboxProvider, cache: Path,
        file: RolloutFile, jobs: int, on_rollout: OnRollout, stopper: Stopper | None = None,
    ) -> None:  # fmt: skip
        """``stopper``: that of the run which these attempts are part of; their own, if they are all of it."""
        self.policy, self.sampling, self.file = policy, sampling, file
        self.run = run_key(policy, sampling, seed)
        self._seed, self._jobs, self._on_rollout = seed, jobs, on_rollout
        self._stopper = stopper or Stopper()
        self._grader = Grader(StoppableProvider(provider, self._stopper), cache, file.grades)
        self._unanswered = 0

    def collect(self, requests: Sequence[Request]) -> None:
        """Make and record the rollouts that are wanted; tasks' attempts must stand together.

        A fault of one (endpoint, sandbox, environment) is recorded without a reward and leaves the others alone.

        Raises:
            PolicyFault: the policy has answered nothing for ``DEAD_BATCHES`` batches.
            PrerequisiteError, ConfigError: the policy is not there, or refuses.
            StoreError: rollouts cannot be written.
            Interrupted: what was recorded stays; what was in flight is lost.
        """
        pool = ThreadPoolExecutor(self._jobs)
        futures: list[Future[None]] = []
        try:
            for batch in _batches(requests, self.policy.batch):
                for request, prompt, sampled in self._sampled(batch):
                    futures.append(pool.submit(self._finish, request, prompt, sampled))
                futures = _waited(futures, at_most=self.policy.batch)
            _waited(futures, at_most=0)
        except BaseException:
            self._stopper.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()

    def _sampled(self, batch: Sequence[Request]) -> Iterator[tuple[Request, Prompt, Sampled]]:
        groups = [(folder, list(group)) for folder, group in groupby(batch, key=lambda request: request.folder)]
        prompts = [self._prompt(folder) for folder, _ in groups]
        seeds = [[self._seed_of(request) for request in group] for _, group in groups]
        answers = self.policy.complete(prompts, seeds, self.sampling)
        found = [
            (request, prompt, sample)
            for (_, group), prompt, samples in zip(groups, prompts, answers, strict=True)
            for request, sample in zip(group, samples, strict=True)
        ]
        self._notice_death([sample for *_, sample in found])
        yield from found

    def _notice_death(self, samples: Sequence[Sampled]) -> None:
        faults = [sample for sample in samples if isinstance(sample, PolicyFault)]
        self._unanswered = self._unanswered + 1 if len(faults) == len(samples) else 0
        if self._unanswered >= DEAD_BATCHES:
            raise PolicyFault(
                f"{self._unanswered} batches in a row without an answer: {faults[-1].args[0]}",
                hint="the rollouts so far are kept; repair the policy and give the same command again",
            )

    def _prompt(self, folder: Path) -> Prompt:
        task = loaded(folder)
        site = fill.site_of(task)
        if isinstance(site, Site):
            return fill.prompt_of(task, folder, site, self.sampling.context_chars)
        # Only controls are asked here: they give whole patches, and need no place to write to.
        turn = Turn(role="user", text=str(task.row["problem_statement"]))
        return Prompt(instance_id=folder.name, folder=folder, text="", indent="", messages=(turn,))

    def _seed_of(self, request: Request) -> int:
        words = f"{self._seed}\0{request.folder.name}\0{request.index}".encode()
        return int.from_bytes(hashlib.sha256(words).digest()[:7], "big")

    def _finish(self, request: Request, prompt: Prompt, sampled: Sampled) -> None:
        """Grade a sample and record it."""
        try:
            if isinstance(sampled, PolicyFault):
                raise sampled
            digest, grade, seconds = self._grader.grade(request.folder, _patch(request.folder, sampled))
            extra: dict[str, Any] = {PATCH_SHA256: digest, VERDICT: grade.kind, REASON: grade.reason}
            reward, extra[GRADING_SECONDS] = grade.reward, round(seconds, 3)
        except StoreError:
            raise
        except TaskgenError as error:
            reward, extra = None, {FAULT: f"{type(error).__name__}: {error.args[0]}"}
        # A sandbox that was closed because the run is being stopped is no fault.
        self._stopper.check()
        rollout = self._rollout(request, prompt, sampled, reward, extra)
        self.file.append(rollout)
        self._on_rollout(rollout)

    def _rollout(
        self, request: Request, prompt: Prompt, sampled: Sampled, reward: float | None, extra: dict[str, Any]
    ) -> Rollout:
        faults = len(self.file.tally(self.run, request.folder.name).faults)
        mark = "" if reward is not None else f"-fault{faults}"
        return Rollout(
            rollout_id=f"{request.folder.name}-{self.run}-{request.index}{mark}",
            instance_id=request.folder.name,
            policy=f"{self.policy.name}@{self.policy.version}",
            turns=() if isinstance(sampled, PolicyFault) else turns_of(prompt, sampled),
            reward=reward,
            repo=str(loaded(request.folder).row["repo"]),
            extra={
                RUN: self.run, INDEX: request.index, "attempt": ATTEMPT, "seed": self._seed_of(request),
                "sampling": asdict(self.sampling), **_costs(sampled), **extra,
            },
        )  # fmt: skip


def cannot_attempt(folder: Path, policy: Policy) -> str:
    """Why a policy cannot attempt a task; '' if it can. Raises FormatError: the task is not whole."""
    if policy.form is Form.PATCH:
        return ""
    site = fill.site_of(loaded(folder))
    return site.reason if isinstance(site, CannotFill) else ""


def policy_named(text: str, cache: Path) -> Chosen:
    """The policy that ``--policy`` names, with what the scripted one must know of tasks. Raises as ``choose``."""
    return choose(
        text,
        cache,
        body_of=lambda prompt: fill.gold_body(loaded(prompt.folder)),
        hardness_of=lambda prompt: hardness.hardness_of(loaded(prompt.folder)),
    )


def run_key(policy: Policy, sampling: Sampling, seed: int) -> str:
    """Ten hex digits that stand for all that the attempts of a run have in common."""
    parts = [ATTEMPT, policy.name, policy.version, asdict(sampling), seed]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def turns_of(prompt: Prompt, completion: Completion) -> tuple[Turn, ...]:
    """What was asked and answered. Token ids and log-probabilities are kept as they were sampled, beside the text."""
    ids = {} if completion.prompt_ids is None else {"token_ids": list(completion.prompt_ids)}
    if completion.form is Form.CONTINUATION:
        asked: tuple[Turn, ...] = (Turn(role="user", text=prompt.text, extra=ids),)
    else:
        asked = (*prompt.messages[:-1], Turn(role="user", text=prompt.messages[-1].text, extra=ids))
    extra: dict[str, Any] = {"finish_reason": completion.finish_reason}
    if completion.token_ids is not None and completion.logps is not None:
        extra |= {"token_ids": list(completion.token_ids), "logps": list(completion.logps)}
    return (*asked, Turn(role="assistant", text=completion.text, extra=extra))


def _costs(sampled: Sampled) -> dict[str, Any]:
    if isinstance(sampled, PolicyFault):
        return {COST: 0.0}
    return {
        TOKENS: sampled.n_tokens,
        PROMPT_TOKENS: sampled.n_prompt_tokens,
        SECONDS: round(sampled.seconds, 4),
        COST: sampled.cost_usd,
    }


def _patch(folder: Path, completion: Completion) -> bytes:
    if completion.form is Form.PATCH:
        return completion.text.encode("utf-8", "surrogateescape")
    task = loaded(folder)
    site = fill.site_of(task)
    if isinstance(site, CannotFill):
        raise PrerequisiteError(f"{folder.name} cannot be attempted: {site.reason}")
    return fill.patch_of(task, site, completion)


def _batches(requests: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    for start in range(0, len(requests), size):
        yield requests[start : start + size]


def _waited(futures: list[Future[None]], *, at_most: int) -> list[Future[None]]:
    """Wait, oldest first, until at most so many are open. Raises what one of them raised."""
    while len(futures) > at_most:
        futures.pop(0).result()
    return futures
