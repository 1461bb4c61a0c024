"""The page of a run: coordinates of its curves, what is escaped, what a stopped run leaves, how big it gets."""

from __future__ import annotations

import itertools
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from training_records import evaluation_record, step_record, write_metrics

from taskgen.errors import FormatError
from taskgen.training import curves
from taskgen.training.charts import MAX_LINES, drawn
from taskgen.training.curves import BOTTOM, BUCKETS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, Line, Point, draw
from taskgen.training.metrics import MetricsWriter
from taskgen.training.page import MAX_CONFIG, write_page
from taskgen.training.samples import ENDS_BYTES, MAX_COMPLETION, MAX_PROMPT, read_samples

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror='a()'>&lt;{{ 7 * 7 }}\"\x1b[31m\u202egnp.exe"


def chart(points: list[Point], **changes: Any) -> curves.Drawn:  # noqa: ANN401
    found = draw(Chart(title="t", about="", lines=(Line(name="", points=points),), **changes))
    assert found is not None
    return found


def coordinates(path: str) -> list[list[tuple[float, float]]]:
    """The stretches of a path."""
    parts = [[p.split(",") for p in part.rstrip("Z").split("L")] for part in path.split("M")[1:]]
    return [[(float(x), float(y)) for x, y in part] for part in parts]


def rollout(number: int, step: int | None = None, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    turns = [{"role": "user", "text": "def f():\n"}, {"role": "assistant", "text": f"    return {number}"}]
    extra = {} if step is None else {"step": step}
    return {"rollout_id": f"r{number}", "instance_id": "a__b-1", "reward": number % 2, "turns": turns} | extra | changes


def write_rollouts(out_dir: Path, records: list[dict[str, Any]]) -> Path:
    path = out_dir / "rollouts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


class Elements(HTMLParser):
    """Which elements a page has, and the text of those of one kind."""

    def __init__(self, page: str, kind: str = "pre") -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self._kind, self._inside = kind, False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._inside = tag == self._kind
        self.texts += [""] * self._inside

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data


# --- Curves -----------------------------------------------------------------------------------------


def test_coordinates_of_a_curve_are_those_of_its_values() -> None:
    # From 0 to 1.05 (a twentieth of room) on 154 units of height, steps 0 to 4 on 298 of width.
    found = chart([(0, 0.0), (1, 1.0), (4, 0.5)])
    assert coordinates(found.lines[0].path) == [[(50, 164.0), (124.5, 17.3), (348, 90.7)]]
    assert [label for _, label in found.y_ticks] == ["0.0", "0.5", "1.0"]
    assert [label for _, label in found.x_ticks] == ["0", "1", "2", "3", "4"]
    assert [round(x, 1) for x, _ in found.x_ticks] == [50, 124.5, 199, 273.5, 348]
    assert found.lines[0].last == "0.5"


@pytest.mark.parametrize(
    "values",
    [
        [0.5],
        [3.0] * 9,
        [0.0, 0.0],
        [-5.0, 1e-9, 7e6],
        [1e-320, 2e-320],
        [1e99, -1e99, 0.0],
        [1000.1, 1000.2, 1000.3],
        [math.sin(i / 50) * i for i in range(5000)],
    ],
)
def test_curves_and_ticks_lie_in_the_box_and_steps_go_to_the_right(values: list[float]) -> None:
    found = chart(list(enumerate(values, 3)))
    points = [p for path in (found.lines[0].path, found.lines[0].mean) for part in coordinates(path) for p in part]
    assert all(LEFT <= x <= WIDTH - RIGHT and TOP <= y <= HEIGHT - BOTTOM for x, y in points)
    for part in coordinates(found.lines[0].path):
        assert [x for x, _ in part] == sorted(x for x, _ in part)
    assert all(TOP - 1 <= y <= HEIGHT - BOTTOM + 1 for y, _ in found.y_ticks)
    assert len({label for _, label in found.y_ticks}) == len(found.y_ticks) >= 2


def test_values_that_rise_are_drawn_ever_higher() -> None:
    (part,) = coordinates(chart([(i, i * i / 7) for i in range(3000)]).lines[0].path)
    assert len(part) == 2 * BUCKETS
    assert all(y0 >= y1 for (_, y0), (_, y1) in itertools.pairwise(part))


def test_thinning_keeps_the_peaks_and_the_ends() -> None:
    points = [(i, 1000.0 if i == 4321 else -1000.0 if i == 7001 else math.sin(i)) for i in range(10_000)]
    kept = curves.thinned(points)
    assert {(4321, 1000.0), (7001, -1000.0)} <= set(kept) <= set(points)
    assert len(kept) <= 2 * BUCKETS and kept == sorted(kept)
    assert kept[0][0] < 40 and kept[-1][0] >= 10_000 - 40


def test_what_is_missing_or_not_finite_is_a_gap() -> None:
    found = chart([(1, 1.0), (2, None), (3, 2.0), (4, 3.0), (5, math.nan), (6, math.inf), (7, 2.5)])
    assert [len(part) for part in coordinates(found.lines[0].path)] == [2, 2, 2]  # a point alone is drawn twice
    assert found.n_gaps == 2
    assert found.lines[0].last == "2.5"
    assert draw(Chart(title="", about="", lines=(Line(name="", points=[(1, None), (2, math.nan)]),))) is None
    every_other = chart([(i, None if i % 2 else 1.0) for i in range(10_000)])
    assert len(coordinates(every_other.lines[0].path)) <= 2 * BUCKETS


def test_the_running_mean_is_that_of_the_last_points() -> None:
    points = [(1, 1.0), (2, None), (3, 3.0), (4, math.inf), (5, 5.0)]
    assert curves.running_mean(points, 3) == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 3.0), (5, 4.0)]
    assert chart([(i, float(i % 2)) for i in range(40)]).window == 2
    assert chart([(i, float(i % 2)) for i in range(39)]).lines[0].mean == ""


def test_the_band_encloses_the_evaluations() -> None:
    found = drawn([], [evaluation_record(0, 0.2), evaluation_record(10, 0.5)])[0]
    (line,), (band,) = coordinates(found.lines[0].path), coordinates(found.band)
    highs, lows = band[:2], band[:1:-1]
    assert [x for x, _ in highs] == [x for x, _ in lows] == [x for x, _ in line]
    assert all(high < y < low for (_, high), (_, y), (_, low) in zip(highs, line, lows, strict=True))
    assert [label for *_, label in found.dots] == ["step 0: 0.2", "step 10: 0.5"]


def test_curves_of_keys_are_those_with_the_greatest_mean() -> None:
    steps = [step_record(i, hints={f"rule-{k}": k / 20 for k in range(9)}) for i in (1, 2)]
    (found,) = (c for c in drawn(steps, []) if c.title == "Hints")
    assert [line.name for line in found.lines] == [f"rule-{k}" for k in range(9 - MAX_LINES, 9)]
    assert found.about.endswith(f"({MAX_LINES} of 9)")


# --- The page ---------------------------------------------------------------------------------------


def test_a_page_has_the_run_before_and_after_and_loads_nothing(tmp_path: Path) -> None:
    steps = [step_record(i, pass_rate=i / 40) for i in range(1, 31)]
    write_metrics(tmp_path, [evaluation_record(0, 0.175), *steps, evaluation_record(30, 0.525)])
    (tmp_path / "config.yaml").write_text("learning_rate: 2.0e-5 # <&>\n")
    write_rollouts(tmp_path, [rollout(k, step) for step in range(1, 31) for k in (4 * step, 4 * step + 1)])
    (tmp_path / "metrics.jsonl").chmod(0o640)
    path = write_page(tmp_path)
    assert path == tmp_path / "report.html" and path.stat().st_mode & 0o777 == 0o640
    page = path.read_text("utf-8")
    for said in ("0.175", "0.075 to 0.275; step 0, 2 tasks, 8 samples each", "0.525", "0.425 to 0.625; step 30"):
        assert said in page
    assert "mean of the last 10 steps; of the first 10: 0.138" in page
    assert "learning_rate: 2.0e-5 # &lt;&amp;&gt;" in page
    assert [int(n) for n in re.findall(r"<summary>step (\d+)", page)] == [1, 1, 2, 2, 29, 29, 30, 30]
    assert not re.search(r"(src|href)=|url\(|@import|https?:", page)
    assert not Elements(page).names & {"script", "img", "link", "iframe", "object", "form", "base"}
    assert "default-src 'none'" in page and "prefers-color-scheme: dark" in page and "width=device-width" in page


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    key = HOSTILE.encode("utf-8", "ignore").decode()
    evaluations = [evaluation_record(step, 0.2, per_task={key: (8, step)}) for step in (0, 1)]
    write_metrics(tmp_path, [*evaluations, step_record(1, hints={key: 0.5})])
    (tmp_path / "config.yaml").write_text(HOSTILE)
    turns = [{"role": "user", "text": HOSTILE}, {"role": "assistant", "text": "  x\ud800" + HOSTILE}]
    hostile = {"turns": turns, "instance_id": HOSTILE, "verdict": HOSTILE, "reason": [HOSTILE], "hint": {"a": HOSTILE}}
    write_rollouts(tmp_path, [rollout(1, 1, **hostile, rollout_id=HOSTILE)])
    plain = tmp_path / "plain"
    plain.mkdir()
    plain_hint = {"verdict": "v", "reason": "r", "hint": "h"}
    write_metrics(plain, [*(evaluation_record(step, 0.2) for step in (0, 1)), step_record(1)])
    (plain / "config.yaml").write_text("a: 1")
    write_rollouts(plain, [rollout(1, 1, **plain_hint)])
    page, wanted = write_page(tmp_path).read_text("utf-8"), write_page(plain).read_text("utf-8")
    assert Elements(page).names == Elements(wanted).names
    assert Elements(page).attributes == Elements(wanted).attributes
    assert page.count("<") == wanted.count("<")
    escaped = HOSTILE.replace("\x1b", "\\u001b").replace("\u202e", "\\u202e")
    prompt, completion, hint, config = Elements(page).texts
    assert prompt == "\n" + escaped
    assert completion == "\n  x\\ud800" + escaped
    assert hint == "\n" + json.dumps({"a": HOSTILE})
    assert config == "\n" + escaped


def test_a_stopped_run_has_a_page_of_what_it_recorded(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        write_page(tmp_path)
    path = write_metrics(tmp_path, [step_record(1), step_record(2)])
    path.write_bytes(path.read_bytes()[:-9])
    rollouts = write_rollouts(tmp_path, [rollout(1, 1), rollout(2, 1)])
    rollouts.write_bytes(b"no JSON\n" + rollouts.read_bytes()[:-9])
    page = write_page(tmp_path).read_text("utf-8")
    assert page.count("<details") == 1
    assert "lines of rollouts.jsonl that could not be read: 1" in page
    with MetricsWriter(tmp_path / "new", resume_step=None, on_note=print):
        pass
    assert "no step was recorded" in write_page(tmp_path / "new").read_text("utf-8")


def test_a_step_that_was_done_again_is_drawn_once(tmp_path: Path) -> None:
    write_metrics(tmp_path, [step_record(1), step_record(2, tokens=7), step_record(2, tokens=9)])
    assert "1,961" in write_page(tmp_path).read_text("utf-8")


def test_the_page_of_a_long_run_is_small(tmp_path: Path) -> None:
    values = [math.sin(i) + math.sin(i / 900) for i in range(10_001)]
    steps = [
        step_record(i, **dict.fromkeys(("reward", "entropy", "kl", "loss", "lag", "gradient_norm"), values[i]),
                    length_mean=None if i % 2 else 30.0, hints={f"rule-{i % 9}": 0.5})
        for i in range(1, 10_001)
    ]  # fmt: skip
    tasks = {f"library__function-{i:010x}": (8, i % 9) for i in range(1000)}
    write_metrics(tmp_path, [*steps, *(evaluation_record(i, 0.5, per_task=tasks) for i in range(0, 10_001, 100))])
    (tmp_path / "config.yaml").write_text('"' * 3 * MAX_CONFIG)
    turns = [{"role": "user", "text": '"' * 50_000}, {"role": "assistant", "text": "\x00" * 50_000}]
    write_rollouts(tmp_path, [rollout(i, i // 8, turns=turns) for i in range(80)])
    assert write_page(tmp_path).stat().st_size < 2_000_000


# --- Samples ----------------------------------------------------------------------------------------


def test_samples_are_some_of_each_outcome_of_the_first_and_last_steps(tmp_path: Path) -> None:
    rewards = (0.0, 1.0, None, 0.0, 1.0, 0.0, 1.0, None)
    records = [rollout(8 * s + i, s, reward=r, fault="Gone") for s in range(1, 7) for i, r in enumerate(rewards)]
    found = read_samples(write_rollouts(tmp_path, records))
    outcomes = ["passed", "passed", "failed", "failed", "no reward"]
    assert [(s.step, s.outcome) for s in found.first] == [(step, outcome) for step in (1, 2) for outcome in outcomes]
    assert [(s.step, s.outcome) for s in found.last] == [(step, outcome) for step in (5, 6) for outcome in outcomes]
    assert found.first[0].verdict == "Gone"
    assert (found.first[0].prompt, found.first[0].completion) == ("def f():", "    return 9")


def test_few_steps_are_shown_once_and_a_missing_file_has_none(tmp_path: Path) -> None:
    found = read_samples(write_rollouts(tmp_path, [rollout(1, 1), rollout(2, 2), rollout(3, 3)]))
    assert [s.step for s in found.first + found.last] == [1, 2, 3]
    assert [s.step for s in read_samples(write_rollouts(tmp_path, [rollout(1)])).first] == [None]
    assert read_samples(tmp_path / "none").first == ()


def test_of_a_big_file_the_two_ends_are_read(tmp_path: Path) -> None:
    filler = "x" * (ENDS_BYTES // 5)
    for n in (4, 7, 30):
        records = [rollout(i, i, turns=[{"role": "assistant", "text": filler}]) for i in range(n)]
        found = read_samples(write_rollouts(tmp_path, records))
        assert [s.step for s in found.first + found.last] == [0, 1, n - 2, n - 1]
        assert found.n_unread == 0


def test_the_end_of_a_prompt_the_start_of_a_completion_and_tool_calls_are_shown(tmp_path: Path) -> None:
    turns: list[dict[str, Any]] = [
        {"role": "user", "text": "a" * 5000 + "the end"},
        {"role": "assistant", "text": "look", "tool_calls": [{"name": "bash", "arguments": {"command": "ls"}}]},
        {"role": "tool", "tool_results": [{"text": "b.py"}]},
        {"role": "assistant", "text": "c" * 5000, "hint": "Read b.py first."},
    ]
    (sample,) = read_samples(write_rollouts(tmp_path, [rollout(1, 1, turns=turns)])).first
    assert (
        sample.prompt.endswith('the end\nlook\nbash({"command": "ls"})\nb.py') and len(sample.prompt) == MAX_PROMPT + 1
    )
    assert sample.completion == "c" * MAX_COMPLETION + "\n… and 1,000 more characters"
    assert sample.hint == "Read b.py first."
