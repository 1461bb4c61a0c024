"""Whole builds for tests: small projects on disk, the real command line as a process, one cache for a session."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.repo_helpers import write

TASKGEN = Path(sys.executable).with_name("taskgen")
TIMEOUT_S = 400.0
PYPROJECT = """\
[project]
name = "demo"
version = "1.0"
"""
AREAS = '''\
"""Areas of plane figures."""


def rectangle(width, height):
    """Return the area of a rectangle; a negative side is a ValueError."""
    if width < 0 or height < 0:
        raise ValueError("negative side")
    area = width * height
    return area


def triangle(base, height):
    """Return the area of a triangle; a negative side is a ValueError."""
    if base < 0 or height < 0:
        raise ValueError("negative side")
    area = base * height / 2
    return area
'''
AREAS_TESTS = """\
import pytest

from shapes.areas import rectangle, triangle


def test_rectangle():
    assert rectangle(2, 3) == 6


def test_rectangle_refuses_negative_sides():
    with pytest.raises(ValueError):
        rectangle(-1, 2)


def test_triangle():
    assert triangle(2, 3) == 3


def test_triangle_refuses_negative_sides():
    with pytest.raises(ValueError):
        triangle(-1, 2)
"""
#: Puts the workspace on the path as an editable install does, without a build backend: quick, and offline.
LINK = (
    'python -c "import pathlib, sysconfig; '
    "pathlib.Path(sysconfig.get_path('purelib'), 'demo.pth').write_text('/workspace')\""
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. ``stdout`` and ``stderr`` are whole."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.stdout))


@pytest.fixture(scope="session")
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that all tests of a session share, so that each environment is built once."""
    base = tmp_path_factory.getbasetemp()
    # Each worker of pytest-xdist has a folder of its own below one that they share.
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "taskgen-cache"


@pytest.fixture(scope="session")
def demo_set(tmp_path_factory: pytest.TempPathFactory, build_cache: Path, bubblewrap: None) -> Path:
    """The task set of ``make_project``: two tasks, built once a session. Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("demo")
    repos = write_repos(folder, {"path": str(make_project(folder / "demo"))})
    ended = taskgen("build", repos, "--out", folder / "set", cache=build_cache)
    assert ended.code == 0, ended.stderr
    return folder / "set"


def environment(cache: Path, **variables: str) -> dict[str, str]:
    return {**os.environ, "TASKGEN_CACHE": str(cache), "COLUMNS": "200", **variables}


def taskgen(*arguments: str | Path, cache: Path, cwd: Path | None = None, **variables: str) -> Ended:
    """Run the installed command to its end."""
    done = subprocess.run(
        [TASKGEN, *map(str, arguments)],
        env=environment(cache, **variables),
        cwd=cwd,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


def start(*arguments: str | Path, cache: Path, **variables: str) -> subprocess.Popen[bytes]:
    """Start the installed command in a process group of its own, with stderr in a pipe."""
    return subprocess.Popen(
        [TASKGEN, *map(str, arguments)],
        env=environment(cache, **variables),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def make_project(root: Path, files: dict[str, bytes | str] | None = None) -> Path:
    """A small project that two fair tasks can be made of; ``files`` are added, or take the place of its own."""
    own: dict[str, bytes | str] = {
        "pyproject.toml": PYPROJECT,
        "shapes/__init__.py": "",
        "shapes/areas.py": AREAS,
        "tests/test_areas.py": AREAS_TESTS,
    }
    write(root, own | (files or {}))
    return root


def write_repos(folder: Path, *entries: dict[str, Any]) -> Path:
    """A repos.yaml (JSON is YAML); an entry that says nothing else is installed by ``LINK``."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "repos.yaml"
    file.write_text(json.dumps({"repos": [{"install": [LINK], **entry} for entry in entries]}, indent=1))
    return file


def read_archive(path: Path) -> dict[str, bytes]:
    """The regular files of a .tar.zst."""
    data = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive if member.isfile()]
        return {name: file.read() for name, file in members if file is not None}


def tasks_of(out: Path, repo: str = "") -> list[Path]:
    """The task folders of a set, or of one repository in it."""
    found = sorted(file.parent for file in out.glob("tasks/*/task.json"))
    return [folder for folder in found if not repo or json.loads((folder / "task.json").read_text())["repo"] == repo]


def build_record(out: Path, repo: str) -> dict[str, Any]:
    """What build.json says of a repository."""
    record = json.loads((out / "build.json").read_text())
    return dict(next(entry for entry in record["repos"] if entry["name"] == repo))


def snapshot(out: Path) -> dict[str, bytes]:
    """All files of a task set, less the state of the run."""
    files = (path for path in sorted(out.rglob("*")) if path.is_file() and ".taskgen" not in path.parts)
    return {str(path.relative_to(out)): path.read_bytes() for path in files}
