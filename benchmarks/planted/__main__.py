"""Make the planted corpus: ``python -m benchmarks.planted OUT --task TASK [--only NAME] [--list]``.

OUT/<channel>/tree is what an agent would find, beside gold.patch and meta.json. What is there already stays.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.planted import compiled, history, javascript, packages, projects, python_tools, texts
from benchmarks.planted.channel import LOG, Channel, MissingTool, Project, copy

CHANNELS: tuple[Channel, ...] = (
    *history.CHANNELS, *packages.CHANNELS, *python_tools.CHANNELS, *texts.CHANNELS, *javascript.CHANNELS,
    *compiled.CHANNELS,
)  # fmt: skip


def make_all(out: Path, task: Path, only: list[str]) -> dict[str, str]:
    """Make channels; returns those that could not be made, with the reason."""
    tools = out / ".tools"
    tools.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[Path], Project]] = {
        "python": lambda work: projects.of_task(task, work, tools),
        "typescript": lambda work: projects.typescript(work, tools),
        "java": lambda work: projects.java(work, tools),
        "c": lambda work: projects.c(work, tools),
        "rust": lambda work: projects.rust(work, tools),
    }
    known: dict[str, Project | str] = {}
    missing: dict[str, str] = {}
    for channel in CHANNELS:
        folder = out / channel.name
        if (only and channel.name not in only) or (folder / "meta.json").exists():
            continue
        if channel.project not in known:
            try:
                known[channel.project] = makers[channel.project]((out / ".projects" / channel.project).resolve())
            except (MissingTool, RuntimeError, OSError, ValueError, StopIteration) as error:
                known[channel.project] = f"no {channel.project} project: {error}"
        project = known[channel.project]
        if isinstance(project, str):
            missing[channel.name] = project
            continue
        try:
            _make(channel, project, folder)
        except (MissingTool, RuntimeError, OSError, StopIteration) as error:
            missing[channel.name] = f"{type(error).__name__}: {error}"
    return missing


def _make(channel: Channel, project: Project, folder: Path) -> None:
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    LOG.commands.clear()
    tree = copy(project.workspace, folder.resolve() / "tree")
    channel.make(project, tree)
    shutil.copy(project.patch, folder / "gold.patch")
    meta = {
        "channel": channel.name, "level": channel.level, "project": channel.project, "path": project.path,
        "name": project.name, "is_stealable": channel.is_stealable, "commands": LOG.commands,
        "seconds": round(time.monotonic() - began, 2),
    }  # fmt: skip
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    for aside in folder.parent.glob(f"{folder.name}/.tree-*"):
        shutil.rmtree(aside, ignore_errors=True)
    print(f"{channel.name}: {meta['seconds']} s", file=sys.stderr)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--task", type=Path, help="a built task with one deleted function (taskgen build)")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list or args.out is None:
        for channel in CHANNELS:
            print(f"{channel.name:24} {channel.project:11} {channel.level}")
        print(f"{len(CHANNELS)} channels")
        return
    missing = make_all(args.out.resolve(), args.task.resolve(), args.only)
    for name, reason in missing.items():
        print(f"not made: {name}: {reason}")
    sys.exit(2 if missing else 0)


if __name__ == "__main__":
    main()
