"""Twins: copies of tests under random names, right ones and wrong ones of equal looks."""

from __future__ import annotations

import ast

import pytest

from taskgen.languages import python_twins

SOURCE = b'''\
"""Tests."""
import unittest

import pytest

from pkg import area, f


@pytest.mark.parametrize("n", [1, 2])
def test_area(n):
    value = area(n)
    assert value == 12
    assert "abc" in f(n)


def test_the_other_way_round():
    assert 5 == area(1)


def test_error():
    with pytest.raises(ValueError):
        area(-1)


def test_truth():
    assert not f(3)


def test_nothing():
    area(1)


class TestMore(unittest.TestCase):
    def test_method(self):
        self.assertEqual(area(2), {"k": 1.5})
'''
FILE = "tests/test_x.py"


def made(*chosen: tuple[str, int]) -> tuple[python_twins.Copies, str]:
    copies = python_twins.make({FILE: SOURCE}, [(f"{FILE}::{test}", number) for test, number in chosen])
    (text,) = copies.files.values()
    ast.parse(text)
    return copies, text.decode()


def assertions(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines() if "assert" in line or "raises" in line}


@pytest.mark.parametrize(
    ("test", "number", "old"),
    [
        ("test_area[1]", 0, "assert value == 12"),
        ("test_area[1]", 1, 'assert "abc" in f(n)'),
        ("test_the_other_way_round", 0, "assert 5 == area(1)"),
        ("test_error", 0, "with pytest.raises(ValueError):"),
        ("test_truth", 0, "assert not f(3)"),
        ("TestMore::test_method", 0, 'self.assertEqual(area(2), {"k": 1.5})'),
    ],
)
def test_one_expectation_is_changed_and_no_input(test: str, number: int, old: str) -> None:
    copies, text = made((test, number))
    (changed,) = assertions(text) - assertions(SOURCE.decode())
    assert changed != old
    assert old in text  # in the copy that is right
    for part in ("value", "area(1)", "area(2)", "f(n)", "f(3)"):
        assert (part in changed) == (part in old)
    assert len(copies.right) == len(copies.wrong) == 1
    assert {copies.names[name] for name in copies.right} == {(f"{FILE}::{test}", -1)}


def test_names_are_drawn_anew_and_values_are_not() -> None:
    (first, one), (second, two) = made(("test_area[1]", 0)), made(("test_area[1]", 0))
    assert not set(first.files) & set(second.files)
    assert not first.right & second.right
    assert "test_area" not in one
    assert assertions(one) == assertions(two)
    assert all(name.startswith("tests/test_") and name.endswith("[1]") for name in first.names)


def test_the_order_of_right_and_wrong_says_nothing() -> None:
    orders = set()
    for _ in range(40):
        copies, text = made(("test_the_other_way_round", 0))
        (right,) = copies.right
        (wrong,) = copies.wrong
        orders.add(text.index(right.rpartition("::")[2]) < text.index(wrong.rpartition("::")[2]))
    assert orders == {True, False}


def test_what_has_no_expectation_or_no_function_has_no_twin() -> None:
    ids = [f"{FILE}::test_nothing", f"{FILE}::test_ghost", "tests/ghost.py::test_x", f"{FILE}::test_truth"]
    assert python_twins.expectations({FILE: SOURCE}, ids) == [(f"{FILE}::test_truth", 0)]
    assert python_twins.make({FILE: SOURCE}, [(ids[1], 0), (ids[2], 0)]).files == {}
    assert python_twins.expectations({FILE: b"def test_x(:\n"}, [f"{FILE}::test_x"]) == []


def test_the_rest_of_the_file_stays() -> None:
    _, text = made(("test_error", 0))
    assert "def test_area(n):" in text and "class TestMore(unittest.TestCase):" in text
