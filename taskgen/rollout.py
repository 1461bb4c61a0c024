"""Attempts of one turn: a policy is asked in batches, what it writes is graded side by side, recorded as it ends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from taskgen import fill, hardness
from taskgen.attempts import Attendance, Grader, OnRollout, Recorder, Request, fault_of, graded, loaded
from taskgen.errors import PolicyFault, PrerequisiteError, StoreError, TaskgenError
from taskgen.fill import CannotFill, Site
from taskgen.policies.policy import Completion, Form, Policy, Prompt, Sampled, Sampling
from taskgen.policies.select import Chosen, choose
from taskgen.rollout_file import COST, PROMPT_TOKENS, SECONDS, TOKENS, RolloutFile
from taskgen.sandbox import SandboxProvider
from taskgen.stopper import StoppableProvider, Stopper
from taskgen.types import Turn

ATTEMPT = "fill"


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
        self.policy, self.sampling = policy, sampling
        self.run = run_key(policy, sampling, seed)
        name = f"{policy.name}@{policy.version}"
        self._recorder = Recorder(self.run, ATTEMPT, name, sampling, seed, file, on_rollout)
        self._jobs, self._stopper, self._attendance = jobs, stopper or Stopper(), Attendance()
        self._grader = Grader(StoppableProvider(provider, self._stopper), cache, file.grades)

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
        seeds = [[self._recorder.seed_of(request) for request in group] for _, group in groups]
        answers = self.policy.complete(prompts, seeds, self.sampling)
        found = [
            (request, prompt, sample)
            for (_, group), prompt, samples in zip(groups, prompts, answers, strict=True)
            for request, sample in zip(group, samples, strict=True)
        ]
        self._attendance.notice([sample for *_, sample in found])
        yield from found

    def _prompt(self, folder: Path) -> Prompt:
        task = loaded(folder)
        site = fill.site_of(task)
        if isinstance(site, Site):
            return fill.prompt_of(task, folder, site, self.sampling.context_chars)
        # Only controls are asked here: they give whole patches, and need no place to write to.
        turn = Turn(role="user", text=str(task.row["problem_statement"]))
        return Prompt(instance_id=folder.name, folder=folder, text="", indent="", messages=(turn,))

    def _finish(self, request: Request, prompt: Prompt, sampled: Sampled) -> None:
        """Grade a sample and record it."""
        try:
            if isinstance(sampled, PolicyFault):
                raise sampled
            reward: float | None
            digest, grade, seconds = self._grader.grade(request.folder, _patch(request.folder, sampled))
            reward, extra = grade.reward, graded(grade, digest, seconds)
        except StoreError:
            raise
        except TaskgenError as error:
            reward, extra = None, fault_of(error)
        # A sandbox that was closed because the run is being stopped is no fault.
        self._stopper.check()
        turns = () if isinstance(sampled, PolicyFault) else turns_of(prompt, sampled)
        self._recorder.record(request, turns, reward, {**_costs(sampled), **extra})


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
