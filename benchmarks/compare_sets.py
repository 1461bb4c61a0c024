"""Compare two task sets: the same ids, and the same bytes of what must be the same on every machine.

    python benchmarks/compare_sets.py DIR_A DIR_B [--only SUBSTRING]

Prints each difference and a closing line; exit code 0 if there is none.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

SAME = ("workspace.tar.zst", "tests.tar.zst", "gold.patch", "deletion.patch", "instruction.md")


def differences(a: Path, b: Path, only: str) -> tuple[int, list[str]]:
    """The number of tasks in both sets, and what differs."""
    ids = [{p.name for p in (out / "tasks").iterdir() if only in p.name} for out in (a, b)]
    found = [f"{name}: only in {a}" for name in sorted(ids[0] - ids[1])]
    found += [f"{name}: only in {b}" for name in sorted(ids[1] - ids[0])]
    for name in sorted(ids[0] & ids[1]):
        for file in SAME:
            if (a / "tasks" / name / file).read_bytes() != (b / "tasks" / name / file).read_bytes():
                found.append(f"{name}: {file} differs")
    return len(ids[0] & ids[1]), found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", type=Path, help="a task set")
    parser.add_argument("b", type=Path, help="another one")
    parser.add_argument("--only", default="", help="only tasks whose id contains this")
    options = parser.parse_args()
    n_common, found = differences(options.a, options.b, options.only)
    for line in found:
        print(line)
    print(f"{n_common} tasks in both, {len(found)} differences")
    return 1 if found or not n_common else 0


if __name__ == "__main__":
    sys.exit(main())
