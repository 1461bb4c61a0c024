"""The loop of ``taskgen train``: sample groups, grade them beside the trainer, learn from those with signal.

Batches of groups are numbered, and what a batch holds depends on the run's seed, its number and on what was learnt and
graded before it, never on timing: with ``staleness`` 1, batch b + 1 is sampled before batch b is learnt from, always.
So a run that was killed makes the same batches again from its last checkpoint on.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from taskgen.errors import TaskgenError
from taskgen.training import state as states
from taskgen.training.config import TrainConfig
from taskgen.training.curriculum import Pool, Seen, draw, pools
from taskgen.training.evaluation import Evaluation
from taskgen.training.groups import Graded, Sampler
from taskgen.training.learner import Learner
from taskgen.training.metrics import MetricsWriter, StepRecord
from taskgen.training.orders import Orders
from taskgen.training.progress import TrainingProgress
from taskgen.training.state import Counted, RunState

#: Batches in a row in which no group had signal, after which the tasks are not worth going on with.
MAX_BARREN = 12
#: How much of the share of groups with signal is remembered from batch to batch.
_SIGNAL_MEMORY = 0.7
#: At most so many times the wanted groups are sampled at once to make up for those without signal.
_MOST_EXTRA = 3


@dataclass(slots=True)
class _Clock:
    """Wall seconds of the parts of a step. ``grade``: those that were waited for."""

    generate: float = 0.0
    grade: float = 0.0
    learn: float = 0.0


@dataclass(slots=True, kw_only=True)
class Loop:
    """One run. ``stop``: set when the run is to end behind the step of now; ``size_of_rollouts``: of their file."""

    config: TrainConfig
    learner: Learner
    sampler: Sampler
    evaluation: Evaluation
    metrics: MetricsWriter
    progress: TrainingProgress
    state: RunState
    stop: threading.Event
    orders: Orders | None
    size_of_rollouts: Callable[[], int]
    _clock: _Clock = field(default_factory=_Clock)
    _waits: list[Callable[[], Graded]] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Go on until the last step, or until ``stop`` is set; then a checkpoint is written.

        Raises:
            PolicyFault: the trainer was lost.
            TaskgenError: no group has signal any more.
            StoreError, ConfigError, Interrupted: as grading raises them.
        """
        self._waits = [self.sampler.grade(group) for group in self.state.pending]
        self._began = time.monotonic() - self.state.seconds
        saved = self.learner.step
        self._evaluate()
        while self.learner.step < self.config.steps and not self.stop.is_set():
            before = self.learner.step
            self._batch()
            if self.learner.step > before:
                self._evaluate()
            if self.learner.step - saved >= self.config.checkpoint.every:
                self._save()
                saved = self.learner.step
        self._record_evaluations(wait=True)
        self._save()

    # --- One batch ---------------------------------------------------------------------------------------

    def _batch(self) -> None:
        """Sample a batch, take in the grades of the one before it (or its own), and learn if there is enough."""
        ahead = self.config.staleness > 0
        earlier = list(zip(self.state.pending, self._waits, strict=True))
        self._sample()
        if not ahead:
            earlier, self._waits, self.state.pending = list(zip(self.state.pending, self._waits, strict=True)), [], []
        else:
            n = len(earlier)
            self.state.pending, self._waits = self.state.pending[n:], self._waits[n:]
        with _timed(self._clock, "grade"):
            graded = [wait() for _, wait in earlier]
        self._take(graded)
        self._order()
        self._record_evaluations(wait=False)
        if len(self.state.ready) >= self.config.groups:
            self._learn()

    def _sample(self) -> None:
        tasks = draw(
            list(self.sampler.folders), self.state.seen, self._wanted(), self.config.curriculum,
            random.Random(f"{self.config.seed} {self.state.batch}"),
        )  # fmt: skip
        with _timed(self._clock, "generate"):
            groups = self.sampler.sample(tasks, self.config.group_size, self.state.batch)
        self.state.batch += 1
        self.state.pending += groups
        self._waits += [self.sampler.grade(group) for group in groups]

    def _wanted(self) -> int:
        """How many groups make up a step, when as many of them have signal as lately."""
        missing = max(1, self.config.groups - len(self.state.ready))
        return min(math.ceil(missing / max(self.state.signal, 0.01)), _MOST_EXTRA * self.config.groups)

    def _take(self, graded: Sequence[Graded]) -> None:
        state, memory = self.state, self.config.curriculum.memory
        for found in graded:
            state.counted.add(found)
            known, passed = found.known
            if known:
                seen = state.seen.get(found.group.instance_id, Seen())
                state.seen[found.group.instance_id] = seen.after(known, passed, memory)
            if found.has_signal:
                state.ready.append(found)
            elif found.turns():
                state.taught.append(found)
        if graded:
            share = sum(found.has_signal for found in graded) / len(graded)
            state.signal = _SIGNAL_MEMORY * state.signal + (1 - _SIGNAL_MEMORY) * share
            state.barren = 0 if share else state.barren + 1
        self._drop_stale()
        if state.barren >= MAX_BARREN:
            rate = state.counted.n_passed / max(1, state.counted.n_known)
            raise TaskgenError(
                f"train: {state.barren} batches in a row had no group with signal (pass rate {rate:.2f})",
                hint="choose tasks in the policy's band (taskgen calibrate), or larger groups",
            )

    def _order(self) -> None:
        """Take in tasks that build has finished, and order more when few are left to learn from."""
        if self.orders is None:
            return
        counts = pools(list(self.sampler.folders), self.state.seen, self.config.curriculum)
        new = self.orders.poll(counts[Pool.NEW.value] + counts[Pool.NORMAL.value])
        self.sampler.folders.update(new)
        self.state.ordered |= new
        self.state.n_orders = self.orders.begun

    def _drop_stale(self) -> None:
        """Leave out what an older policy sampled than may be learnt from."""
        limit = self.config.staleness
        fresh = [found for found in self.state.ready if self.learner.step - found.group.step <= limit]
        self.state.counted.n_stale += len(self.state.ready) - len(fresh)
        self.state.ready = fresh
        self.state.taught = [g for g in self.state.taught if self.learner.step - g.group.step <= limit]

    # --- A step ------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        state, n = self.state, self.config.groups
        learnt, state.ready = state.ready[:n], state.ready[n:]
        teaches = self.config.feedback.weight > 0
        turns = [turn for found in (*learnt, *state.taught) for turn in found.turns()] if teaches else []
        staleness = [self.learner.step - found.group.step for found in learnt]
        with _timed(self._clock, "learn"):
            found = self.learner.learn(
                [group.as_request(teaches=teaches) for group in learnt], turns[: self.config.feedback.max_turns]
            )
        state.taught = []
        state.seconds, previous = time.monotonic() - self._began, state.seconds
        record = self._record(found, staleness, state.seconds - previous)
        self.metrics.write(record)
        self.progress.step(record)
        state.counted, self._clock = Counted(), _Clock()

    def _record(self, found: dict[str, float], staleness: Sequence[int], seconds: float) -> StepRecord:
        counted, feedback = self.state.counted, self.config.feedback
        drift = found["anchor"] if feedback.anchor else found["kl"] if self.config.objective.kl else None
        return StepRecord(
            step=self.learner.step,
            seconds=self.state.seconds,
            reward=counted.reward_sum / counted.n_rewarded if counted.n_rewarded else None,
            pass_rate=counted.n_passed / counted.n_known if counted.n_known else None,
            entropy=found["entropy"],
            kl=drift,
            lag=found["lag"],
            gradient_norm=found["gradient_norm"],
            loss=found["loss"],
            feedback_loss=found["feedback"] if found["hinted_tokens"] else None,
            feedback_gap=found["gap"] if found["hinted_tokens"] else None,
            length_mean=counted.n_tokens / counted.n_rollouts if counted.n_rollouts else None,
            length_max=counted.longest,
            tokens=int(found["tokens"]),
            tokens_per_s=counted.n_tokens / seconds if seconds > 0 else None,
            staleness_mean=sum(staleness) / len(staleness),
            staleness_max=max(staleness),
            n_groups=counted.n_groups,
            n_without_signal=counted.n_without_signal,
            n_masked=counted.n_masked,
            n_faults=counted.n_faults,
            hints={rule: n / counted.n_rollouts for rule, n in sorted(counted.hints.items())},
            pools=pools(list(self.sampler.folders), self.state.seen, self.config.curriculum),
            seconds_of={
                "generate": self._clock.generate, "grade": self._clock.grade, "learn": self._clock.learn,
            },
        )  # fmt: skip

    # --- Beside the steps --------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Begin an evaluation if one is due; it is graded while training goes on."""
        step, every = self.learner.step, self.config.evaluate.every
        due = step in (0, self.config.steps) or (every and step % every == 0)
        if due and step not in self.state.evaluated:
            self.evaluation.begin(step)

    def _record_evaluations(self, *, wait: bool) -> None:
        for record in self.evaluation.finished(wait=wait):
            self.metrics.write(record)
            self.progress.evaluation(record)
            self.state.evaluated.append(record.step)

    def _save(self) -> None:
        # An evaluation that is not recorded yet would be lost: its policy is gone when the run goes on.
        self._record_evaluations(wait=True)
        self.state.seconds = time.monotonic() - self._began
        self.state.rollout_bytes = self.size_of_rollouts()
        self.learner.save(states.dump(self.state), self.config.checkpoint.keep)


class _timed:  # noqa: N801 - a context manager
    """Adds the seconds inside to a part of the clock."""

    def __init__(self, clock: _Clock, part: str) -> None:
        self._clock, self._part = clock, part

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *error: object) -> None:
        setattr(self._clock, self._part, getattr(self._clock, self._part) + time.monotonic() - self._began)
