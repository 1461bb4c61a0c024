"""One pytest run, inside the sandbox: selects, orders and reports tests as JSON lines, with coverage if asked."""

from __future__ import annotations

import contextlib
import glob
import importlib
import importlib.util
import json
import os
import random
import sys
from importlib import metadata
from typing import Any

WORKSPACE, ENVIRONMENT = "/workspace", "/env"
COVERAGE_DIR = "/tmp/taskgen-coverage"
MESSAGE_CHARS = 300
#: Audit events that mean: this test started another process, which in-process coverage cannot see.
SPAWN_EVENTS = {
    "subprocess.Popen",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.exec",
    "os.system",
    "pty.spawn",
}


def preload() -> None:
    """Import what every run needs. Plugins that live in the workspace are left for the run itself."""
    import pytest  # noqa: F401
    from _pytest.assertion.rewrite import AssertionRewritingHook

    # pytest warns of plugins that were loaded before it could rewrite their asserts; where warnings are errors,
    # that would be the end of the run. Their asserts are nobody's concern here.
    AssertionRewritingHook._warn_already_imported = lambda self, name: None  # type: ignore[method-assign]

    for entry in metadata.entry_points(group="pytest11"):
        spec = None
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(entry.value.split(":")[0].split(".")[0])
        if spec is not None and not (spec.origin or "").startswith(WORKSPACE + "/"):
            with contextlib.suppress(ImportError):
                importlib.import_module(entry.value.split(":")[0])


class Reporter:
    """A pytest plugin: one event a line on a pipe of its own, never on stdout."""

    def __init__(self, request: dict[str, Any], events_fd: int) -> None:
        self.request = request
        self.events = os.fdopen(events_fd, "w", encoding="utf-8", errors="replace", buffering=1)
        selected: list[str] | None = request.get("select")
        self.select: set[str] | None = None if selected is None else set(selected)
        self.deselect: set[str] = set(request.get("deselect", ()))
        self.index: dict[str, int] = {}
        self.outcome = ""
        self.message = ""
        self.seconds = 0.0
        self.spawned = False
        self.coverage: Any = None
        self.pid = os.getpid()
        sys.addaudithook(self._audit)

    def emit(self, kind: str, **fields: Any) -> None:
        if os.getpid() == self.pid:  # a forked child of a test must not speak for the run
            self.events.write(json.dumps({"e": kind, **fields}) + "\n")

    def _audit(self, event: str, _args: Any) -> None:
        if event in SPAWN_EVENTS:
            self.spawned = True

    # -- collection ------------------------------------------------------------------------------

    def pytest_configure(self, config: Any) -> None:
        os.environ.pop("PYTEST_DISABLE_PLUGIN_AUTOLOAD", None)  # it is for this run, not for what its tests start

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.emit("collect_error", id=report.nodeid, message=str(report.longrepr)[-2000:])

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        keep: list[Any] = []
        drop: list[Any] = []
        for item in items:
            wanted = self.select is None or item.nodeid in self.select
            doctest = type(item).__name__ == "DoctestItem"  # lives in source files, not in tests
            (keep if wanted and not doctest and item.nodeid not in self.deselect else drop).append(item)
        if self.request.get("shuffle") is not None:
            keep = shuffled(keep, self.request["shuffle"])
        items[:] = keep
        if drop:
            config.hook.pytest_deselected(items=drop)

    def pytest_collection_finish(self, session: Any) -> None:
        ids = list(dict.fromkeys(item.nodeid for item in session.items))
        self.index = {test: i for i, test in enumerate(ids)}
        self.emit("collected", ids=ids)

    # -- running ---------------------------------------------------------------------------------

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.outcome, self.message, self.seconds, self.spawned = "", "", 0.0, False
        self.emit("start", i=self.index.get(nodeid, -1))
        os.environ["TASKGEN_TEST"] = nodeid
        if self.coverage is not None:
            self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds += report.duration
        outcome = classify(report)
        if RANK.index(outcome) > (RANK.index(self.outcome) if self.outcome else -1):
            self.outcome = outcome
            crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
            self.message = str(getattr(crash, "message", ""))[:MESSAGE_CHARS] if report.failed else ""

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if self.coverage is not None:
            self.coverage.switch_context("")
        self.emit(
            "end", i=self.index.get(nodeid, -1), o=self.outcome or "error", s=round(self.seconds, 4),
            p=self.spawned, m=self.message,
        )  # fmt: skip


#: From the least to the most telling: the worst phase (or subtest) is the outcome of the test.
RANK = ["", "passed", "skipped", "xfailed", "xpassed", "failed", "error"]


def classify(report: Any) -> str:
    """The outcome that one phase's report speaks for ('' for a phase that says nothing)."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.failed:
        return "failed" if report.when == "call" else "error"
    if report.skipped:
        return "skipped" if not hasattr(report, "context") else ""
    return "passed" if report.when == "call" and not hasattr(report, "context") else ""


def shuffled(items: list[Any], seed: int) -> list[Any]:
    """Random order of modules, of classes within them, and of tests within those (fixtures stay scoped)."""
    rng = random.Random(seed)
    groups: dict[Any, dict[Any, list[Any]]] = {}
    for item in items:
        parts = item.nodeid.split("::")
        groups.setdefault(parts[0], {}).setdefault("::".join(parts[1:-1]), []).append(item)
    modules = list(groups)
    rng.shuffle(modules)
    order: list[Any] = []
    for module in modules:
        classes = list(groups[module])
        rng.shuffle(classes)
        for name in classes:
            rng.shuffle(groups[module][name])
            order += groups[module][name]
    return order


# -- coverage ------------------------------------------------------------------------------------


def start_coverage(reporter: Reporter) -> Any:
    """Measure lines by test, in this process and (through coverage's own start-up hook) in subprocesses."""
    import coverage

    os.makedirs(COVERAGE_DIR, exist_ok=True)
    config = os.path.join(COVERAGE_DIR, "rc")
    with open(config, "w", encoding="utf-8") as out:
        out.write(
            "[run]\nsource = %s\nparallel = true\ndata_file = %s/data\ncontext = ${TASKGEN_TEST-}\n"
            % (WORKSPACE, COVERAGE_DIR)
        )
    os.environ["COVERAGE_PROCESS_START"] = config
    measured = coverage.Coverage(data_file=None, source=[WORKSPACE], config_file=False)
    measured.start()
    measured.switch_context("")
    reporter.coverage = measured
    return measured


def report_coverage(reporter: Reporter, measured: Any) -> None:
    """Emit, for each file, which tests ran which lines (-1: while nothing ran, that is at import)."""
    import coverage

    measured.stop()
    reporter.coverage = None
    os.environ.pop("COVERAGE_PROCESS_START", None)
    stores = [measured.get_data()]
    for path in glob.glob(os.path.join(COVERAGE_DIR, "data.*")):
        data = coverage.CoverageData(basename=path, suffix=False)
        with contextlib.suppress(coverage.CoverageException):  # a killed subprocess leaves half a file
            data.read()
            stores.append(data)
    for data in stores:
        for path in data.measured_files():
            lines: dict[int, list[int]] = {}
            for line, contexts in data.contexts_by_lineno(path).items():
                for context in contexts:
                    lines.setdefault(reporter.index.get(context, -1), []).append(line)
            by_test = {str(test): ranges(sorted(found)) for test, found in lines.items()}
            reporter.emit("coverage", f=os.path.relpath(path, WORKSPACE), t=by_test)


def ranges(lines: list[int]) -> list[int]:
    """Sorted line numbers as flat pairs (first, last), inclusive."""
    flat: list[int] = []
    for line in lines:
        if flat and line == flat[-1] + 1:
            flat[-1] = line
        elif not flat or line > flat[-1]:
            flat += [line, line]
    return flat


# -- the kinds of run ----------------------------------------------------------------------------


def run(request: dict[str, Any], events_fd: int) -> int:
    reporter = Reporter(request, events_fd)
    if request.get("kind") == "import":
        return import_modules(request, reporter)
    if request.get("kind") == "replay":
        import replay

        return int(replay.run(request, reporter))
    return run_tests(request, reporter)


def run_tests(request: dict[str, Any], reporter: Reporter) -> int:
    import pytest

    if request.get("coverage"):
        import coverage  # noqa: F401 - while nothing of the workspace's top can stand in its way

    plugins: list[Any] = [reporter]
    recorder = None
    if request.get("kind") == "record":
        import record

        recorder = record.Recorder(request["targets"], request["tests"])
        plugins.append(record.ByValue(request["tests"]))

    # As `python -m pytest` does: the current folder is importable.
    sys.path.insert(0, WORKSPACE)
    measured = start_coverage(reporter) if request.get("coverage") else None
    code = int(pytest.main([*plugin_options(request["args"]), *request["args"]], plugins=plugins))
    if measured is not None:
        report_coverage(reporter, measured)
    if recorder is not None:
        for case in recorder.finish(request["seed"], request["n_mutated"]):
            reporter.emit("recorded", **case)
    reporter.emit("finish", code=code)
    return code


def plugin_options(args: list[str]) -> list[str]:
    """Name the installed plugins one by one: what the workspace says of itself must not add one.

    A project that is itself a plugin has its metadata where it was installed, outside of the workspace.
    """
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    found: dict[str, None] = {}
    for path in sys.path:
        if path.startswith(ENVIRONMENT + "/"):
            for distribution in metadata.distributions(path=[path]):
                for entry in distribution.entry_points:
                    if entry.group == "pytest11":
                        found[entry.name] = None
    return [word for name in found if "no:" + name not in args for word in ("-p", name)]


def import_modules(request: dict[str, Any], reporter: Reporter) -> int:
    """Import each module; report those that do not, and where the first one lies."""
    for name in request["modules"]:
        try:
            module = importlib.import_module(name)
        except BaseException as error:
            reporter.emit("import", name=name, error="%s: %s" % (type(error).__name__, error))
        else:
            reporter.emit("import", name=name, file=getattr(module, "__file__", None) or "")
    reporter.emit("finish", code=0)
    return 0


if __name__ == "__main__":
    sys.exit(run(json.loads(sys.stdin.read()), int(sys.argv[1])))
