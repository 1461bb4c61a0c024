"""The projects in which leaks are planted: a task's for Python, published sources for the other languages."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from benchmarks.planted.channel import MissingTool, Project, copy, put, run
from taskgen import archive, patches, taskset
from taskgen.errors import SourceError
from taskgen.sources.table import fetch
from taskgen.tree import export_tree
from taskgen.types import RepoSpec, SourceKind


def of_task(folder: Path, work: Path, tools: Path) -> Project:
    """The project of a task that deletes a function; of several, the longest counts."""
    row: dict[str, Any] = taskset.read_row(folder)
    workspace, solved = work / "workspace", work / "solved"
    for tree in (workspace, solved):
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir(parents=True)
        archive.write_entries(archive.read_entries((folder / taskset.WORKSPACE).read_bytes()), tree)
    patches.apply_patch((folder / "gold.patch").read_bytes(), solved)
    gone = max((d for d in row["deleted"] if d["kind"] == "function"), key=lambda d: int(d["lines"]))
    name = gone["qualified_name"].rpartition(".")[2]
    return Project(
        workspace=workspace, solved=solved, path=gone["path"], name=name, patch=folder / "gold.patch", tools=tools
    )


def _cut(work: Path, tree: Path, path: str, name: str, pattern: str, tools: Path) -> Project:
    """A project with the definition cut out that ``pattern`` matches."""
    solved, workspace = work / "solved", work / "workspace"
    for place in (solved, workspace):
        shutil.rmtree(place, ignore_errors=True)
    copy(tree, solved)
    copy(tree, workspace)
    text = (solved / path).read_text()
    found = re.search(pattern, text, re.M | re.S)
    if found is None:
        raise ValueError(f"{pattern!r} is not in {path}")
    put(workspace, path, text[: found.start()] + text[found.end() :])
    done = subprocess.run(
        ["git", "diff", "--no-index", "--no-prefix", "workspace", "solved"], cwd=work, capture_output=True, text=True
    )
    patch = work / "gold.patch"
    patch.write_text(
        re.sub(
            r"(^|\s)(workspace|solved)/",
            lambda m: f"{m[1]}{'a' if m[2] == 'workspace' else 'b'}/",
            done.stdout,
            flags=re.M,
        )
    )
    return Project(workspace=workspace, solved=solved, path=path, name=name, patch=patch, tools=tools)


def _pypi(name: str, version: str, tools: Path) -> Path:
    """A published sdist, unpacked and not built."""
    spec = RepoSpec(name=f"pypi/{name}", kind=SourceKind.SDIST, location=name, revision=version)
    try:
        checkout = fetch(spec, tools / "cache")
    except SourceError as error:
        raise MissingTool(str(error)) from error
    return export_tree(checkout.bare, checkout.commit, tools / "cache/trees" / checkout.commit).root


def typescript(work: Path, tools: Path) -> Project:
    """zod 4: one file of its sources, and the function that rounds remainders."""
    target = tools / "sources/zod"
    if not target.exists():
        target.mkdir(parents=True)
        run(["npm", "pack", "--silent", "zod@4", "--pack-destination", target], target)
        with tarfile.open(next(target.glob("*.tgz"))) as tar:
            tar.extractall(target, filter="data")
    tree = tools / "sources/zod-src"
    shutil.rmtree(tree, ignore_errors=True)
    put(tree, "src/core/util.ts", (target / "package/src/v4/core/util.ts").read_bytes())
    return _cut(
        work, tree, "src/core/util.ts", "floatSafeRemainder", r"^export function floatSafeRemainder.*?^\}\n", tools
    )


def java(work: Path, tools: Path) -> Project:
    """A class of JPype that needs nothing else."""
    root = _pypi("jpype1", "1.7.1", tools)
    found = next(root.rglob("JPypeUtilities.java"))
    tree = tools / "sources/jpype-src"
    shutil.rmtree(tree, ignore_errors=True)
    put(tree, f"src/{found.name}", found.read_bytes())
    return _cut(
        work,
        tree,
        f"src/{found.name}",
        "getJarPath",
        r"^  (?:/\*\*(?:(?!\*/).)*\*/\s*)?public static [^\n]*getJarPath\(.*?^  \}\n",
        tools,
    )


def c(work: Path, tools: Path) -> Project:
    """lz4's fast compressor."""
    root = _pypi("lz4", "4.4.5", tools)
    found = next(root.rglob("lz4.c"))
    tree = tools / "sources/lz4-src"
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("lz4.c", "lz4.h"):
        put(tree, f"lib/{name}", (found.parent / name).read_bytes())
    return _cut(work, tree, "lib/lz4.c", "LZ4_saveDict", r"^int LZ4_saveDict \(.*?^\}\r?\n", tools)


def rust(work: Path, tools: Path) -> Project:
    """heck, from Debian's packages."""
    target = tools / "sources/heck"
    if not target.exists():
        target.mkdir(parents=True)
        run(["apt-get", "download", "librust-heck-dev"], target)
        run(["dpkg-deb", "-x", next(target.glob("*.deb")), target], target)
    root = next(target.rglob("Cargo.toml")).parent
    tree = tools / "sources/heck-src"
    shutil.rmtree(tree, ignore_errors=True)
    copy(root, tree)
    for name in (".cargo-checksum.json", ".cargo_vcs_info.json"):
        (tree / name).unlink(missing_ok=True)
    text = (tree / "Cargo.toml").read_text()
    put(
        tree,
        "Cargo.toml",
        re.split(r"\n\[(?:features|(?:dev-|build-)?dependencies)", text)[0]
        + "\n[features]\nunicode = []\n[workspace]\n",
    )
    return _cut(work, tree, "src/lib.rs", "transform", r"^fn transform<.*?^\}\n", tools)
