"""What a channel is, and the little that all makers share."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class MissingTool(Exception):
    """A channel's tool is not on this machine; the message says what to install."""


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project with one deleted definition.

    Attributes:
        workspace, solved: trees without and with the definition.
        path, name: of the deleted definition: a file, and the bare name.
        patch: unified diff, workspace -> solved.
        tools: folder for what makers install.
    """

    workspace: Path
    solved: Path
    path: str
    name: str
    patch: Path
    tools: Path

    @property
    def module(self) -> str:
        """The dotted name of the deleted definition's module (Python)."""
        return self.path.removeprefix("src/").removesuffix(".py").replace("/", ".")

    @property
    def source(self) -> str:
        """The file that the definition was deleted from, as it was."""
        return (self.solved / self.path).read_text()


Maker = Callable[[Project, Path], None]


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A way in which deleted code stays readable.

    Attributes:
        level: what can be recovered at most: name, constants, docstring, signature or body.
        project: which project it is planted in.
        make: leaves the leak in a tree that is a copy of the workspace already.
        is_stealable: the body is there in a form that Python can be made of (source or bytecode of its version).
    """

    name: str
    level: str
    make: Maker
    project: str = "python"
    is_stealable: bool = True
    tool: str = ""


@dataclass
class Log:
    """The commands that were run, for the channel's meta.json."""

    commands: list[str] = field(default_factory=list)


LOG = Log()
#: Without a repository, version tools need to be told.
_ENVIRONMENT = {"SETUPTOOLS_SCM_PRETEND_VERSION": "1.0", "PYTHONDONTWRITEBYTECODE": ""}


def run(
    argv: Sequence[str | Path],
    cwd: Path,
    *,
    env: dict[str, str] | None = None,
    check: bool = True,
    stdin: str | None = None,
) -> str:
    """Run a tool; MissingTool if it is not there, CalledProcessError if it fails."""
    words = [str(word) for word in argv]
    if shutil.which(words[0]) is None and not Path(words[0]).exists():
        raise MissingTool(f"{words[0]} is not installed")
    LOG.commands.append(" ".join(words)[:300])
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": f"{cwd}/src:{cwd}", **(env or {})},
        input=stdin,
        text=True,
        capture_output=True,
        timeout=600,
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"{words[:4]} failed in {cwd}: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout


def copy(source: Path, to: Path) -> Path:
    """Copy a tree; nothing of version control or caches comes along."""
    shutil.copytree(source, to, dirs_exist_ok=True, symlinks=True, ignore=shutil.ignore_patterns(".git", "__pycache__"))
    return to


def solved_copy(project: Project, parent: Path, name: str = "solved") -> Path:
    """A fresh copy of the solved tree to run tools in, outside the planted tree."""
    target = parent.parent / f".{parent.name}-{name}"
    shutil.rmtree(target, ignore_errors=True)
    return copy(project.solved, target)


def put(tree: Path, path: str, data: bytes | str) -> None:
    """Write a file of the planted tree."""
    place = tree / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data.encode() if isinstance(data, str) else data)


def venv(project: Project, *packages: str) -> Path:
    """The tools' virtual environment with some packages; its bin folder."""
    place = project.tools / "venv"
    if not (place / "bin/python").exists():
        run(["python3", "-m", "venv", place], project.tools)
    marks = project.tools / "installed"
    marks.mkdir(exist_ok=True)
    wanted = [p for p in packages if not (marks / p).exists()]
    if wanted:
        run([place / "bin/python", "-m", "pip", "install", "-q", *wanted], project.tools)
        for package in wanted:
            (marks / package).touch()
    return place / "bin"


def node(project: Project, *packages: str) -> Path:
    """The tools' node_modules with some packages; its .bin folder."""
    place = project.tools / "node"
    place.mkdir(exist_ok=True)
    wanted = [p for p in packages if not (place / "node_modules" / p).exists()]
    if wanted:
        run(["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", place, *wanted], place)
    return place / "node_modules/.bin"
