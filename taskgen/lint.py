"""A linter's view of an edited tree: names that became undefined, imports and variables that became unused."""

from __future__ import annotations

import json
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from taskgen import process, safepath
from taskgen.errors import PrerequisiteError

#: Undefined names and exports, unused imports and variables, redefinitions, misplaced statements, syntax errors.
RULES = "F401,F821,F822,F823,F811,F841,F704,F706,F701,F702,E9"
#: A finding takes about a kilobyte; cut output could not be read.
OUTPUT_BYTES = 256 << 20


def findings(files: Mapping[str, bytes]) -> Counter[tuple[str, str, str]]:
    """Count (path, rule, message) of Python files. Nothing of the repository's own configuration is read.

    Raises:
        PrerequisiteError: ruff is not installed beside taskgen.
    """
    if not files:
        return Counter()
    with tempfile.TemporaryDirectory(prefix="taskgen-lint-") as folder:
        root = Path(folder)
        for path, source in files.items():
            safepath.write_file(root, path, source, executable=False)
        argv = [_ruff(), "check", "--isolated", "--no-cache", "--exit-zero", "--select", RULES, "--ignore-noqa",
                "--output-format", "json", "--target-version", "py311", "."]  # fmt: skip
        found = json.loads(process.check(argv, cwd=root, timeout_s=120.0, output_bytes=OUTPUT_BYTES))
        return Counter(
            (str(Path(item["filename"]).relative_to(root.resolve())), str(item["code"]), str(item["message"]))
            for item in found
        )


def new_findings(pristine: Mapping[str, bytes], edited: Mapping[str, bytes]) -> list[str]:
    """What the linter says of the edited files and did not say of the pristine ones, as text."""
    fresh = findings(edited) - findings(pristine)
    return [f"{path}: {code} {message}" for path, code, message in sorted(fresh)]


def _ruff() -> str:
    for folder in (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent):
        if (folder / "ruff").exists():
            return str(folder / "ruff")
    raise PrerequisiteError("ruff is not installed beside taskgen", hint="pip install ruff")
