"""The steps of grading: which run side by side, whose finding counts, and that a broken sandbox is nobody's patch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from taskgen import archive
from taskgen.archive import ArchiveEntry
from taskgen.errors import SandboxUnavailable
from taskgen.grading import grade
from taskgen.sandbox import Channel, Sandbox
from taskgen.sandboxes.select import select
from taskgen.session import SessionCrashed, TestSession
from taskgen.types import VerdictKind

PASSED = grade._Checked(VerdictKind.RESOLVED, "passed")
HACKED = grade._Checked(VerdictKind.HACKED, "wrong expectations pass, too")


@dataclass
class Steps:
    """Stands for a grader whose checks end as told; both must be running at one time before either ends."""

    beside: Executor
    first: object
    second: object
    both: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))

    def _ended(self, how: object) -> grade._Checked:
        self.both.wait(10.0)
        if isinstance(how, Exception):
            raise how
        return cast(grade._Checked, how)

    def twins(self) -> grade._Checked:
        return self._ended(self.first)

    def differential(self) -> grade._Checked:
        return self._ended(self.second)


@pytest.fixture
def beside() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


def checks(beside: Executor, first: object, second: object) -> Iterator[tuple[str, grade._Checked]]:
    return grade._checks(cast(Any, Steps(beside, first, second)))


def test_the_checks_run_side_by_side_and_are_told_in_their_order(beside: Executor) -> None:
    assert list(checks(beside, PASSED, HACKED)) == [(grade.TWINS, PASSED), (grade.DIFFERENTIAL, HACKED)]


def test_what_twins_find_counts_even_if_the_other_check_breaks(beside: Executor) -> None:
    assert next(checks(beside, HACKED, SandboxUnavailable("gone"))) == (grade.TWINS, HACKED)


@pytest.mark.parametrize("error", [SandboxUnavailable("gone"), SessionCrashed("killed")])
def test_a_check_that_breaks_is_no_check_that_passed(beside: Executor, error: Exception) -> None:
    found = checks(beside, PASSED, error)
    assert next(found) == (grade.TWINS, PASSED)
    with pytest.raises(type(error), match=str(error)):
        next(found)
    with pytest.raises(type(error), match=str(error)):
        next(checks(beside, error, PASSED))


class Closing:
    """A provider whose sandboxes are counted, and say by whom they were closed."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - any provider
        self._inner = inner
        self.open = 0

    def create(self, **settings: Any) -> Sandbox:  # noqa: ANN401
        sandbox = self._inner.create(**settings)
        close = sandbox.close
        self.open += 1

        def closed() -> None:
            self.open -= 1
            close()

        sandbox.close = closed
        return cast(Sandbox, sandbox)


def test_a_tree_that_cannot_be_unpacked_is_the_sandboxs_fault(bubblewrap: None, tmp_path: Path) -> None:
    """Nothing of a patch has run then: it must not count as code that killed its runner."""
    provider = Closing(select("bubblewrap", tmp_path))
    session = TestSession(cast(Any, provider), cast(str, None), b"this is no archive" * 1000)
    with pytest.raises(SandboxUnavailable, match="cannot unpack the tree") as raised:
        session.ask({}, 1.0)
    assert not isinstance(raised.value, SessionCrashed)
    assert provider.open == 0


def test_a_sandbox_whose_programs_do_not_arrive_is_closed(bubblewrap: None, tmp_path: Path) -> None:
    provider = Closing(select("bubblewrap", tmp_path))

    def broken(*_args: object, **_settings: object) -> Channel:
        raise SandboxUnavailable("no channel today")

    create = provider.create

    def without_channel(**settings: Any) -> Sandbox:  # noqa: ANN401
        sandbox = create(**settings)
        cast(Any, sandbox).open = broken
        return sandbox

    provider.create = without_channel  # type: ignore[method-assign]
    tree = archive.pack([ArchiveEntry(path="a.py", content=b"")])
    with pytest.raises(SandboxUnavailable, match="no channel today"):
        TestSession(cast(Any, provider), cast(str, None), tree).ask({}, 1.0)
    assert provider.open == 0
