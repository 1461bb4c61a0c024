"""How many planted leaks ``taskgen audit`` finds, at which level, and what it finds in clean trees.

``python -m benchmarks.audit_recall PLANTED [--clean DIR ...] [--json FILE]``: PLANTED is what ``python -m
benchmarks.planted`` made. Each channel's tree is audited against its own patch. Then clean trees (each channel's
project without a leak, and every folder in the ``--clean`` ones) are audited against the patches of the other projects:
there, any finding of level signature or body is a false one. Exit code 1: a leak was missed or a false finding made.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LEVELS = ("", "name", "constants", "docstring", "signature", "body")
#: What a finding must not be where nothing was planted.
HIGH = ("signature", "body")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One audited channel. ``found``: the highest level at the deleted definition outside its own source file."""

    channel: str
    expected: str
    found: str
    where: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether at least the expected level was found."""
        return LEVELS.index(self.found) >= LEVELS.index(self.expected)


def audit(tree: Path, patch: Path) -> dict[str, Any]:
    """The report of ``taskgen audit`` as JSON."""
    argv = [sys.executable, "-m", "taskgen", "audit", str(tree), "--against", str(patch), "--json", "-j", "1"]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode not in (0, 4):
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def of_channel(folder: Path, own_files: frozenset[str]) -> Result:
    """Audit one planted tree; ``own_files`` are the workspace's, where a mention is no leak."""
    meta = json.loads((folder / "meta.json").read_text())
    report = audit(folder / "tree", folder / "gold.patch")
    found = [f for f in report["findings"] if f["level"] and f["path"].split("!")[0] not in own_files]
    best = max(found, key=lambda f: LEVELS.index(f["level"]), default={"level": "", "path": ""})
    return Result(
        channel=meta["channel"], expected=meta["level"], found=best["level"], where=best["path"],
        seconds=report["seconds"],
    )  # fmt: skip


def workspace_files(planted: Path, project: str) -> frozenset[str]:
    """The files of a project's workspace."""
    root = planted / ".projects" / project / "workspace"
    return frozenset(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def clean_pairs(planted: Path, folders: list[Path]) -> list[tuple[Path, Path]]:
    """(tree, patch of another project): every clean tree against every patch but its own."""
    metas = [json.loads(path.read_text()) for path in planted.glob("*/meta.json")]
    patches = {meta["project"]: planted / meta["channel"] / "gold.patch" for meta in metas}
    pairs = [(planted / ".projects" / project / "workspace", patch) for project, patch in patches.items()]
    paths = {meta["project"]: meta["path"] for meta in metas}
    for folder in folders:
        for tree in sorted(path for path in folder.iterdir() if path.is_dir()):
            # A tree that has the very file is of the project itself.
            strange = [p for p in patches if not any(tree.glob(f"**/{paths[p]}"))]
            pairs += [(tree, patches[p]) for p in strange]
    return pairs


def false_findings(pair: tuple[Path, Path]) -> list[dict[str, Any]]:
    """Findings of level signature or body where there is no leak; what the repository itself says is none."""
    tree, patch = pair
    report = audit(tree, patch)
    return [
        {**finding, "tree": str(tree), "patch": str(patch)} for finding in report["findings"]
        if finding["level"] in HIGH and finding["action"] in ("reject", "scrub")
    ]  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("planted", type=Path)
    parser.add_argument("--clean", type=Path, action="append", default=[], help="folder of clean trees; repeatable")
    parser.add_argument("--only", action="append", default=[], help="only these channels; no clean trees")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    folders = sorted(path.parent for path in args.planted.glob("*/meta.json"))
    folders = [folder for folder in folders if not args.only or folder.name in args.only]
    own = {
        project: workspace_files(args.planted, project)
        for project in {json.loads((f / "meta.json").read_text())["project"] for f in folders}
    }
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(
            pool.map(lambda f: of_channel(f, own[json.loads((f / "meta.json").read_text())["project"]]), folders)
        )
        pairs = [] if args.only else clean_pairs(args.planted, args.clean)
        false = [finding for found in pool.map(false_findings, pairs) for finding in found]
    for r in results:
        mark = "ok    " if r.ok else "MISSED"
        print(f"{mark} {r.channel:24} {r.expected:10} {r.found:10} {r.seconds:6.2f} s  {r.where[:80]}")
    exact = sum(r.found == r.expected for r in results)
    hits = sum(r.ok for r in results)
    print(f"{hits} of {len(results)} channels found at the expected level or above, {exact} of them exactly there")
    print(f"{len(pairs)} audits of {len({tree for tree, _ in pairs})} clean trees: {len(false)} false findings")
    for finding in false:
        what = f"{finding['level']} of {finding['definition']} in {finding['path']}"
        print(f"FALSE  {finding['tree']} against {finding['patch']}: {what}")
    if args.json:
        rows = {"channels": [asdict(r) for r in results], "clean_audits": len(pairs), "false_findings": false}
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(1 if hits < len(results) or false else 0)


if __name__ == "__main__":
    main()
