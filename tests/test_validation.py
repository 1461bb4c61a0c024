"""Validation on a real sandbox: each kind of unfair candidate falls out at its stage, fair ones are proven."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskgen import candidates
from taskgen.archive import ArchiveEntry
from taskgen.config import find_data, load_recipes, load_repos
from taskgen.leaks.gate import LeakGate
from taskgen.packing import Audited, Packed, pack
from taskgen.repository import Repository, prepare
from taskgen.sandboxes.select import select
from taskgen.session import RunRequest, TestSession
from taskgen.types import Candidate, Rejection, TestReport
from taskgen.validation import Proven, Validator
from tests.build_helpers import make_project, write_repos

ODD = '''\
"""Functions that make unfair tasks, each for its own reason."""

import os


def nothing(value):
    """Return nothing, whatever the value is."""
    if value:
        value = None
    result = None
    return result


def ignored(value):
    """Return the value, doubled, if anybody asks."""
    if value is None:
        raise ValueError("no value")
    doubled = value * 2
    return doubled


def waits(value):
    """Return the value; its test waits until somebody does."""
    if value is None:
        raise ValueError("no value")
    kept = value
    return kept


def folder_of(path):
    """Return the folder of a path, with a slash behind it."""
    if not path:
        raise ValueError("no path")
    folder = os.path.dirname(path)
    return folder + "/"
'''
ODD_TESTS = """\
import time

import pytest

from shapes import odd


def test_nothing():
    assert odd.nothing(1) is None


def test_ignored():
    try:
        assert odd.ignored(1) == 2
    except NotImplementedError:
        pass


def test_waits():
    while True:
        try:
            assert odd.waits(3) == 3
            break
        except NotImplementedError:
            time.sleep(0.1)


@pytest.fixture
def place():
    return "a/b"


SECRET = "a/"


def test_folder_of(place):
    assert odd.folder_of(place) == SECRET


def test_folder_of_nothing():
    with pytest.raises(ValueError):
        odd.folder_of("")
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, build_cache: Path) -> Repository:
    files: dict[str, bytes | str] = {"shapes/odd.py": ODD, "tests/test_odd.py": ODD_TESTS}
    root = make_project(tmp_path_factory.mktemp("validation") / "odd", files)
    spec = load_repos(write_repos(root.parent, {"path": str(root)}))[0]
    provider = select("bubblewrap", build_cache)
    return prepare(spec, provider, build_cache, n_runs=2, seed=0, on_stage=lambda _: None)


@pytest.fixture(scope="module")
def validator(repository: Repository) -> Iterator[Validator]:
    recipes = {recipe.name: recipe for recipe in load_recipes(find_data("recipes"))}
    with repository.session() as session:
        yield Validator(
            session=session, survey=repository.survey, suite=repository.suite, recipes=recipes, n_runs=3, full_runs=3
        )


@pytest.fixture(scope="module")
def functions(repository: Repository, validator: Validator) -> dict[str, Candidate]:
    """The candidate of each function."""
    found = candidates.propose(repository.survey, [validator.recipes["function"]], repository.spec, "0" * 40)
    return {candidate.deletion.deleted[0].definition.name: candidate for candidate in found}


@pytest.mark.parametrize(
    ("name", "stage", "reason"),
    [
        ("nothing", "stub", "a stub passes the hidden tests"),
        ("ignored", "null", "no test fails without the feature"),
        ("waits", "null", "a run did not end (test_timeout)"),
    ],
)
def test_an_unfair_candidate_falls_out(
    validator: Validator, functions: dict[str, Candidate], name: str, stage: str, reason: str
) -> None:
    verdict = validator.validate(functions[name])
    assert isinstance(verdict, Rejection)
    assert (verdict.stage, verdict.reason) == (stage, reason)


class Wavering:
    """A session whose later runs all end well, whatever is gone: as a test would that fails now and then."""

    def __init__(self, session: TestSession) -> None:
        self._session, self._runs = session, 0
        self.importable = session.importable

    def run(self, request: RunRequest) -> TestReport:
        whole = request.select is None
        self._runs += whole
        return self._session.run(request if self._runs < 2 else dataclasses.replace(request, files={}))


def test_a_test_that_fails_now_and_then_is_no_evidence(validator: Validator, functions: dict[str, Candidate]) -> None:
    wavering = dataclasses.replace(validator, session=Wavering(validator.session))  # type: ignore[arg-type]
    verdict = wavering.validate(functions["folder_of"])
    assert isinstance(verdict, Rejection)
    assert (verdict.stage, verdict.reason) == ("null", "not every run fails the same tests")
    assert verdict.detail == "tests/test_odd.py::test_folder_of, tests/test_odd.py::test_folder_of_nothing"


def test_a_fair_candidate_is_proven(validator: Validator, functions: dict[str, Candidate]) -> None:
    proven = validator.validate(functions["folder_of"])
    assert isinstance(proven, Proven)
    hidden = {"tests/test_odd.py::test_folder_of", "tests/test_odd.py::test_folder_of_nothing"}
    assert set(proven.fail_to_pass) == hidden
    assert len(proven.pass_to_pass) == 7
    assert not set(proven.pass_to_pass) & hidden
    assert proven.unpredicted == ()


def test_broken_neighbours_fall_out_before_any_test_runs(validator: Validator, functions: dict[str, Candidate]) -> None:
    fair = functions["folder_of"]
    files = {"shapes/odd.py": ODD.replace("import os\n", "import os_that_is_not\n").encode()}
    verdict = validator.validate(dataclasses.replace(fair, deletion=dataclasses.replace(fair.deletion, files=files)))
    assert isinstance(verdict, Rejection)
    assert verdict.stage == "build"


def test_a_packed_task_hides_the_tests_and_what_only_they_used(
    repository: Repository, validator: Validator, functions: dict[str, Candidate]
) -> None:
    candidate = functions["folder_of"]
    proven = validator.validate(candidate)
    assert isinstance(proven, Proven)
    recipe = validator.recipes["function"]
    stolen = pack(repository, candidate, proven, recipe, Audited(environment_bytes=0, thief_reward=1.0))
    assert isinstance(stolen, Rejection) and stolen.stage == "audit"
    packed = pack(repository, candidate, proven, recipe, Audited(environment_bytes=7, thief_reward=0.0))
    assert isinstance(packed, Packed)
    assert packed.row["audit"]["thief_reward"] == 0.0
    assert packed.row["audit"]["bytes_scanned"] == 7 + sum(len(entry.content) for entry in packed.workspace)
    files = {entry.path: entry.content.decode() for entry in packed.workspace}
    source, tests = files["shapes/odd.py"], files["tests/test_odd.py"]
    assert "def folder_of(path):" in source
    assert "dirname" not in source
    assert "import os" not in source
    for gone in ("folder_of", "place", "SECRET", "import pytest"):
        assert gone not in tests
    assert "test_ignored" in tests
    assert {entry.path for entry in packed.tests} == {"tests/test_areas.py", "tests/test_odd.py"}
    assert packed.row["patch"].count("+++ b/") == 1
    for secret in ("dirname", "SECRET", "a/b"):
        assert secret not in packed.row["problem_statement"]
    assert "`ValueError`" in packed.row["problem_statement"]


def test_the_audit_rejects_before_anything_runs(
    repository: Repository, functions: dict[str, Candidate], tmp_path: Path
) -> None:
    candidate = functions["folder_of"]
    clean = LeakGate(repository=repository, pool=[candidate], cache=tmp_path)
    assert clean.check(candidate) is None and clean.n_bytes > 1_000_000
    haul = clean.rob(candidate, lambda _theft: 1.0)
    assert haul.tries == 0 and haul.reward == 0.0
    copied = ArchiveEntry(path="old/odd.py.txt", content=repository.entries["shapes/odd.py"].content)
    leaky = LeakGate(
        repository=dataclasses.replace(repository, entries={**repository.entries, copied.path: copied}),
        pool=[candidate],
        cache=tmp_path,
    )
    rejected = leaky.check(candidate)
    assert rejected is not None and rejected.stage == "audit" and copied.path in rejected.detail
