"""taskgen against SWE-smith's procedural pipeline: accepted tasks a CPU-minute, on the same repositories.

For each repository, in one run on one machine: the same sdist, the same Python environment (built once, by taskgen)
and the same cores for

* SWE-smith's own procedure (see ``swesmith_procedure.py``), in a virtual environment made for it, and
* taskgen in several modes, each on the candidates that its own ranking puts first.

Each runs in a process of its own; CPU is that of the process and of all that it started, sandboxes included.
Candidate generation is charged to both: to SWE-smith the share of the validated sample, to taskgen all of it, because
its ranking needs all candidates. What both do once a repository (the environment, runs of the pristine suite) stands
apart. CPU figures depend on the machine and its load; the ratios of one run are what counts.

Example: python benchmarks/compare_swesmith.py --repo boltons==26.2.0 --sample 30
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from swesmith_procedure import Meter

from taskgen import candidates
from taskgen import repository as repository_module
from taskgen.cli import cache_folder
from taskgen.config import find_data, load_recipes, load_repos, split_pin
from taskgen.packing import Audited, pack
from taskgen.repository import Repository, prepare
from taskgen.sandbox import ENV_DIR, HOME_DIR, WORKSPACE_DIR
from taskgen.sandboxes import mounts
from taskgen.sandboxes.common import BASE_ENV
from taskgen.sandboxes.select import select
from taskgen.session import RunRequest, TestSession
from taskgen.types import Candidate, Recipe, Rejection, RepoSpec, RunStatus, SourceKind, TestReport
from taskgen.validation import Validator

SWESMITH = ("swesmith[generate,validate]==0.0.9", "swebench<5")
#: What SWE-smith's Python profile runs, and what its log parser needs.
SWESMITH_OPTIONS = "--disable-warnings --color=no --tb=no --verbose"
DEFAULT_REPOS = ("boltons==26.2.0", "tabulate==0.10.0")
#: Runs of the pristine suite, as ``taskgen build`` does them.
BASELINE_RUNS = 3
ONCE = ("environment_cpu_s", "baseline_cpu_s")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """A way to run taskgen. ``recipes``: only these; empty: all."""

    title: str
    n_runs: int
    full_runs: int
    recipes: tuple[str, ...] = ()


MODES = {
    "full-3": Mode(title="taskgen, full_runs=3 (default)", n_runs=3, full_runs=3),
    "full-1": Mode(title="taskgen, full_runs=1", n_runs=3, full_runs=1),
    "touched-once": Mode(title="taskgen, touched tests once", n_runs=1, full_runs=0),
    "function-once": Mode(title="same, function recipe only", n_runs=1, full_runs=0, recipes=("function",)),
}


# -- the taskgen side (each in a process of its own) -----------------------------------------------


@dataclass(kw_only=True)
class Trial:
    """What happened to one candidate: runs by kind (number, CPU), and whether predictions held."""

    instance_id: str
    recipe: str
    predicted: int
    rejection: str = ""
    fail_to_pass: int = 0
    unpredicted: int = 0
    validation_cpu_s: float = 0.0
    runs: dict[str, int] = field(default_factory=dict)
    runs_cpu_s: dict[str, float] = field(default_factory=dict)
    #: Whether a whole suite, hidden tests included, failed what the touched tests foretold (None: none ran to its
    #: end); how many tests failed there alone, and how many did not fail there.
    agreed: bool | None = None
    beyond: int = 0
    alone: int = 0
    #: How many tests fail in the suite without the hidden tests; None: it did not run.
    visible_broken: int | None = None


class CountedSession(TestSession):
    """A session whose CPU does not vanish with its sandbox."""

    def close(self) -> None:
        Meter.before_kill()
        super().close()


class RecordingSession(CountedSession):
    """Remembers each run."""

    def __init__(self, repository: Repository) -> None:
        super().__init__(repository.provider, repository.environment.key, repository.tar())
        self.done: list[tuple[RunRequest, TestReport]] = []

    def run(self, request: RunRequest) -> TestReport:
        report = super().run(request)
        self.done.append((request, report))
        return report


def _kind(request: RunRequest, candidate: Candidate) -> str:
    if request.stop_early:
        return "stub"
    if not request.files:
        return "restored"
    if request.files == candidate.deletion.files:
        return "touched" if request.select is not None else "whole suite"
    return "visible tests" if request.select is not None else "visible suite"


def _record(trial: Trial, candidate: Candidate, session: RecordingSession, passing: frozenset[str]) -> None:
    """Enter the runs of a candidate, and whether a whole suite failed what the touched tests foretold.

    Only a run that includes the hidden tests can tell: in the visible suite, a test file that would not load has
    lost the import that is missing.
    """
    foretold: frozenset[str] = frozenset()
    for request, report in session.done:
        kind = _kind(request, candidate)
        trial.runs[kind] = trial.runs.get(kind, 0) + 1
        trial.runs_cpu_s[kind] = trial.runs_cpu_s.get(kind, 0.0) + report.cpu_s
        if kind == "touched" and trial.runs[kind] == 1:
            foretold = (request.select or frozenset()) - report.passed()
            trial.runs_cpu_s["first touched"] = report.cpu_s
        if report.status is not RunStatus.ENDED:
            continue
        if kind == "whole suite" and trial.agreed is None:
            found = passing - report.passed()
            trial.beyond, trial.alone = len(found - foretold), len(foretold - found)
            trial.agreed = found == foretold
        elif kind == "visible suite":
            trial.visible_broken = len((passing & set(report.collected)) - report.passed())
    session.done.clear()


def _repo_spec(pin: str) -> RepoSpec:
    """The shipped entry of a project (it may name requirements), at the wanted version; or a bare one."""
    name, version = split_pin(pin)
    for spec in load_repos(find_data("repos.yaml")):
        if spec.kind is SourceKind.SDIST and spec.location == name:
            return replace(spec, revision=version, sha256=spec.sha256 if spec.revision == version else None)
    return RepoSpec(
        name=f"pypi/{name}", kind=SourceKind.SDIST, location=name, revision=version, where="--repo", base="."
    )


def _prepared(job: Json, meter: Meter) -> tuple[Repository, dict[str, float]]:
    """The repository, and the CPU of each stage of making it ready."""
    cache, costs = Path(job["cache"]), dict[str, float]()
    setattr(repository_module, "TestSession", CountedSession)  # noqa: B010 - the baseline's sessions, too
    provider = select("bubblewrap", cache)
    meter.lap()
    stage = "probe"

    def on_stage(name: str) -> None:
        nonlocal stage
        costs[stage] = meter.lap()
        stage = name

    repository = prepare(
        _repo_spec(job["pin"]), provider, cache, n_runs=BASELINE_RUNS, seed=job["seed"], on_stage=on_stage
    )
    costs[stage] = meter.lap()
    return repository, costs


def _recipes(names: Sequence[str], sample: int) -> tuple[Recipe, ...]:
    """The shipped recipes, with limits that let the ranking fill the whole sample in one round."""
    return tuple(
        replace(r, max_tasks=max(sample, r.max_tasks), max_candidates=max(sample, r.max_candidates))
        for r in load_recipes(find_data("recipes"))
        if not names or r.name in names
    )


def _batches(
    pool: list[Candidate], recipes: Sequence[Recipe], sample: int, tried: dict[str, bool]
) -> Iterator[Candidate]:
    """The candidates to try, as ``taskgen build`` picks them; the caller notes in ``tried`` what became of each."""
    by_id = {c.instance_id: c for c in pool}
    while len(tried) < sample:
        accepted = [by_id[name] for name, ok in tried.items() if ok]
        batch = candidates.next_batch(pool, recipes, accepted, tried)[: sample - len(tried)]
        if not batch:
            return
        yield from batch


def work_mode(job: Json) -> Json:
    """Run a mode on a repository; the report."""
    meter, mode = Meter(), MODES[job["mode"]]
    repository, costs = _prepared(job, meter)
    recipes = _recipes(mode.recipes, job["sample"])
    pool = candidates.propose(repository.survey, recipes, repository.spec, repository.checkout.commit)
    generation = costs["survey"] + meter.lap()
    session = RecordingSession(repository)
    by_name = {recipe.name: recipe for recipe in recipes}
    validator = Validator(
        session=session, survey=repository.survey, suite=repository.suite, recipes=by_name,
        n_runs=mode.n_runs, full_runs=mode.full_runs,
        build=repository.run_build if repository.environment.build_command else None,
    )  # fmt: skip
    passing, tried = frozenset(repository.survey.baseline.passing), dict[str, bool]()
    trials, packing = [], 0.0
    for candidate in _batches(pool, recipes, job["sample"], tried):
        trial = Trial(instance_id=candidate.instance_id, recipe=candidate.recipe, predicted=len(candidate.predicted))
        result = validator.validate(candidate)
        _record(trial, candidate, session, passing)
        if not isinstance(result, Rejection):
            trial.fail_to_pass, trial.unpredicted = len(result.fail_to_pass), len(result.unpredicted)
            before = Meter.read()
            packed = pack(
                repository, candidate, result, by_name[candidate.recipe], Audited(environment_bytes=0, thief_reward=0.0)
            )
            packing += Meter.read() - before
            result = packed if isinstance(packed, Rejection) else result
        if isinstance(result, Rejection):
            trial.rejection = f"{result.stage}: {result.reason}"
        tried[candidate.instance_id] = not trial.rejection
        trials.append(trial)
    session.close()
    return {
        "proposed": len(pool),
        "generation_cpu_s": generation,
        "validation_cpu_s": meter.lap() - packing,
        "packing_cpu_s": packing,
        "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "trials": [asdict(trial) for trial in trials],
    }


def work_prepare(job: Json) -> Json:
    """Make the repository ready, write its tree for SWE-smith, and measure its suite once."""
    repository, costs = _prepared(job, Meter())
    tree = Path(job["tree"])
    shutil.copytree(repository.tree.root, tree, symlinks=True)
    snapshot = Path(job["cache"]) / "snapshots" / repository.environment.key
    shutil.copytree(snapshot / "artifacts", tree, symlinks=True, dirs_exist_ok=True)
    with RecordingSession(repository) as session:
        whole = [session.run(repository.suite.request()).cpu_s for _ in range(2)]
    return {
        "key": repository.environment.key,
        "environment_cpu_s": costs["install"],
        "baseline_cpu_s": costs["baseline"],
        "suite_cpu_s": whole[-1],
        "passing": len(repository.survey.baseline.passing),
        "args": list(repository.suite.args),
        "snapshot": str(snapshot),
        "etc": str(_write_etc(tree.parent)),
    }


def _write_etc(folder: Path) -> Path:
    mounts.write_etc(folder / "etc")
    return folder / "etc"


WORKERS: dict[str, Callable[[Json], Json]] = {"prepare": work_prepare, "mode": work_mode}


# -- running them ----------------------------------------------------------------------------------


def _worker(kind: str, job: Json, scratch: Path) -> Json:
    """Run a worker in a process of its own."""
    out = scratch / "answer.json"
    argv = [sys.executable, __file__, "--worker", kind, json.dumps({**job, "out": str(out)})]
    subprocess.run(argv, check=True)
    return dict(json.loads(out.read_text("utf-8")))


def swesmith_python(cache: Path) -> Path:
    """The Python of a virtual environment with SWE-smith, made on first use."""
    folder = cache / "swesmith-venv"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        _say(f"making {folder} with {' '.join(SWESMITH)} (once)")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *SWESMITH], check=True)
        (folder / "ready").touch()
    return python


def _launch(prepared: Json) -> list[str]:
    """How a copy of the tree is run: the sandbox that taskgen's runs have, started anew for each run."""
    variables = {
        **BASE_ENV, "CI": "true", "PYTHONHASHSEED": "0", "VIRTUAL_ENV": f"{ENV_DIR}/venv",
    }  # fmt: skip
    return [
        "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv",
        *mounts.system(Path(prepared["etc"])),
        "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", HOME_DIR,
        "--ro-bind", prepared["snapshot"], ENV_DIR, "--bind", "{work}", WORKSPACE_DIR, "--chdir", WORKSPACE_DIR,
        *(word for name, value in variables.items() for word in ("--setenv", name, value)), "--",
    ]  # fmt: skip


def _run_swesmith(python: Path, pin: str, prepared: Json, options: argparse.Namespace, scratch: Path) -> Json:
    command = f"{ENV_DIR}/venv/bin/python -m pytest {SWESMITH_OPTIONS} {shlex.join(prepared['args'])}"
    work, out = scratch / "swesmith", scratch / "swesmith.json"
    work.mkdir()
    argv = [
        str(python), str(Path(__file__).with_name("swesmith_procedure.py")), "--tree", str(scratch / "tree"),
        "--work", str(work), "--name", split_pin(pin)[0], "--test-command", command,
        "--launch", json.dumps(_launch(prepared)), "--sample", str(options.sample), "--seed", str(options.seed),
        "--out", str(out),
    ]  # fmt: skip
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SystemExit(f"swesmith_procedure.py ended with code {done.returncode}:\n{done.stdout[-4000:]}")
    return dict(json.loads(out.read_text("utf-8")))


@contextmanager
def _scratch(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="taskgen-compare-"))
    try:
        yield folder
    finally:
        if keep:
            _say(f"kept {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def compare(pin: str, options: argparse.Namespace) -> Json:
    """All columns of one repository."""
    cache = cache_folder()
    job = {"pin": pin, "cache": str(cache), "seed": options.seed, "sample": options.sample}
    with _scratch(options.keep) as scratch:
        _say(f"{pin}: environment and baseline")
        prepared = _worker("prepare", {**job, "tree": str(scratch / "tree")}, scratch)
        once = _first_costs(cache, prepared)
        columns = []
        if not options.no_swesmith:
            _say(f"{pin}: SWE-smith")
            report = _run_swesmith(swesmith_python(cache), pin, prepared, options, scratch)
            if report["reference_cpu_s"] < prepared["suite_cpu_s"] / 3:
                raise SystemExit(f"SWE-smith's reference run took {report['reference_cpu_s']:.2f} CPU s: not counted")
            columns.append(swesmith_column(report))
        for name in options.modes:
            _say(f"{pin}: {MODES[name].title}")
            report = _worker("mode", {**job, "mode": name}, scratch)
            columns.append(taskgen_column(MODES[name], report, prepared["suite_cpu_s"]))
    reference = columns[0]["accepted_per_cpu_minute"] if not options.no_swesmith else None
    _contradict(columns)
    for column in columns:
        column["ratio"] = column["accepted_per_cpu_minute"] / reference if reference else None
    known = {key: prepared[key] for key in ("passing", "suite_cpu_s")}
    return {"repo": pin, **known, **once, "columns": columns}


def _contradict(columns: Sequence[Json]) -> None:
    """Count what a mode accepts and the default mode rejects, or accepts with other hidden tests."""
    titles = {column["title"]: column for column in columns}
    judge = titles.get(MODES["full-3"].title)
    verdicts = {t["instance_id"]: t for t in judge["trials"]} if judge is not None else {}
    for column in columns:
        if column is judge or "trials" not in column:
            continue
        pairs = [(t, verdicts[t["instance_id"]]) for t in column["trials"] if t["instance_id"] in verdicts]
        fields = ("rejection", "fail_to_pass")
        differ = sum(any(ours[f] != theirs[f] for f in fields) for ours, theirs in pairs if not ours["rejection"])
        column["contradicted"], column["compared"] = (differ if pairs else None), len(pairs)


def _first_costs(cache: Path, prepared: Json) -> Json:
    """What the environment and the baseline cost when they were made, perhaps by an earlier run."""
    record = cache / "compare-swesmith" / f"{prepared['key']}.json"
    known = json.loads(record.read_text()) if record.exists() else {}
    # What was taken from the cache cost next to nothing, and says nothing.
    measured = {key: prepared[key] for key in ONCE if prepared[key] > prepared["suite_cpu_s"]}
    known = {**dict.fromkeys(ONCE), **known, **measured}
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps(known))
    return known


# -- figures ---------------------------------------------------------------------------------------


def _spread(numbers: Sequence[int]) -> list[float]:
    return [min(numbers), statistics.median(numbers), max(numbers)] if numbers else []


def swesmith_column(report: Json) -> Json:
    """SWE-smith's figures; accepted are candidates with at least one F2P and one P2P."""
    verdicts = report["verdicts"]
    accepted = [v for v in verdicts if v["f2p"] and v["p2p"]]
    lost = Counter("timed out" if v["timed_out"] else "no F2P or no P2P" for v in verdicts if v not in accepted)
    share = len(verdicts) / max(report["proposed"], 1)
    return _column(
        "SWE-smith, procedural",
        report,
        tried=len(verdicts),
        fail_to_pass=[v["f2p"] for v in accepted],
        generation=report["generation_cpu_s"] * share,
        validation=report["validation_cpu_s"],
    ) | {"reference_cpu_s": report["reference_cpu_s"], "rejected": lost, "verdicts": verdicts}


def taskgen_column(mode: Mode, report: Json, suite_cpu_s: float) -> Json:
    """A mode's figures."""
    trials = report["trials"]
    accepted = [t for t in trials if not t["rejection"]]
    column = _column(
        mode.title,
        report,
        tried=len(trials),
        fail_to_pass=[t["fail_to_pass"] for t in accepted],
        generation=report["generation_cpu_s"],
        validation=report["validation_cpu_s"] + report["packing_cpu_s"],
    )
    confirmed = [t for t in trials if t["agreed"] is not None]
    spent = sum(cpu for t in trials for kind, cpu in t["runs_cpu_s"].items() if kind != "first touched")
    if report["validation_cpu_s"] < 0.98 * spent:
        counted = report["validation_cpu_s"]
        raise SystemExit(f"{mode.title}: {counted:.1f} CPU s counted, but its runs alone took {spent:.1f}")
    runs: Counter[str] = Counter()
    for trial in trials:
        runs.update({kind: spent for kind, spent in trial["runs_cpu_s"].items() if kind != "first touched"})
    return column | _floor(mode, accepted, suite_cpu_s, column["cpu_per_accepted_s"]) | {
        "packing_cpu_s": report["packing_cpu_s"],
        "run_cpu_s": runs,
        "confirmed": len(confirmed),
        "disagreed": sum(not t["agreed"] for t in confirmed),
        "with_unpredicted": sum(t["unpredicted"] > 0 for t in accepted),
        "beyond": sum(t["beyond"] > 0 for t in confirmed),
        "alone": sum(t["alone"] > 0 for t in confirmed),
        "visible": sum(t["visible_broken"] is not None for t in trials),
        "visible_broken": sum(bool(t["visible_broken"]) for t in trials),
        "rejected": Counter(t["rejection"] for t in trials if t["rejection"]),
        "by_recipe": Counter(t["recipe"] for t in accepted),
        "trials": trials,
    }  # fmt: skip


def _column(
    title: str, report: Json, *, tried: int, fail_to_pass: Sequence[int], generation: float, validation: float
) -> Json:
    accepted, spent = len(fail_to_pass), generation + validation
    return {
        "title": title,
        "proposed": report["proposed"],
        "tried": tried,
        "accepted": accepted,
        "yield": accepted / tried if tried else 0.0,
        "fail_to_pass": _spread(fail_to_pass),
        "generation_cpu_s": generation,
        "validation_cpu_s": validation,
        "cpu_per_candidate_s": validation / tried if tried else 0.0,
        "cpu_per_accepted_s": spent / accepted if accepted else None,
        "accepted_per_cpu_minute": 60 * accepted / spent if spent else 0.0,
        "accepted_per_cpu_minute_validation": 60 * accepted / validation if validation else 0.0,
        "rss_bytes": report["rss_bytes"],
    }


def _floor(mode: Mode, accepted: Sequence[Json], suite_cpu_s: float, cpu_per_accepted_s: float | None) -> Json:
    """The least CPU that an accepted task can cost, and how far this mode is from it.

    ``bare``: the touched tests once without the feature and the hidden ones once with it. The mode's own floor adds
    the runs that its evidence consists of: whole suites, repeats of the touched tests, the visible tests. Stubs,
    imports, lint and packing are in neither.
    """
    if not accepted or cpu_per_accepted_s is None:
        return {"bare_floor_s": None, "floor_s": None, "distance": None}
    touched = statistics.mean(t["runs_cpu_s"].get("first touched", 0.0) for t in accepted)
    restored = statistics.mean(t["runs_cpu_s"].get("restored", 0.0) for t in accepted)
    visible = statistics.mean(t["runs_cpu_s"].get("visible tests", 0.0) for t in accepted)
    whole = max(mode.full_runs - 1, 0)
    bare = touched + restored
    floor = bare + (mode.n_runs - 1 - whole) * touched + whole * suite_cpu_s
    floor += suite_cpu_s if mode.full_runs else visible
    return {
        "bare_floor_s": bare,
        "floor_s": floor,
        "distance": cpu_per_accepted_s / floor,
        "bare_distance": cpu_per_accepted_s / bare if bare else None,
    }


# -- printing --------------------------------------------------------------------------------------


def _number(value: object, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


ROWS: dict[str, Callable[[Json], str]] = {
    "candidates proposed": lambda c: str(c["proposed"]),
    "candidates tried": lambda c: str(c["tried"]),
    "accepted (yield)": lambda c: f"{c['accepted']} ({c['yield']:.0%})",
    "F2P min / median / max": lambda c: " / ".join(f"{n:g}" for n in c["fail_to_pass"]) or "-",
    "generation, CPU s": lambda c: _number(c["generation_cpu_s"]),
    "validation, CPU s": lambda c: _number(c["validation_cpu_s"]),
    "validation, CPU s a candidate": lambda c: _number(c["cpu_per_candidate_s"]),
    "ACCEPTED A CPU-MINUTE": lambda c: _number(c["accepted_per_cpu_minute"], ".1f"),
    "  times SWE-smith": lambda c: _number(c["ratio"], ".2f"),
    "  without generation": lambda c: _number(c["accepted_per_cpu_minute_validation"], ".1f"),
    "CPU s an accepted task": lambda c: _number(c["cpu_per_accepted_s"]),
    "floor: touched tests twice": lambda c: _number(c.get("bare_floor_s")),
    "floor with the mode's evidence": lambda c: _number(c.get("floor_s")),
    "  distance from it": lambda c: _number(c.get("distance"), ".2f"),
    "whole suite disagrees": lambda c: f"{c['disagreed']} of {c['confirmed']}" if c.get("confirmed") else "-",
    "  more tests fail in it": lambda c: str(c["beyond"]) if c.get("confirmed") else "-",
    "  fewer tests fail in it": lambda c: str(c["alone"]) if c.get("confirmed") else "-",
    "visible suite fails": lambda c: f"{c['visible_broken']} of {c['visible']}" if c.get("visible") else "-",
    "accepted, but full_runs=3 differs": lambda c: _number(c.get("contradicted"), "d"),
    "accepted with unpredicted F2P": lambda c: str(c["with_unpredicted"]) if "with_unpredicted" in c else "-",
    "peak memory of the driver, MiB": lambda c: _number(c["rss_bytes"] / 2**20, ".0f"),
}


def table(result: Json) -> str:
    """The columns of one repository side by side."""
    columns = result["columns"]
    lines = [["", *(c["title"] for c in columns)]]
    lines += [[name, *(show(c) for c in columns)] for name, show in ROWS.items()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns) + 1)]
    text = [
        "  ".join([first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(cells, widths[1:], strict=True))])
        for first, *cells in lines
    ]
    return "\n".join([_heading(result), "", *text, "", *_footnotes(columns)])


def _heading(result: Json) -> str:
    theirs = "".join(
        f", SWE-smith's reference run {c['reference_cpu_s']:.1f}" for c in result["columns"] if "reference_cpu_s" in c
    )
    environment, baseline = (_number(result[key], ".1f") for key in ONCE)
    return (
        f"{result['repo']}: {result['passing']} passing tests, {result['suite_cpu_s']:.2f} CPU s a suite\n"
        f"once a repository, not charged, CPU s: environment {environment} (shared), "
        f"taskgen's baseline {baseline} ({BASELINE_RUNS} suites and one for coverage){theirs}"
    )


def _footnotes(columns: Sequence[Json]) -> Iterator[str]:
    for column in columns:
        rejected = ", ".join(f"{n} {reason}" for reason, n in sorted(column["rejected"].items())) or "none"
        yield f"rejected, {column['title']}: {rejected}"
        if "run_cpu_s" in column:
            spent = ", ".join(f"{kind} {cpu:.1f}" for kind, cpu in sorted(column["run_cpu_s"].items()))
            yield f"  CPU s of runs: {spent}; packing {column['packing_cpu_s']:.1f}"
            yield f"  accepted: {_listed(column['by_recipe'])}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "none"


def _say(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, names = parser.add_argument, ", ".join(MODES)
    add(
        "--repo",
        action="append",
        metavar="NAME==VERSION",
        help=f"an sdist of PyPI; repeatable (default: {', '.join(DEFAULT_REPOS)})",
    )
    add("--sample", type=int, default=30, help="candidates that each column tries (default: %(default)s)")
    add("--seed", type=int, default=0, help="of all random choices (default: %(default)s)")
    add(
        "--modes",
        nargs="+",
        choices=list(MODES),
        default=list(MODES),
        metavar="MODE",
        help=f"modes of taskgen: {names} (default: all)",
    )
    add("--no-swesmith", action="store_true", help="leave SWE-smith out")
    add("--json", type=Path, metavar="FILE", help="write all figures, with those of each candidate, as JSON")
    add("--keep", action="store_true", help="keep the scratch folder")
    return parser.parse_args()  # fmt: skip


def main() -> None:
    """Parse the options, run, print."""
    if sys.argv[1:2] == ["--worker"]:
        job = json.loads(sys.argv[3])
        Path(job["out"]).write_text(json.dumps(WORKERS[sys.argv[2]](job)), "utf-8")
        return
    options = _parse()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    results = []
    for pin in options.repo or DEFAULT_REPOS:
        results.append(compare(pin, options))
        print(table(results[-1]), end="\n\n", flush=True)
        if options.json:
            record = {"sample": options.sample, "seed": options.seed, "repos": results}
            options.json.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
