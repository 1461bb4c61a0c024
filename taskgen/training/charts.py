"""Which curves of a run are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from taskgen.training.curves import Chart, Drawn, Line, draw
from taskgen.training.metrics import EvaluationRecord, HeldOutRecord, ReadingRecord, StepRecord

#: Lines of a chart: as many as there are colours.
MAX_LINES = 6
#: title, what is drawn, and the lines: name -> field of StepRecord.
_OF_STEPS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("Reward", "mean over a step's rollouts", {"": "reward"}),
    ("Pass rate", "share of a step's rollouts that pass", {"": "pass_rate"}),
    ("Entropy", "nats a token", {"": "entropy"}),
    ("KL to the reference", "nats a token", {"": "kl"}),
    ("Completion length", "tokens", {"mean": "length_mean", "longest": "length_max"}),
    ("Gradient norm", "before clipping", {"": "gradient_norm"}),
    ("Lag", "mean |log p - log mu| to the policy that sampled", {"": "lag"}),
    ("Staleness", "optimizer steps since a rollout's policy", {"mean": "staleness_mean", "most": "staleness_max"}),
    ("Loss", "", {"": "loss"}),
    ("Feedback loss", "on turns with a hint", {"": "feedback_loss"}),
    ("Feedback gap", "log-probability gained by the hint, nats a token", {"": "feedback_gap"}),
    ("Tokens a second", "trained tokens by wall time", {"": "tokens_per_s"}),
    (
        "Groups and rollouts without use",
        "number a step",
        {"groups without signal": "n_without_signal", "masked": "n_masked", "faults": "n_faults"},
    ),
)
_OF_READING: tuple[tuple[str, str, str], ...] = (
    ("Loss", "nats a token, before the step's update", "loss"),
    ("Gradient norm", "before clipping", "gradient_norm"),
    ("Tokens a second", "that count, by wall time", "tokens_per_s"),
    ("Epoch", "passes over all documents", "epoch"),
)
_POOLS = "Pools of tasks"
_BY_KEY: tuple[tuple[str, str, str], ...] = (
    ("Hints", "share of rollouts that got a rule's hint", "hints"),
    (_POOLS, "tasks by difficulty", "pools"),
    ("Time of a step", "wall seconds by part; parts may overlap", "seconds_of"),
)


def drawn(steps: Sequence[StepRecord], evaluations: Sequence[EvaluationRecord]) -> list[Drawn]:
    """The curves of a run that have a value, evaluation first. Steps must ascend in both."""
    charts = [evaluation_chart(evaluations)]
    for title, about, fields in _OF_STEPS:
        lines = [Line(name=n, points=[(s.step, getattr(s, field)) for s in steps]) for n, field in fields.items()]
        charts.append(Chart(title=title, about=about, lines=tuple(lines)))
    charts += [_by_key(title, about, [(s.step, getattr(s, field)) for s in steps]) for title, about, field in _BY_KEY]
    return [found for chart in charts if (found := draw(chart)) is not None]


def drawn_reading(steps: Sequence[ReadingRecord], held_out: Sequence[HeldOutRecord]) -> list[Drawn]:
    """The curves of a run that reads text. Steps must ascend in both."""
    charts = [
        Chart(
            title="Held-out loss", about="nats a token, of what no step reads", marked=True, smooth=False,
            lines=(Line(name="", points=[(record.step, record.loss) for record in held_out]),),
        )
    ]  # fmt: skip
    for title, about, field in _OF_READING:
        lines = (Line(name="", points=[(s.step, getattr(s, field)) for s in steps]),)
        charts.append(Chart(title=title, about=about, lines=lines))
    return [found for chart in charts if (found := draw(chart)) is not None]


def evaluation_chart(evaluations: Sequence[EvaluationRecord]) -> Chart:
    """pass@1 with its interval as a band."""
    return Chart(
        title="Evaluation pass@1",
        about="with its interval",
        lines=(Line(name="", points=[(e.step, e.pass_at_1) for e in evaluations]),),
        band=[(e.step, *e.interval) for e in evaluations],
        marked=True,
        smooth=False,
    )


def _by_key(title: str, about: str, values: Sequence[tuple[int, Mapping[str, float]]]) -> Chart:
    """A line a key: those with the greatest mean. A key that a step does not name is a gap in it."""
    keys = list(dict.fromkeys(key for _, found in values for key in found))
    most = sorted(keys, key=lambda key: -fmean(_finite(found.get(key, 0.0) for _, found in values)))[:MAX_LINES]
    lines = [Line(name=key, points=[(step, found.get(key)) for step, found in values]) for key in keys if key in most]
    about += f" ({MAX_LINES} of {len(keys)})" if len(keys) > MAX_LINES else ""
    return Chart(title=title, about=about, lines=tuple(lines), smooth=title != _POOLS)


def _finite(values: Iterable[float]) -> list[float]:
    return [value if abs(value) < float("inf") else 0.0 for value in values]
