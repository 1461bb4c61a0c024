"""Baselines kept by content: measuring one costs several whole suites, reading it back a moment."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import zstandard

from taskgen.atomic import locked, replacing_file
from taskgen.types import Baseline, Coverage


def cached(path: Path, measure: Callable[[], Baseline]) -> Baseline:
    """The baseline at ``path``, measured and written there if it is not; once when several processes ask.

    Raises:
        StoreError: the cache cannot be written; and whatever ``measure`` raises (nothing is kept then).
    """
    with locked(path):
        if path.exists():
            return _decode(json.loads(zstandard.ZstdDecompressor().decompress(path.read_bytes())))
        baseline = measure()
        with replacing_file(path) as scratch:
            scratch.write_bytes(zstandard.ZstdCompressor().compress(json.dumps(_encode(baseline)).encode()))
        return baseline


def _encode(baseline: Baseline) -> dict[str, Any]:
    coverage = baseline.coverage
    value = asdict(baseline)
    value["unmeasured"] = sorted(baseline.unmeasured)
    value["coverage"] = {
        "tests": coverage.tests,
        "lines": {p: {n: hex(bits) for n, bits in lines.items()} for p, lines in coverage.lines.items()},
        "import_lines": {p: sorted(lines) for p, lines in coverage.import_lines.items()},
        "spawning": hex(coverage.spawning),
    }
    return value


def _decode(value: dict[str, Any]) -> Baseline:
    coverage = value["coverage"]
    tuples = {k: tuple(value[k]) for k in ("passing", "flaky", "slow", "failing", "importable")}
    return Baseline(
        n_runs=value["n_runs"],
        **tuples,
        seconds=value["seconds"],
        coverage=Coverage(
            tests=tuple(coverage["tests"]),
            lines={p: {int(n): int(b, 16) for n, b in found.items()} for p, found in coverage["lines"].items()},
            import_lines={p: frozenset(lines) for p, lines in coverage["import_lines"].items()},
            spawning=int(coverage["spawning"], 16),
        ),
        unmeasured=frozenset(value["unmeasured"]),
        suite_s=value["suite_s"],
        suite_cpu_s=value["suite_cpu_s"],
    )
