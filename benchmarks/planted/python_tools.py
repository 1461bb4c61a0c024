"""Channels of Python's interpreters and tools."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from benchmarks.planted.channel import Channel, MissingTool, Project, put, run, solved_copy, venv


def _compiled(project: Project, tree: Path, python: str | Path, *flags: str) -> None:
    source = solved_copy(project, tree)
    run([python, *flags, "-m", "compileall", "-q", project.path], source)
    for found in source.rglob("*.pyc"):
        put(tree, str(found.relative_to(source)), found.read_bytes())


def _python(version: str) -> Path:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python")) or (
        [Path(at)] if (at := shutil.which(f"python{version}")) else []
    )
    if not found:
        raise MissingTool(f"python{version} is not installed")
    return found[0]


def pyc(project: Project, tree: Path) -> None:
    _compiled(project, tree, sys.executable)


def pyc_optimised(project: Project, tree: Path) -> None:
    _compiled(project, tree, sys.executable, "-OO")


def pyc_38(project: Project, tree: Path) -> None:
    _compiled(project, tree, _python("3.8"))


def pyc_312(project: Project, tree: Path) -> None:
    _compiled(project, tree, _python("3.12"))


def pyc_313(project: Project, tree: Path) -> None:
    _compiled(project, tree, _python("3.13"))


def pyc_legacy(project: Project, tree: Path) -> None:
    source = solved_copy(project, tree)
    run([sys.executable, "-m", "compileall", "-q", "-b", project.path], source)
    put(tree, f"{project.path}c", (source / f"{project.path}c").read_bytes())


def pyc_prefix(project: Project, tree: Path) -> None:
    source = solved_copy(project, tree)
    run(
        [sys.executable, "-c", f"import {project.module}"], source, env={"PYTHONPYCACHEPREFIX": str(tree / ".bytecode")}
    )


def pyc_zipped(project: Project, tree: Path) -> None:
    source = solved_copy(project, tree)
    run([sys.executable, "-m", "compileall", "-q", "-b", project.path], source)
    run([sys.executable, "-m", "zipfile", "-c", tree / "lib.zip", source / f"{project.path}c"], source)


def _mypy(project: Project, tree: Path, *flags: str) -> None:
    source = solved_copy(project, tree)
    run(
        [
            venv(project, "mypy") / "python",
            "-m",
            "mypy",
            "--cache-dir",
            tree / ".mypy_cache",
            "--ignore-missing-imports",
            *flags,
            project.path,
        ],
        source,
        check=False,
    )


def mypy_cache(project: Project, tree: Path) -> None:
    _mypy(project, tree)


def mypy_json(project: Project, tree: Path) -> None:
    _mypy(project, tree, "--no-sqlite-cache", "--no-fixed-format-cache")


def mypy_files(project: Project, tree: Path) -> None:
    _mypy(project, tree, "--no-sqlite-cache")


def stub_file(project: Project, tree: Path) -> None:
    source = solved_copy(project, tree)
    run([venv(project, "mypy") / "stubgen", "-q", project.path, "-o", tree / "build/stubs"], source)


def jedi_cache(project: Project, tree: Path) -> None:
    where = str(tree / ".cache/jedi")
    code = f"import parso; parso.load_grammar().parse(path={project.path!r}, cache=True, cache_path={where!r})"
    run([venv(project, "parso") / "python", "-c", code], solved_copy(project, tree))


def function_pickle(project: Project, tree: Path) -> None:
    """A function that cloudpickle takes along by value: its code object in a pickle."""
    code = (
        f"import cloudpickle, {project.module} as m\ncloudpickle.register_pickle_by_value(m)\n"
        f"open({str(tree / 'job.pkl')!r}, 'wb').write(cloudpickle.dumps(m.{project.name}))"
    )
    run([venv(project, "cloudpickle") / "python", "-c", code], solved_copy(project, tree))


def _covered(project: Project, tree: Path) -> tuple[Path, Path]:
    source = solved_copy(project, tree)
    python = venv(project, "coverage") / "python"
    run([python, "-m", "coverage", "run", "--include", project.path, "-m", project.module], source, check=False)
    if not (source / ".coverage").exists():
        run([python, "-m", "coverage", "run", "-c", f"import {project.module}"], source)
    return source, python


def coverage_html(project: Project, tree: Path) -> None:
    source, python = _covered(project, tree)
    run([python, "-m", "coverage", "html", "-q", "-d", tree / "htmlcov"], source)


def coverage_lcov(project: Project, tree: Path) -> None:
    source, python = _covered(project, tree)
    run([python, "-m", "coverage", "lcov", "-q", "-o", tree / "coverage.lcov"], source)


def coverage_json(project: Project, tree: Path) -> None:
    source, python = _covered(project, tree)
    run([python, "-m", "coverage", "json", "-q", "-o", tree / "coverage.json"], source)


def coverage_annotate(project: Project, tree: Path) -> None:
    source, python = _covered(project, tree)
    run([python, "-m", "coverage", "annotate", "-d", tree / "build/annotated"], source)


def _sphinx(project: Project, tree: Path, builder: str) -> Path:
    source = solved_copy(project, tree)
    docs = source / "made-docs"
    docs.mkdir()
    (docs / "conf.py").write_text(
        f"import sys; sys.path.insert(0, {str(source)!r})\nextensions = ['sphinx.ext.autodoc', 'sphinx.ext.viewcode']\n"
    )
    (docs / "index.rst").write_text(
        f"API\n===\n\n.. automodule:: {project.module}\n   :members:\n   :undoc-members:\n   :private-members:\n"
    )
    run(
        [venv(project, "sphinx") / "python", "-m", "sphinx", "-q", "-b", builder, docs, docs / "out"],
        source,
        check=False,
    )
    return docs / "out"


def sphinx_viewcode(project: Project, tree: Path) -> None:
    shutil.copytree(_sphinx(project, tree, "html") / "_modules", tree / "docs/_build/html/_modules")


def sphinx_page(project: Project, tree: Path) -> None:
    put(tree, "docs/_build/html/index.html", (_sphinx(project, tree, "html") / "index.html").read_bytes())


def sphinx_doctree(project: Project, tree: Path) -> None:
    put(
        tree,
        "docs/_build/.doctrees/index.doctree",
        (_sphinx(project, tree, "html") / ".doctrees/index.doctree").read_bytes(),
    )


def sphinx_environment(project: Project, tree: Path) -> None:
    put(
        tree,
        "docs/_build/environment.pickle",
        (_sphinx(project, tree, "html") / ".doctrees/environment.pickle").read_bytes(),
    )


def sphinx_inventory(project: Project, tree: Path) -> None:
    put(tree, "docs/_build/objects.inv", (_sphinx(project, tree, "html") / "objects.inv").read_bytes())


def sphinx_search(project: Project, tree: Path) -> None:
    put(tree, "docs/_build/searchindex.js", (_sphinx(project, tree, "html") / "searchindex.js").read_bytes())


def sphinx_manual(project: Project, tree: Path) -> None:
    put(tree, "docs/_build/text/index.txt", (_sphinx(project, tree, "text") / "index.txt").read_bytes())


def pydoc_page(project: Project, tree: Path) -> None:
    source = solved_copy(project, tree)
    run([sys.executable, "-m", "pydoc", "-w", project.module], source)
    put(tree, f"build/{project.module}.html", (source / f"{project.module}.html").read_bytes())


def ctags(project: Project, tree: Path) -> None:
    run(["ctags", "--fields=+S", "-f", tree / "tags", project.path], solved_copy(project, tree))


def etags(project: Project, tree: Path) -> None:
    run(["ctags", "-e", "-f", tree / "TAGS", project.path], solved_copy(project, tree))


def monkeytype(project: Project, tree: Path) -> None:
    source = solved_copy(project, tree)
    tracer = venv(project, "monkeytype") / "python"
    code = (
        "import sqlite3\nfrom monkeytype.db.sqlite import SQLiteStore\nfrom monkeytype.tracing import CallTrace\n"
        f"import {project.module} as m\ns = SQLiteStore.make_store({str(tree / 'monkeytype.sqlite3')!r})\n"
        f"import inspect\nf = m.{project.name}\n"
        "s.add([CallTrace(f, {p: str for p in inspect.signature(f).parameters}, int)])"
    )
    run([tracer, "-c", code], source)


CHANNELS = (
    Channel(name="pyc", level="body", make=pyc, tool="python"),
    Channel(name="pyc-optimised", level="body", make=pyc_optimised, tool="python"),
    Channel(name="pyc-3.8", level="body", make=pyc_38, tool="python3.8", is_stealable=False),
    Channel(name="pyc-3.12", level="body", make=pyc_312, tool="python3.12", is_stealable=False),
    Channel(name="pyc-3.13", level="body", make=pyc_313, tool="python3.13", is_stealable=False),
    Channel(name="pyc-legacy", level="body", make=pyc_legacy, tool="python"),
    Channel(name="pyc-prefix", level="body", make=pyc_prefix, tool="python"),
    Channel(name="pyc-zipped", level="body", make=pyc_zipped, tool="zipfile"),
    Channel(name="mypy-cache", level="signature", make=mypy_cache, tool="mypy"),
    Channel(name="mypy-json", level="signature", make=mypy_json, tool="mypy"),
    Channel(name="mypy-files", level="signature", make=mypy_files, tool="mypy"),
    Channel(name="stub-file", level="signature", make=stub_file, tool="stubgen"),
    Channel(name="jedi-cache", level="body", make=jedi_cache, tool="parso"),
    Channel(name="function-pickle", level="body", make=function_pickle, tool="cloudpickle", is_stealable=False),
    Channel(name="coverage-html", level="body", make=coverage_html, tool="coverage"),
    Channel(name="coverage-annotate", level="body", make=coverage_annotate, tool="coverage"),
    Channel(name="coverage-lcov", level="name", make=coverage_lcov, tool="coverage"),
    Channel(name="coverage-json", level="name", make=coverage_json, tool="coverage"),
    Channel(name="sphinx-viewcode", level="body", make=sphinx_viewcode, tool="sphinx"),
    Channel(name="sphinx-page", level="signature", make=sphinx_page, tool="sphinx"),
    Channel(name="sphinx-doctree", level="signature", make=sphinx_doctree, tool="sphinx"),
    Channel(name="sphinx-environment", level="name", make=sphinx_environment, tool="sphinx"),
    Channel(name="sphinx-inventory", level="name", make=sphinx_inventory, tool="sphinx"),
    Channel(name="sphinx-search", level="name", make=sphinx_search, tool="sphinx"),
    Channel(name="sphinx-manual", level="signature", make=sphinx_manual, tool="sphinx"),
    Channel(name="pydoc-page", level="signature", make=pydoc_page, tool="pydoc"),
    Channel(name="ctags", level="signature", make=ctags, tool="ctags"),
    Channel(name="etags", level="name", make=etags, tool="ctags"),
    Channel(name="monkeytype", level="name", make=monkeytype, tool="monkeytype"),
)
