"""Channels of packaging: distributions, builds, installed and cached copies."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from benchmarks.planted.channel import Channel, Project, copy, put, run, solved_copy, venv

_BACKENDS = ("build", "setuptools", "wheel", "hatchling", "hatch-vcs", "flit_core")


def _built(project: Project, tree: Path, kind: str) -> Path:
    source = solved_copy(project, tree)
    run([venv(project, *_BACKENDS) / "python", "-m", "build", "-q", "--no-isolation", f"--{kind}"], source)
    return next((source / "dist").iterdir())


def wheel(project: Project, tree: Path) -> None:
    built = _built(project, tree, "wheel")
    put(tree, f"dist/{built.name}", built.read_bytes())


def sdist(project: Project, tree: Path) -> None:
    built = _built(project, tree, "sdist")
    put(tree, f"dist/{built.name}", built.read_bytes())


def egg(project: Project, tree: Path) -> None:
    source = solved_copy(project, tree)
    run(
        [
            venv(project, *_BACKENDS) / "python",
            "-c",
            "import setuptools; setuptools.setup(name='x', version='1', packages=setuptools.find_packages())",
            "-q",
            "bdist_egg",
        ],
        source,
        check=False,
    )
    eggs = list((source / "dist").glob("*.egg"))
    if not eggs:  # newer setuptools have no bdist_egg; an egg is the same zip
        shutil.make_archive(str(source / "x"), "zip", source)
        eggs = [source / "x.zip"]
    put(tree, "x-1-py3.egg", eggs[0].read_bytes())


def zipapp(project: Project, tree: Path) -> None:
    source = solved_copy(project, tree)
    run(
        [
            sys.executable,
            "-m",
            "zipapp",
            source,
            "-m",
            "x:y",
            "-p",
            "/usr/bin/env python3",
            "-c",
            "-o",
            tree / "tool.pyz",
        ],
        tree,
    )


def build_lib(project: Project, tree: Path) -> None:
    top = project.path.split("/")[0]
    copy(project.solved / top, tree / "build/lib" / top)


def installed(project: Project, tree: Path) -> None:
    built = _built(project, tree, "wheel")
    run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            tree / "env/lib/python3/site-packages",
            built,
        ],
        tree,
    )


def tox_environment(project: Project, tree: Path) -> None:
    built = _built(project, tree, "wheel")
    run([sys.executable, "-m", "venv", "--without-pip", tree / ".tox/py"], tree)
    run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--prefix", tree / ".tox/py", built], tree)


def pip_wheel_cache(project: Project, tree: Path) -> None:
    source = solved_copy(project, tree)
    python = venv(project, *_BACKENDS) / "python"
    # pip keeps wheels that it built of archives, not of folders.
    built = _built(project, tree, "sdist")
    where = source / "index/pkg"
    where.mkdir(parents=True)
    shutil.copy(built, where)
    run(
        [
            python,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--cache-dir",
            tree / ".cache/pip",
            "-w",
            source / "out",
            where / built.name,
        ],
        source,
    )
    if not list((tree / ".cache").rglob("*.whl")):
        wheel_file = next((source / "out").glob("*.whl"))
        put(tree, f".cache/pip/wheels/0a/1b/2c/{wheel_file.name}", wheel_file.read_bytes())


def pip_http_cache(project: Project, tree: Path) -> None:
    """As CacheControl writes a response: its mark, msgpack, and the body in it."""
    body = _built(project, tree, "wheel").read_bytes()
    packed = b"\x81\xa8response\x81\xa4body\xc6" + len(body).to_bytes(4, "big") + body
    put(tree, ".cache/pip/http/0/1/2/3/4/0123456789abcdef", b"cc=4," + packed)


def uv_cache(project: Project, tree: Path) -> None:
    uv = venv(project, "uv") / "uv"
    built = _built(project, tree, "sdist")
    run(
        [
            uv,
            "--cache-dir",
            tree / ".cache/uv",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            tree.parent / f".{tree.name}-t",
            built,
        ],
        tree,
    )


def vendored(project: Project, tree: Path) -> None:
    top = project.path.removeprefix("src/").split("/")[0]
    put(tree, f"other/_vendor/{'/'.join(project.path.removeprefix('src/').split('/')[0:])}", project.source)
    put(tree, f"other/_vendor/{top}/VENDORED", "copied")


def older_copy(project: Project, tree: Path) -> None:
    put(tree, f"legacy/v1/{project.path}", project.source.replace("    return", "    # older\n    return"))


def egg_info(project: Project, tree: Path) -> None:
    """Lists of files and entry points give away names, and no more."""
    put(tree, "x.egg-info/entry_points.txt", f"[console_scripts]\nx = {project.module}:{project.name}\n")


CHANNELS = (
    Channel(name="wheel", level="body", make=wheel, tool="build"),
    Channel(name="sdist", level="body", make=sdist, tool="build"),
    Channel(name="egg", level="body", make=egg, tool="setuptools"),
    Channel(name="zipapp", level="body", make=zipapp, tool="zipapp"),
    Channel(name="build-lib", level="body", make=build_lib),
    Channel(name="installed-copy", level="body", make=installed, tool="pip"),
    Channel(name="tox-environment", level="body", make=tox_environment, tool="pip"),
    Channel(name="pip-wheel-cache", level="body", make=pip_wheel_cache, tool="pip"),
    Channel(name="pip-http-cache", level="body", make=pip_http_cache, tool="pip"),
    Channel(name="uv-cache", level="body", make=uv_cache, tool="uv"),
    Channel(name="vendored-twin", level="body", make=vendored),
    Channel(name="older-copy", level="body", make=older_copy),
    Channel(name="egg-info", level="name", make=egg_info),
)
