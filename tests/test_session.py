"""Test runs in a sandbox: selection, order, overlays, leftovers, hangs, crashes, subprocess coverage, fresh starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from taskgen import archive
from taskgen.baseline import Suite, measure
from taskgen.config import load_repos
from taskgen.errors import SourceError
from taskgen.repository import Repository, prepare
from taskgen.sandbox import SandboxProvider
from taskgen.sandboxes.select import select
from taskgen.session import RunRequest, TestSession
from taskgen.types import Outcome, RunStatus
from tests.build_helpers import AREAS, make_project, write_repos

HABITS = """\
import os
import subprocess
import sys
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))


def test_passes():
    assert True


def test_fails():
    assert 1 == 2, "one is not two"


@pytest.mark.skip(reason="not today")
def test_skipped():
    pass


@pytest.mark.xfail
def test_xfailed():
    assert False


@pytest.fixture
def broken():
    raise RuntimeError("broken fixture")


def test_error(broken):
    pass


@pytest.mark.parametrize("word", ["a b", "c[d]", "e::f"])
def test_odd_ids(word):
    assert word


def test_subprocess():
    code = "from shapes.areas import triangle; print(triangle(2, 3))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "3.0\\n"


def test_leaves_things_behind():
    path = os.path.join(HERE, "left-behind")
    assert not os.path.exists(path)
    open(path, "w").close()
    with open(os.path.join(HERE, "..", "shapes", "__init__.py"), "a") as out:
        out.write("CHANGED = True\\n")


def test_sees_a_pristine_tree():
    import shapes

    assert not hasattr(shapes, "CHANGED")
"""
AROUND = "import os\nimport time\n\n\ndef test_first():\n    pass\n\n\ndef {}\n\n\ndef test_last():\n    pass\n"
SLEEPS = AROUND.format("test_sleeps():\n    time.sleep(600)")
DIES = AROUND.format("test_dies():\n    os._exit(0)")
FILE = "tests/test_habits.py"


@pytest.fixture(scope="module")
def provider(build_cache: Path) -> SandboxProvider:
    return select("bubblewrap", build_cache)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, build_cache: Path, provider: SandboxProvider) -> Repository:
    root = make_project(tmp_path_factory.mktemp("session") / "habits", {})
    spec = load_repos(write_repos(root.parent, {"path": str(root)}))[0]
    return prepare(spec, provider, build_cache, n_runs=2, seed=3, on_stage=lambda _: None)


@pytest.fixture(scope="module")
def session(repository: Repository) -> Iterator[TestSession]:
    with repository.session() as opened:
        yield opened


def habits(text: str = HABITS) -> dict[str, bytes | None]:
    return {FILE: text.encode()}


def test_outcomes_are_told_apart(session: TestSession) -> None:
    report = session.run(RunRequest(files=habits()))
    outcomes = {test.partition("::")[2]: report.outcome(test) for test in report.collected if test.startswith(FILE)}
    assert report.status is RunStatus.ENDED
    assert outcomes == {
        "test_passes": Outcome.PASSED,
        "test_fails": Outcome.FAILED,
        "test_skipped": Outcome.SKIPPED,
        "test_xfailed": Outcome.XFAILED,
        "test_error": Outcome.ERROR,
        "test_odd_ids[a b]": Outcome.PASSED,
        "test_odd_ids[c[d]]": Outcome.PASSED,
        "test_odd_ids[e::f]": Outcome.PASSED,
        "test_subprocess": Outcome.PASSED,
        "test_leaves_things_behind": Outcome.PASSED,
        "test_sees_a_pristine_tree": Outcome.PASSED,
    }
    assert "one is not two" in report.results[f"{FILE}::test_fails"].message


def test_a_test_that_was_not_asked_for_is_missing_and_no_pass(session: TestSession) -> None:
    wanted = frozenset({f"{FILE}::test_passes", f"{FILE}::test_gone"})
    report = session.run(RunRequest(files=habits(), select=wanted))
    assert report.passed() == {f"{FILE}::test_passes"}
    assert report.outcome(f"{FILE}::test_gone") is Outcome.MISSING


def test_each_run_begins_with_the_pristine_tree(session: TestSession) -> None:
    behind = frozenset({f"{FILE}::test_leaves_things_behind"})
    for _ in range(2):
        assert session.run(RunRequest(files=habits(), select=behind)).passed() == behind
    assert FILE not in {test.split("::")[0] for test in session.run(RunRequest()).collected}


def test_a_file_can_be_taken_away(session: TestSession) -> None:
    report = session.run(RunRequest(files={"shapes/areas.py": None}))
    assert not report.collected
    assert list(report.collection_errors) == ["tests/test_areas.py"]


def test_a_hanging_test_is_named_and_ends_the_run(session: TestSession) -> None:
    report = session.run(RunRequest(files=habits(SLEEPS), test_timeout_s=1.0))
    assert report.status is RunStatus.TEST_TIMEOUT
    assert report.outcome(f"{FILE}::test_sleeps") is Outcome.TIMED_OUT
    assert report.outcome(f"{FILE}::test_last") is Outcome.MISSING


def test_a_test_that_ends_the_process_with_code_0_is_a_crash(session: TestSession) -> None:
    report = session.run(RunRequest(files=habits(DIES)))
    assert report.status is RunStatus.CRASHED
    assert report.outcome(f"{FILE}::test_dies") is Outcome.CRASHED


def test_the_order_follows_the_seed(session: TestSession) -> None:
    def order(seed: int | None) -> tuple[str, ...]:
        return session.run(RunRequest(files=habits(), shuffle=seed)).collected

    assert order(1) == order(1)
    assert order(1) != order(None)
    assert sorted(order(1)) == sorted(order(None))


def test_stop_early_ends_at_the_first_that_does_not_pass(session: TestSession) -> None:
    report = session.run(
        RunRequest(files=habits(), select=frozenset({f"{FILE}::test_fails", f"{FILE}::test_error"}), stop_early=True)
    )
    assert len(report.results) == 1


def test_coverage_knows_which_test_ran_which_line_in_subprocesses_too(session: TestSession) -> None:
    report = session.run(RunRequest(files=habits(), coverage=True))
    assert report.coverage is not None
    line = 1 + next(i for i, text in enumerate(AREAS.splitlines()) if "base * height / 2" in text)
    ids = report.coverage.ids(report.coverage.of_lines("shapes/areas.py", line, line))
    assert ids == {"tests/test_areas.py::test_triangle", f"{FILE}::test_subprocess"}
    assert report.coverage.ids(report.coverage.spawning) == {f"{FILE}::test_subprocess"}
    assert 1 in report.coverage.import_lines["tests/test_areas.py"]


def test_import_errors_are_reported_by_module(session: TestSession) -> None:
    found = session.importable(["shapes", "shapes.areas"], {"shapes/areas.py": b"import nowhere\n"})
    assert found["shapes"] == ""
    assert "nowhere" in found["shapes.areas"]


def test_what_runs_cannot_kill_its_server(session: TestSession) -> None:
    kills = "import os, signal\n\n\ndef test_kills():\n    os.kill(os.getppid(), signal.SIGKILL)\n"
    report = session.run(RunRequest(files=habits(kills), select=frozenset({f"{FILE}::test_kills"})))
    assert report.outcome(f"{FILE}::test_kills") is Outcome.PASSED
    assert report.faults == ()


def test_the_session_survives_the_death_of_its_sandbox(session: TestSession) -> None:
    assert session.run(RunRequest()).passed()
    assert session._sandbox is not None
    session._sandbox.close()
    assert session.run(RunRequest()).passed()


def test_a_report_that_contradicts_itself_says_so(session: TestSession) -> None:
    """What the runner says (its code, each test once) and how its process ends must agree."""
    forges = (
        "import gc\n\n\ndef test_forges():\n"
        "    reporter = next(o for o in gc.get_objects() if type(o).__name__ == 'Reporter')\n"
        "    reporter.emit('end', i=0, o='passed', s=0.0, p=False, m='')\n"
        "    assert False\n"
    )
    report = session.run(RunRequest(files=habits(forges), select=frozenset({f"{FILE}::test_forges"})))
    assert any("reported twice" in fault for fault in report.faults)


def test_files_that_must_not_change_are_watched(session: TestSession) -> None:
    writes = "def test_writes():\n    open('shapes/areas.py', 'a').write('# more')\n    open('new.txt', 'w').close()\n"
    protect = ("shapes/areas.py", "shapes/__init__.py", FILE)
    request = RunRequest(files=habits(writes), select=frozenset({f"{FILE}::test_writes"}), protect=protect)
    assert session.run(request).changed == ("shapes/areas.py",)


# -- baselines ---------------------------------------------------------------------------------------


def test_the_baseline_of_a_sound_suite(repository: Repository) -> None:
    baseline = repository.survey.baseline
    assert len(baseline.passing) == 4
    assert (baseline.flaky, baseline.failing, baseline.slow, baseline.unmeasured) == ((), (), (), frozenset())
    assert set(baseline.importable) == {"shapes", "shapes.areas"}


def _measure(repository: Repository, text: str, **limits: float) -> object:
    """The baseline of the project with another test file beside its own."""
    entries = {**repository.entries}
    entries[FILE] = replace(next(iter(entries.values())), path=FILE, content=text.encode())
    tar = archive.pack(entries.values())
    suite = Suite(args=repository.suite.args, **limits)
    key = repository.environment.key
    make = lambda seed: TestSession(repository.provider, key, tar, hash_seed=seed)  # noqa: E731
    return measure(make, suite, ["shapes"], n_runs=3, seed=5)


def test_flaky_tests_are_set_apart(repository: Repository) -> None:
    code = [sys.executable, "-c", "print(hash('a'))"]
    seed_0 = subprocess.run(code, env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True).stdout.strip()
    baseline = _measure(repository, f"def test_hash():\n    assert hash('a') == {seed_0}\n")
    assert baseline.flaky == (f"{FILE}::test_hash",)  # type: ignore[attr-defined]


def test_hanging_tests_are_set_apart(repository: Repository) -> None:
    baseline = _measure(repository, SLEEPS, test_timeout_s=1.0)
    assert baseline.slow == (f"{FILE}::test_sleeps",)  # type: ignore[attr-defined]
    assert len(baseline.passing) == 6  # type: ignore[attr-defined]


def test_a_test_that_hangs_under_coverage_alone_does_not_lose_the_coverage_of_the_others(
    repository: Repository,
) -> None:
    hangs = "import sys\nimport time\n\n\ndef test_a():\n    time.sleep(9 if 'coverage' in sys.modules else 0)\n"
    baseline = _measure(repository, hangs, test_timeout_s=2.0)
    assert baseline.slow == (f"{FILE}::test_a",)  # type: ignore[attr-defined]
    assert baseline.coverage.lines == repository.survey.baseline.coverage.lines  # type: ignore[attr-defined]
    assert baseline.coverage.lines  # type: ignore[attr-defined]


def test_a_failing_suite_is_refused_with_the_tail_of_its_log(repository: Repository) -> None:
    with pytest.raises(SourceError, match="does not pass: 4 of 6 tests that ran passed"):
        _measure(repository, "def test_a():\n    assert 0\n\n\ndef test_b():\n    assert 0\n")
