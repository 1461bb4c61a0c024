"""The policy on held-out tasks: a few attempts at each, always with the same seeds, graded beside the training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, stdev

from taskgen.training.groups import Graded, Sampler
from taskgen.training.metrics import EvaluationRecord

LEVEL = 0.95
_AT_ONCE = 16


@dataclass(slots=True)
class Evaluation:
    """``sampler``: of the held-out tasks; None: there are none."""

    sampler: Sampler | None
    samples: int
    _open: list[tuple[int, list[Callable[[], Graded]]]] = field(default_factory=list)

    def begin(self, step: int) -> None:
        """Sample now, grade in the background. Raises PolicyFault: the trainer was lost."""
        if self.sampler is None:
            return
        tasks, waits = sorted(self.sampler.folders), []
        for start in range(0, len(tasks), _AT_ONCE):  # the first are graded while the next are sampled
            groups = self.sampler.sample(tasks[start : start + _AT_ONCE], self.samples, batch=0)
            waits += [self.sampler.grade(group) for group in groups]
        self._open.append((step, waits))

    def finished(self, *, wait: bool) -> Iterator[EvaluationRecord]:
        """The records of evaluations in their order; without ``wait`` only those that a later one follows."""
        while self._open and (wait or len(self._open) > 1):
            step, waits = self._open.pop(0)
            yield record_of(step, [graded() for graded in waits], self.samples)


def record_of(step: int, graded: Sequence[Graded], samples: int) -> EvaluationRecord:
    """pass@1 as the mean over tasks of the share of passes, and its interval.

    Tasks without a graded attempt (faults) are left out. The interval is that of the mean over tasks at 95 % (normal
    quantile, standard error of the tasks' shares): tasks differ more than attempts at one of them.
    """
    per_task = {found.group.instance_id: found.known for found in graded if found.known[0]}
    shares = [passes / n for n, passes in per_task.values()]
    mean = fmean(shares) if shares else 0.0
    half = NormalDist().inv_cdf((1 + LEVEL) / 2) * stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else 1.0
    return EvaluationRecord(
        step=step,
        pass_at_1=mean,
        interval=(max(0.0, mean - half), min(1.0, mean + half)),
        n_tasks=len(per_task),
        n_samples=samples,
        per_task=per_task,
    )
