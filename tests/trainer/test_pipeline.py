"""The order in which tasks start, compute and end."""

from __future__ import annotations

import pytest

from trainer.pipeline import Task, run, spread


def network(name: str, seen: list[str]) -> Task:
    seen.append(f"start {name}")
    yield
    seen.append(f"compute {name}")
    yield
    seen.append(f"end {name}")


def alone(name: str, seen: list[str]) -> Task:
    seen.append(f"alone {name}")
    yield from ()


def order(in_flight: int, n: int) -> list[str]:
    seen: list[str] = []
    run([network(str(i), seen) for i in range(n)], in_flight)
    return seen


def test_one_in_flight_is_one_after_the_other() -> None:
    assert order(1, 2) == ["start 0", "compute 0", "end 0", "start 1", "compute 1", "end 1"]


def test_three_in_flight_compute_between_a_start_and_an_end() -> None:
    assert order(3, 4) == [
        *["start 0", "start 1", "start 2", "compute 0"],
        *["compute 1", "end 0"],
        *["start 3", "compute 2", "end 1"],
        *["compute 3", "end 2", "end 3"],
    ]


@pytest.mark.parametrize("in_flight", range(1, 6))
@pytest.mark.parametrize("n", range(6))
def test_no_more_than_the_limit_are_begun_and_not_ended(in_flight: int, n: int) -> None:
    begun, most = 0, 0
    for event in order(in_flight, n):
        begun += event.startswith("start") - event.startswith("end")
        most = max(most, begun)
    assert begun == 0 and most == min(in_flight, n)


def test_local_tasks_fill_the_waits() -> None:
    seen: list[str] = []
    tasks = spread([network(str(i), seen) for i in range(2)], [alone(name, seen) for name in "abcd"])
    run(tasks, 2)
    assert seen[:4] == ["start 0", "alone a", "alone b", "start 1"]
    assert sorted(seen[4:]) == ["alone c", "alone d", "compute 0", "compute 1", "end 0", "end 1"]


def test_local_tasks_alone_run() -> None:
    seen: list[str] = []
    run(spread([], [alone(name, seen) for name in "ab"]), 3)
    assert seen == ["alone a", "alone b"]


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="in_flight"):
        run([], 0)


def test_a_third_collective_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="more than two"):
        run([iter([None, None, None])], 1)
