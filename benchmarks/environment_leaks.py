"""The leaks that nobody planted: what ``taskgen build`` rejected since deleted code could be read in the environment.

``python -m benchmarks.environment_leaks TASKS`` prints, for each repository of a task set, the files of its environment
in which deleted code stands, and the definitions found there.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path

_LEAK = re.compile(r"body of ([\w.]+) in ([^;]+)")
_REASON = "deleted code can be read in its environment"


def leaks(tasks: Path) -> dict[str, dict[str, set[str]]]:
    """Repository -> file -> definitions."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for line in (tasks / "rejected.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["reason"] == _REASON:
            for name, path in _LEAK.findall(row["detail"]):
                found[row["candidate"].partition("__")[0]][_short(path)].add(name)
    return found


def _short(path: str) -> str:
    path = re.sub(r".*/site-packages/|.*/(?=ensurepip/)|.*/lib/python3\.\d+/", "", path)
    return re.sub(r"__pycache__/(\w+)\.cpython-\d+(?:\.opt-\d)?\.pyc", r"\1.pyc", path)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", type=Path)
    args = parser.parse_args()
    repos = json.loads((args.tasks / "build.json").read_text())["repos"]
    found = leaks(args.tasks)
    for repo, files in sorted(found.items()):
        for path, names in sorted(files.items()):
            print(f"{repo:24} {path:70} {', '.join(sorted(names))[:80]}")
    print(f"{len(repos)} environments, {len(found)} with a twin")


if __name__ == "__main__":
    main()
