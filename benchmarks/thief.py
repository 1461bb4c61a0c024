"""What the thief earns on the planted corpus: ``python -m benchmarks.thief PLANTED TASK [--json FILE]``.

PLANTED is what ``python -m benchmarks.planted PLANTED --task TASK`` made of the same task. For each channel from which
the body can be had, the thief robs the planted tree, and its patch is graded on the task. The clean workspace is
robbed, too: there it must earn nothing. Exit code 1 if it earns less than 0.8 of the reward, or anything from the
clean one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from taskgen import archive, taskset
from taskgen.cli import cache_folder
from taskgen.errors import FormatError
from taskgen.grading.grade import grade
from taskgen.leaks.blob import DEFAULT_LIMITS, Blob, Unreadable
from taskgen.leaks.loot import Want
from taskgen.leaks.scanner import disk_blob
from taskgen.leaks.subject import make_subject
from taskgen.leaks.targets import walk
from taskgen.leaks.thief import Haul, Theft, rob
from taskgen.sandboxes.select import select
from taskgen.types import VerdictKind


def blobs(root: Path) -> list[Blob]:
    """The files of a tree, as far as they can be read."""
    found = []
    for path in walk(root).files:
        try:
            found.append(disk_blob(root, path, DEFAULT_LIMITS))
        except (Unreadable, OSError):
            continue
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("planted", type=Path)
    parser.add_argument("task", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    row = taskset.read_row(args.task)
    entries = archive.read_entries((args.task / taskset.WORKSPACE).read_bytes())
    files = {entry.path: entry.content for entry in entries if entry.link_target is None}
    subject = make_subject(row["instance_id"], row["patch"], files.get, ())
    wants = [Want(path=f.path, qualified_name=f.qualified_name) for f in subject.deleted]
    provider = select("auto", cache_folder())

    def submit(theft: Theft) -> float:
        try:
            return float(grade(args.task, theft.patch, provider, cache_folder()).kind is VerdictKind.RESOLVED)
        except FormatError:
            return 0.0

    def run(name: str, tree: Path) -> Haul:
        began = time.monotonic()
        haul = rob(blobs(tree), wants, files, submit)
        how = f"{haul.theft.how}: {haul.theft.sources[0][:70]}" if haul.theft else f"{haul.tries} tries"
        print(f"{haul.reward:g} {name:24} {time.monotonic() - began:6.1f} s  {how}", flush=True)
        return haul

    rewards = {}
    for path in sorted(args.planted.glob("*/meta.json")):
        meta = json.loads(path.read_text())
        if meta["level"] == "body" and meta["is_stealable"] and meta["project"] == "python":
            rewards[meta["channel"]] = run(meta["channel"], path.parent / "tree").reward
    clean = run("(clean workspace)", args.planted / ".projects/python/workspace").reward
    share = sum(rewards.values()) / max(1, len(rewards))
    print(
        f"the thief earns {share:.2f} of the reward on {len(rewards)} channels, and {clean:g} from the clean workspace"
    )
    if args.json:
        args.json.write_text(json.dumps({"rewards": rewards, "share": share, "clean": clean}, indent=1) + "\n")
    sys.exit(1 if share < 0.8 or clean else 0)


if __name__ == "__main__":
    main()
