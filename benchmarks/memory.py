"""Memory of the driver on a large repository: what surveying it and proposing candidates costs, before any run.

Fetches a real sdist, exports its tree, parses it, and proposes candidates. The baseline is that of a large suite:
``--tests`` tests whose coverage is made up (each function is run by a few, chosen by a seeded hash), because
measuring a suite of that size takes hours and its size, not its truth, decides the memory. ``--no-coverage`` takes an
empty baseline instead.

Exit status 4 when the peak is above the limit.

Example: python benchmarks/memory.py --repo networkx==3.6.1
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

from taskgen import candidates, facts
from taskgen.all_languages import language_of
from taskgen.archive import entries_of
from taskgen.cli import cache_folder
from taskgen.config import find_data, load_recipes, split_pin
from taskgen.deletions.survey import Survey
from taskgen.languages.python_project import PythonProject
from taskgen.sources.table import fetch
from taskgen.tree import export_tree
from taskgen.types import Baseline, Coverage, RepoSpec, SourceKind

LIMIT_BYTES = 1 << 30
EXIT_ABOVE = 4


def peak_bytes() -> int:
    """The largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    """The resident size of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Stages:
    """Prints and keeps resident and peak memory and the CPU of each stage."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._cpu = time.process_time()

    def done(self, name: str, note: str = "") -> None:
        gc.collect()
        now = time.process_time()
        resident, peak, spent = resident_bytes(), peak_bytes(), now - self._cpu
        self._cpu = now
        self.rows.append({"stage": name, "resident": resident, "peak": peak, "cpu_s": spent, "note": note})
        sizes = f"{resident / 2**20:>9.0f} MiB now{peak / 2**20:>9.0f} MiB peak"
        print(f"{name:<14}{sizes}{spent:>9.1f} CPU s  {note}", flush=True)


def made_up_baseline(project: PythonProject, n_tests: int, seed: int) -> Baseline:
    """A passing suite of ``n_tests``; each function is run by 1 to 40 of them, each module imported by all."""
    rng = random.Random(seed)
    files = [path for path in project.tests if path.rsplit("/", 1)[-1].startswith("test")] or ["tests/test_all.py"]
    tests = tuple(sorted(f"{files[i % len(files)]}::test_{i}" for i in range(n_tests)))
    lines: dict[str, dict[int, int]] = {}
    for definition in project.definitions.values() if n_tests else ():
        if definition.kind == "class":
            continue
        first = rng.randrange(n_tests)
        bits = sum(1 << (first + i) % n_tests for i in range(rng.choice((1, 2, 4, 12, 40))))
        found = lines.setdefault(definition.path, {})
        for line in range(definition.body_line, definition.end_line + 1):
            found[line] = found.get(line, 0) | bits
    return Baseline(
        n_runs=3, passing=tests, flaky=(), slow=(), failing=(), seconds=dict.fromkeys(tests, 0.01),
        coverage=Coverage(tests=tests, lines=lines, import_lines={}), unmeasured=frozenset(),
        importable=tuple(project.paths), suite_s=1.0, suite_cpu_s=1.0,
    )  # fmt: skip


def measure(pin: str, n_tests: int, seed: int) -> dict[str, Any]:
    """Go through the stages; returns the report."""
    stages, cache = Stages(), cache_folder()
    stages.done("imports")
    name, version = split_pin(pin)
    spec = RepoSpec(
        name=f"pypi/{name}", kind=SourceKind.SDIST, location=name, revision=version, where="--repo", base="."
    )
    checkout = fetch(spec, cache)
    stages.done("fetch")
    tree = export_tree(checkout.bare, checkout.commit, cache / "trees" / checkout.commit)
    stages.done("tree", f"{len(tree.files)} files")
    entries = {entry.path: entry for entry in entries_of(tree.root, tree.files)}
    stages.done("entries", f"{sum(len(e.content) for e in entries.values()) / 2**20:.0f} MiB of content")
    language = language_of(spec, tree)
    modules = language.source_modules(tree, spec)
    tests = tuple(path for path in tree.paths if path.endswith(".py") and language.is_test_file(path))
    documents = facts.documentation(tree.paths, {p: e.content for p, e in entries.items() if e.link_target is None})
    stages.done("documents", f"{len(documents)} files")
    project = PythonProject(tree, modules, tests)
    n_lines = sum(file.source.count(b"\n") for file in project.everything())
    stages.done("parse", f"{n_lines} lines of Python in {sum(1 for _ in project.everything())} files")
    survey = Survey(
        project=project,
        baseline=made_up_baseline(project, n_tests, seed),
        documentation="\n".join(documents.values()),
    )
    stages.done("baseline", f"{n_tests} tests, {len(project.definitions)} definitions in sources")
    recipes = load_recipes(find_data("recipes"))
    found = 0
    for recipe in recipes:
        proposed = candidates.propose(survey, (recipe,), spec, checkout.commit)
        found += len(proposed)
        stages.done(recipe.name, f"{len(proposed)} candidates")
    return {"repo": pin, "lines": n_lines, "candidates": found, "peak_bytes": peak_bytes(), "stages": stages.rows}


def main() -> None:
    """Parse the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repo", default="networkx==3.6.1", metavar="NAME==VERSION", help="an sdist of PyPI (default: %(default)s)"
    )
    parser.add_argument("--tests", type=int, default=5000, help="tests of the made-up baseline (default: %(default)s)")
    parser.add_argument("--no-coverage", action="store_true", help="an empty baseline: no test at all")
    parser.add_argument("--seed", type=int, default=0, help="of the made-up coverage (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args()
    report = measure(options.repo, 0 if options.no_coverage else options.tests, options.seed)
    peak = report["peak_bytes"]
    print(
        f"{report['lines']} lines, {report['candidates']} candidates, "
        f"peak {peak / 2**20:.0f} MiB of {LIMIT_BYTES >> 20}"
    )
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    sys.exit(EXIT_ABOVE if peak > LIMIT_BYTES else 0)


if __name__ == "__main__":
    main()
