from __future__ import annotations

from pathlib import Path

import pytest

from taskgen.baseline_cache import cached
from taskgen.errors import SourceError
from taskgen.types import Baseline, Coverage

MANY = 1 << 300 | 0b101
BASELINE = Baseline(
    n_runs=3,
    passing=("t.py::a", "t.py::b[\u00e9]"),
    flaky=("t.py::c",),
    slow=(),
    failing=("t.py::d",),
    seconds={"t.py::a": 0.25, "t.py::d": 1.5},
    coverage=Coverage(
        tests=("t.py::a", "t.py::b[\u00e9]"),
        lines={"m.py": {1: 0b11, 20: MANY}, "n.py": {}},
        import_lines={"m.py": frozenset({1, 2, 3})},
        spawning=0b10,
    ),
    unmeasured=frozenset({"t.py::b[\u00e9]"}),
    importable=("m", "n"),
    suite_s=12.5,
    suite_cpu_s=11.0,
)


def never() -> Baseline:
    raise AssertionError("measured again")


def test_what_is_read_back_is_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "baselines" / "key.json.zst"
    path.parent.mkdir()
    assert cached(path, lambda: BASELINE) == BASELINE
    assert cached(path, never) == BASELINE


def test_a_failed_measurement_leaves_nothing(tmp_path: Path) -> None:
    def fails() -> Baseline:
        raise SourceError("the suite does not pass")

    path = tmp_path / "key.json.zst"
    with pytest.raises(SourceError):
        cached(path, fails)
    assert not path.exists()
    assert cached(path, lambda: BASELINE) == BASELINE


def test_the_same_baseline_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        cached(tmp_path / name, lambda: BASELINE)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
