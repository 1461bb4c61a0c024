"""The records of the domain: frozen, typed, from the standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

SCHEMA_VERSION = 2


# --- Where code comes from -----------------------------------------------------------------------


class SourceKind(StrEnum):
    """How a repository is obtained. The values are those of the task format's ``source.kind``."""

    GIT = "git"
    SDIST = "sdist"
    PATH = "path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a repository came from.

    Attributes:
        kind: git, sdist or path.
        url: git URL, sdist URL or file name, or the path as it was written.
        revision: commit or version.
        sha256: digest of the sdist file; empty for git and path.
    """

    kind: SourceKind
    url: str
    revision: str
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoSpec:
    """One entry of repos.yaml, checked. ``None`` or an empty tuple means: detect it.

    Attributes:
        name: ``owner/name``, ``pypi/name`` or ``local/name``.
        location: the value of git:, pypi: or path:.
        revision: commit, tag or branch (git), version (pypi), commit or empty (path).
        sha256: expected digest of the sdist, or None.
        install: shell commands that replace the default editable install.
        requirements: extra requirements (PEP 508) for the tests.
        test_command: ``pytest`` and its options.
        include, exclude: globs of source files from which features may be deleted.
        where: ``file:line`` of the entry, for messages.
        base: folder that a relative ``path:`` starts from (that of repos.yaml).
    """

    name: str
    kind: SourceKind
    location: str
    revision: str
    sha256: str | None = None
    language: str | None = None
    runtime: str | None = None
    install: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    build_command: str | None = None
    test_command: str | None = None
    test_paths: tuple[str, ...] = ()
    timeout_s: float | None = None
    licence: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    where: str = ""
    base: str = ""

    @property
    def slug(self) -> str:
        """The name as it appears in instance ids: lower case, ``/`` and other marks as ``-``."""
        return "".join(c if c.isalnum() or c in "._" else "-" for c in self.name.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file of a tree: bytes on disk are under ``Tree.root / path``."""

    path: str
    executable: bool
    sha256: str
    size_bytes: int
    link_target: str | None = None


# --- Code -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A function, method or class in a file. Lines count from 1, bytes from 0, ends of bytes exclusive.

    Attributes:
        kind: function, method or class.
        signature: decorators (one a line) and the header on one line, without its colon.
        start_line, end_line: decorators and body included.
        body_line: the first line of code behind the docstring.
        body_byte, after_doc_byte: where the body begins, and where its docstring ends.
    """

    path: str
    qualified_name: str
    kind: Literal["function", "method", "class"]
    signature: str
    docstring: str
    start_line: int
    end_line: int
    body_line: int
    start_byte: int
    end_byte: int
    body_byte: int
    after_doc_byte: int

    @property
    def name(self) -> str:
        return self.qualified_name.rsplit(".", 1)[-1]

    @property
    def owner(self) -> str:
        """The qualified name of the class around it, or ''."""
        return self.qualified_name.rpartition(".")[0]

    @property
    def body_lines(self) -> int:
        """Lines from the first statement behind the docstring to the end."""
        return max(0, self.end_line - self.body_line + 1)


# --- Runs -----------------------------------------------------------------------------------------


class Outcome(StrEnum):
    """How a test ended. Only PASSED is a pass; MISSING: it was asked for and did not report."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    MISSING = "missing"


class RunStatus(StrEnum):
    """How a whole run ended. Anything but ENDED means that tests may be missing."""

    ENDED = "ended"
    TEST_TIMEOUT = "test_timeout"
    RUN_TIMEOUT = "run_timeout"
    CRASHED = "crashed"
    FLOODED = "flooded"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """One test of a run. ``spawned``: it started another process. ``message``: the failure's first words."""

    __test__ = False

    outcome: Outcome
    seconds: float = 0.0
    spawned: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Which tests ran which lines.

    Attributes:
        tests: test ids; the index of one is its bit.
        lines: path -> line -> the tests that ran it, as bits.
        import_lines: path -> lines that ran while no test did.
        spawning: the tests that started other processes (their lines may be incomplete), as bits.
    """

    tests: tuple[str, ...]
    lines: dict[str, dict[int, int]]
    import_lines: dict[str, frozenset[int]]
    spawning: int = 0

    def of_lines(self, path: str, first: int, last: int) -> int:
        """The tests that ran any line of [first, last], as bits."""
        found, bits = self.lines.get(path, {}), 0
        for line in range(first, last + 1):
            bits |= found.get(line, 0)
        return bits

    def ids(self, bits: int) -> frozenset[str]:
        """Test ids of a set of bits."""
        return frozenset(test for i, test in enumerate(self.tests) if bits >> i & 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReport:
    """A run of tests. ``results`` has the tests that reported; an empty report is never a pass.

    Attributes:
        faults: what in the report contradicts itself. Only a run that tampers with it, or a plugin with an exit code
            of its own, brings that about.
        changed: protected files that were other files when the run was over.
    """

    __test__ = False

    status: RunStatus
    results: dict[str, TestResult]
    collected: tuple[str, ...] = ()
    collection_errors: dict[str, str] = field(default_factory=dict)
    output: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0
    coverage: Coverage | None = None
    faults: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def outcome(self, test: str) -> Outcome:
        found = self.results.get(test)
        return found.outcome if found is not None else Outcome.MISSING

    def passed(self) -> frozenset[str]:
        return frozenset(t for t, r in self.results.items() if r.outcome is Outcome.PASSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """How to make the machine of a repository: the ``environment`` struct of the task format, and its key."""

    key: str
    language: str
    runtime: str
    install: tuple[str, ...]
    requirements: tuple[str, ...]
    build_command: str
    test_command: str
    timeout_s: float
    image: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the pristine suite does.

    Attributes:
        passing: tests that passed in each run.
        flaky: tests with more than one outcome. slow: tests set apart for their time.
        failing: tests that never passed (skips included).
        seconds: test -> median seconds.
        unmeasured: passing tests whose coverage is missing or incomplete; any change may touch them.
        importable: module names that import in the pristine tree.
    """

    n_runs: int
    passing: tuple[str, ...]
    flaky: tuple[str, ...]
    slow: tuple[str, ...]
    failing: tuple[str, ...]
    seconds: dict[str, float]
    coverage: Coverage
    unmeasured: frozenset[str]
    importable: tuple[str, ...]
    suite_s: float
    suite_cpu_s: float


# --- Tasks ----------------------------------------------------------------------------------------


class Removal(StrEnum):
    """What happened to a definition: all of it went, or its signature stays and its body went."""

    WHOLE = "whole"
    BODY = "body"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """A definition that a deletion removes."""

    definition: Definition
    removal: Removal


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A change of the pristine tree's sources: path -> new bytes, or None where the file goes.

    Attributes:
        names: (path, name) at the top level of files that no longer exist, re-exports and constants included.
    """

    files: dict[str, bytes | None]
    deleted: tuple[Deleted, ...]
    removed_lines: dict[str, frozenset[int]]
    names: tuple[tuple[str, str], ...] = ()

    @property
    def n_lines(self) -> int:
        return sum(len(lines) for lines in self.removed_lines.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A deletion that may become a task.

    Attributes:
        instance_id: as in the task format; known before anything runs.
        covering: passing tests that ran the deleted lines.
        predicted: tests that the deletion is expected to break.
        score: the higher, the sooner it is tried.
        keep_docstring, hints: as its recipe had them when it was proposed.
    """

    instance_id: str
    recipe: str
    deletion: Deletion
    covering: frozenset[str]
    predicted: frozenset[str]
    score: float
    keep_docstring: bool = True
    hints: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why a candidate did not become a task: data, not an error."""

    candidate: str
    stage: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the runs of an accepted candidate showed. The ``checks`` struct of the task format."""

    n_runs: int
    full_runs: int
    flaky: tuple[str, ...]
    null_fails: bool
    stub_fails: bool
    gold_passes: bool
    tree_restored: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """What stands between a task and an answer that only looks right. Part of the ``checks`` struct.

    Attributes:
        mutation_score: share (0 to 1) of ``n_mutants`` faulty versions of the deleted code that hidden tests refuse.
        guarded_score: the same with the differential check beside them.
        n_twins: copies of hidden tests with wrong expectations.
        n_calls, n_changed_calls: recorded calls of the differential check, and those with changed arguments.
        not_recorded: why there is no differential check; '' if there is one.
    """

    n_mutants: int
    mutation_score: float
    guarded_score: float
    n_twins: int
    n_calls: int
    n_changed_calls: int
    not_recorded: str


class VerdictKind(StrEnum):
    """The result of grading a patch. INFRA_ERROR says nothing about the patch."""

    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"
    TIMED_OUT = "timed_out"
    HACKED = "hacked"
    INFRA_ERROR = "infra_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What grading a patch found.

    Attributes:
        failed: ids of F2P and P2P tests that did not pass, with outcomes.
        refused: paths of the work that were left out, with the reason.
        guards: what the checks beyond the tests said, by name: ``passed``, ``none`` or what is wrong.
        evidence: for a verdict that a guard decided: what the patch did, against what was right.
        signals: places of the patch that look like cheating, and that the gold code has none of. No verdict.
        similarity_to_gold: share (0 to 1) of the gold patch's added code that the patch adds, too; 1: verbatim.
    """

    instance_id: str
    kind: VerdictKind
    failed: dict[str, str]
    n_passed: int
    reason: str
    seconds: float
    refused: dict[str, str] = field(default_factory=dict)
    guards: dict[str, str] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    similarity_to_gold: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A repository that was fetched: a bare git repository in the cache and the commit wanted of it.

    Attributes:
        name: that of the repository's entry.
        source: where it came from; ``revision`` is the commit (git, path) or the version (sdist).
        bare: bare git repository in the cache.
        commit: the commit in ``bare``; for an sdist or a plain folder that of its deterministic import.
        version: for SETUPTOOLS_SCM_PRETEND_VERSION: the sdist's, or that of the nearest tag, or "0".
        licence: SPDX id where it is known, else what the package says of itself, else empty.
        warnings: what a person should know, and that does not stop the build.
    """

    name: str
    source: Source
    bare: Path
    commit: str
    version: str
    licence: str = ""
    warnings: tuple[str, ...] = ()


# --- What may be deleted -------------------------------------------------------------------------

Operator = Literal["function", "method-group", "class", "module", "feature"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits that a candidate must keep; both ends are included.

    Attributes:
        min_lines, max_lines: source lines deleted.
        min_files, max_files: files that lose lines.
        min_definitions, max_definitions: functions, methods and classes deleted.
        min_fail_to_pass, max_fail_to_pass: tests that the deletion breaks.
        max_suite_share: largest share (0 to 1) of the suite that may fail.
        max_collateral_share: largest share (0 to 1) of the failing tests that fail for another cause.
    """

    min_lines: int
    max_lines: int
    min_files: int
    max_files: int
    min_definitions: int
    max_definitions: int
    min_fail_to_pass: int
    max_fail_to_pass: int
    max_suite_share: float
    max_collateral_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One kind of task: which operator, on which languages, within which bounds.

    Attributes:
        max_tasks, max_candidates: limits per repository.
        keep_signature, keep_docstring: whether a stub with the signature (the docstring) is left behind.
        hints: whether the statement says what the deleted code called and raised, and how long it was.
        sha256: digest of the YAML file and the template together.
        template: Jinja2 text of the problem statement.
    """

    name: str
    operator: Operator
    languages: tuple[str, ...]
    bounds: Bounds
    max_tasks: int
    max_candidates: int
    keep_signature: bool
    keep_docstring: bool
    sha256: str
    template: str
    hints: bool = False


# --- Rollouts ------------------------------------------------------------------------------------

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the policy made. ``arguments``: the JSON object as decoded; where the policy wrote no JSON object,
    its text under the key ``raw``."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool answered. ``call_id``: that of the call, or '' (the calls before it, in order). ``exit_code``: None
    where the tool has none or did not say."""

    text: str
    call_id: str = ""
    exit_code: int | None = None
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of a trajectory. ``extra``: keys of its JSON object that this version does not know."""

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One attempt of a policy at a task.

    Attributes:
        policy: name and version of the policy; '' where it is not known.
        reward: what grading gave it, or None: not graded, or masked.
        repo: the repository's name as in repos.yaml (``pypi/boltons``), or ''.
        packages: what the project is called where it is installed (``more_itertools``); empty: taken from ``repo``
            or ``instance_id``.
        extra: keys of the JSON object that this version does not know; they are written again.
    """

    rollout_id: str
    instance_id: str
    policy: str
    turns: tuple[Turn, ...]
    reward: float | None = None
    repo: str = ""
    packages: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
