"""Groups of rollouts: sampled from the policy under training, graded beside it, told what they earned and why."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from taskgen import fill
from taskgen.attempts import Grader, loaded
from taskgen.behaviour import BehaviourConfig, Effort, effort_for, shape, with_effort
from taskgen.errors import TaskgenError
from taskgen.fill import Site
from taskgen.hints.attempt import attempt_of
from taskgen.hints.context import hinted
from taskgen.hints.rules import Hint
from taskgen.hints.writer import Hinter
from taskgen.monitor import masks, monitor
from taskgen.policies.local import question_of
from taskgen.policies.policy import Completion, Prompt, Sampling
from taskgen.rollout import turns_of
from taskgen.rollout_file import (
    EARNED,
    FAULT,
    GRADING_SECONDS,
    INDEX,
    PATCH_SHA256,
    REASON,
    RUN,
    TOKENS,
    VERDICT,
    Grade,
    RolloutFile,
)
from taskgen.stopper import Stopper
from taskgen.training.learner import Learner
from taskgen.training.samples import HINT, STEP
from taskgen.types import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rollouts of one task that nobody has graded yet.

    Attributes:
        batch: which batch of groups it came with; with the task and the run's seed it gives the samples' seeds.
        step: updates of the policy that sampled it.
    """

    instance_id: str
    batch: int
    step: int
    prompt_ids: tuple[int, ...]
    samples: tuple[Completion, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one rollout earned.

    Attributes:
        reward: to learn from; None: not known (a fault), or taken away by the monitor.
        passed: whether it solved the task, whatever its behaviour; None: not known.
        rule: the rule of its hint, or ''.
        hinted: the prompt with the hint, as the trainer reads it; None without one.
    """

    reward: float | None
    passed: bool | None
    masked: bool = False
    fault: str = ""
    rule: str = ""
    hinted: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """A group and what its rollouts earned."""

    group: Group
    outcomes: tuple[Outcome, ...]

    @property
    def has_signal(self) -> bool:
        """Two known rewards that differ."""
        return len({outcome.reward for outcome in self.outcomes if outcome.reward is not None}) > 1

    @property
    def known(self) -> tuple[int, int]:
        """Rollouts that were graded, and those of them that passed."""
        graded = [outcome.passed for outcome in self.outcomes if outcome.passed is not None]
        return len(graded), sum(graded)

    def as_request(self, *, teaches: bool) -> dict[str, Any]:
        """As the trainer learns from it; ``teaches``: its hints are taught, too."""
        return {
            "prompt": {"ids": list(self.group.prompt_ids)},
            "samples": [list(sample.token_ids or ()) for sample in self.group.samples],
            "behaviour": [list(sample.logps or ()) for sample in self.group.samples],
            "rewards": [outcome.reward for outcome in self.outcomes],
            "hinted": [i for i, outcome in enumerate(self.outcomes) if outcome.hinted is not None and teaches],
        }

    def turns(self) -> list[dict[str, Any]]:
        """Its turns with a hint, as the trainer is taught them."""
        return [
            {
                "context": {"ids": list(self.group.prompt_ids)}, "hinted": dict(outcome.hinted),
                "tokens": list(sample.token_ids or ()), "behaviour": list(sample.logps or ()),
            }
            for sample, outcome in zip(self.group.samples, self.outcomes, strict=True)
            if outcome.hinted is not None
        ]  # fmt: skip


class Sampler:
    """Makes groups, and grades them in threads of its own.

    Args:
        folders: instance_id -> the task's folder; of tasks that can be attempted by writing one body; more may come.
        label: part of all seeds and of the rollouts' ids: ``train``, ``heldout``.
    """

    def __init__(
        self, learner: Learner, folders: dict[str, Path], sampling: Sampling, *, seed: int, label: str,
        behaviour: BehaviourConfig, hinter: Hinter | None, grader: Grader, file: RolloutFile, pool: ThreadPoolExecutor,
        stopper: Stopper,
    ) -> None:  # fmt: skip
        self.folders = folders
        self._learner, self._sampling, self._seed, self._label = learner, sampling, seed, label
        self._behaviour, self._hinter = behaviour, hinter
        self._grader, self._file, self._pool, self._stopper = grader, file, pool, stopper

    def sample(self, tasks: Sequence[str], size: int, batch: int) -> list[Group]:
        """``size`` rollouts of each task, by the policy as it is now. Raises PolicyFault: the trainer was lost."""
        questions = [question_of(self._prompt(task, batch)[0], self._learner.form) for task in tasks]
        seeds = [[self._sample_seed(task, batch, i) for i in range(size)] for task in tasks]
        found = self._learner.generate(questions, seeds, self._sampling)
        return [
            Group(
                instance_id=task, batch=batch, step=self._learner.step, prompt_ids=sampled.prompt_ids,
                samples=sampled.samples,
            )
            for task, sampled in zip(tasks, found, strict=True)
        ]  # fmt: skip

    def grade(self, group: Group) -> Callable[[], Graded]:
        """Begin to grade a group; what is returned waits for it. It raises what grading raises that is no fault of one
        rollout: StoreError, ConfigError, Interrupted."""
        futures = [self._pool.submit(self._graded, group, sample) for sample in group.samples]

        def wait() -> Graded:
            grades = [future.result() for future in futures]
            return Graded(group=group, outcomes=tuple(self._outcomes(group, grades)))

        return wait

    def _prompt(self, task: str, batch: int) -> tuple[Prompt, Site, Effort | None]:
        folder = self.folders[task]
        site = fill.site_of(loaded(folder))
        assert isinstance(site, Site)  # others were left out beforehand
        prompt = fill.prompt_of(loaded(folder), folder, site, self._sampling.context_chars)
        effort = effort_for(self._behaviour, f"{self._seed} {batch} {task}")
        return (with_effort(prompt, effort, self._learner.form) if effort else prompt), site, effort

    def _sample_seed(self, task: str, batch: int, index: int) -> int:
        words = f"{self._seed}\0{self._label}\0{task}\0{batch}\0{index}".encode()
        return int.from_bytes(hashlib.sha256(words).digest()[:7], "big")

    def _graded(self, group: Group, sample: Completion) -> _Grading:
        folder = self.folders[group.instance_id]
        task = loaded(folder)
        site = fill.site_of(task)
        assert isinstance(site, Site)
        try:
            digest, grade, seconds = self._grader.grade(folder, fill.patch_of(task, site, sample))
        except TaskgenError as error:
            self._stopper.check()  # a sandbox that was closed because the run is being stopped is no fault
            return _Grading(None, "", 0.0, f"{type(error).__name__}: {error.args[0]}")
        return _Grading(grade, digest, seconds, "")

    def _outcomes(self, group: Group, grades: Sequence[_Grading]) -> list[Outcome]:
        prompt, site, effort = self._prompt(group.instance_id, group.batch)
        right = [
            sample.n_tokens
            for sample, found in zip(group.samples, grades, strict=True)
            if found.grade is not None and found.grade.reward > 0
        ]
        attempts = [
            attempt_of(
                prompt, sample, site, found.grade, budget_tokens=effort.budget_tokens if effort else None,
                right_tokens=tuple(right),
            )
            for sample, found in zip(group.samples, grades, strict=True)
        ]  # fmt: skip
        hints = self._hinter.hints(attempts) if self._hinter is not None else [None] * len(attempts)
        outcomes = []
        for index, (sample, found, hint) in enumerate(zip(group.samples, grades, hints, strict=True)):
            outcome = self._outcome(prompt, sample, found, hint, effort)
            rollout = self._rollout(group, index, prompt, sample, found, outcome, hint)
            if masks(monitor(rollout)):
                outcome = replace(outcome, reward=None, masked=True)
                rollout = replace(rollout, reward=None)
            self._file.append(rollout)
            outcomes.append(outcome)
        return outcomes

    def _outcome(
        self, prompt: Prompt, sample: Completion, found: _Grading, hint: Hint | None, effort: Effort | None
    ) -> Outcome:
        earned = None if found.grade is None else found.grade.reward
        shaped = shape(earned, sample.text, sample.form, self._behaviour, n_tokens=sample.n_tokens, effort=effort)
        return Outcome(
            reward=shaped.reward,
            passed=None if earned is None else earned > 0,
            fault=found.fault,
            rule=hint.rule if hint else "",
            hinted=question_of(hinted(prompt, hint, sample.form), sample.form) if hint else None,
        )

    def _rollout(
        self, group: Group, index: int, prompt: Prompt, sample: Completion, found: _Grading, outcome: Outcome,
        hint: Hint | None,
    ) -> Rollout:  # fmt: skip
        extra: dict[str, Any] = {
            RUN: self._label, INDEX: index, STEP: group.step, "batch": group.batch, "sampling": asdict(self._sampling),
            TOKENS: sample.n_tokens, GRADING_SECONDS: round(found.seconds, 3),
        }  # fmt: skip
        if found.grade is not None:
            extra |= {
                PATCH_SHA256: found.digest, VERDICT: found.grade.kind, REASON: found.grade.reason,
                EARNED: found.grade.reward,
            }  # fmt: skip
        else:
            extra |= {FAULT: found.fault}
        if hint is not None:
            extra |= {HINT: f"{hint.rule}: {hint.text}"}
        return Rollout(
            rollout_id=f"{group.instance_id}-{self._label}-{group.step}-{group.batch}-{index}",
            instance_id=group.instance_id,
            policy=f"step {group.step}",
            turns=turns_of(prompt, sample),
            reward=outcome.reward,
            repo=str(loaded(self.folders[group.instance_id]).row["repo"]),
            extra=extra,
        )


@dataclass(frozen=True, slots=True)
class _Grading:
    """``grade``: None for a fault, which ``fault`` tells."""

    grade: Grade | None
    digest: str
    seconds: float
    fault: str
