"""One environment per repository: a virtual environment in a sandbox snapshot, built once and kept by content.

Installing runs foreign code (setup.py, build backends), so it happens in the sandbox, with a network for that
step alone.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from taskgen import archive
from taskgen.archive import ArchiveEntry
from taskgen.atomic import locked, replacing_file
from taskgen.errors import PrerequisiteError, SourceError
from taskgen.sandbox import ENV_DIR, HOME_DIR, WORKSPACE_DIR, ExecResult, Limits, Sandbox, SandboxProvider
from taskgen.session import PYTHON
from taskgen.tree import Tree
from taskgen.types import Environment

#: Run in the sandbox after the install; see there.
KEEP_ARTIFACTS = Path(__file__).parent / "languages" / "python_artifacts.py"
#: What every run needs besides the repository's own requirements.
RUNNER_REQUIREMENTS = ("pytest>=8", "coverage>=7.6")
DEFAULT_INSTALL = ("python -m pip install -e .",)
INSTALL_TIMEOUT_S = 900.0
INSTALL_LIMITS = Limits(memory_bytes=6 << 30, processes=1024)
#: Raise when the layout of a snapshot changes.
_LAYOUT = 4
_TAIL_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPlan:
    """What to build.

    Attributes:
        requirements: must install; optional: declared by the project, tried and left out if they fail.
        install: shell commands, run in the workspace with the environment's ``python`` first on the PATH.
        modules: names of which at least one must import from the workspace.
        pinned: requirements are complete, so the project itself is installed without dependencies.
    """

    runtime: str | None
    requirements: tuple[str, ...]
    optional: tuple[str, ...]
    install: tuple[str, ...]
    modules: tuple[str, ...]
    variables: Mapping[str, str]
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A built environment. ``key`` names its snapshot; ``freeze`` are the pinned requirements."""

    key: str
    runtime: str
    freeze: tuple[str, ...]
    notes: tuple[str, ...]


def build(
    provider: SandboxProvider, tree: Tree, plan: EnvironmentPlan, cache: Path, *, identity: str | None = None
) -> Built:
    """Build the environment, or take the one that an earlier (or concurrent) run built.

    ``identity`` stands for the tree's digest where several trees are to share an environment.

    Raises:
        SourceError: the project does not install, or is not imported from the workspace.
        PrerequisiteError: the runtime is not there.
        SandboxUnavailable: the sandbox failed.
        StoreError: the cache cannot be written.
    """
    key = _key(provider, identity or tree.digest, plan)
    record = cache / "environments" / f"{key}.json"
    with locked(record):
        if record.exists() and provider.has_snapshot(key):
            known = json.loads(record.read_text("utf-8"))
            return Built(key=key, runtime=known["runtime"], freeze=tuple(known["freeze"]), notes=tuple(known["notes"]))
        built = _build(provider, tree, plan, key)
        with replacing_file(record) as scratch:
            scratch.write_text(
                json.dumps({"runtime": built.runtime, "freeze": built.freeze, "notes": built.notes}), "utf-8"
            )
    return built


def _key(provider: SandboxProvider, identity: str, plan: EnvironmentPlan) -> str:
    parts = [
        _LAYOUT, provider.fingerprint(), identity, plan.runtime, plan.requirements, plan.optional, plan.install,
        plan.pinned, sorted(plan.variables.items()), KEEP_ARTIFACTS.read_text("utf-8"), RUNNER_REQUIREMENTS,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _build(provider: SandboxProvider, tree: Tree, plan: EnvironmentPlan, key: str) -> Built:
    with provider.create(network=True, limits=INSTALL_LIMITS) as sandbox:
        variables = {
            "PYTHONDONTWRITEBYTECODE": "1",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_NO_INPUT": "1",
            **plan.variables,
        }
        sandbox.put(WORKSPACE_DIR, archive.pack(archive.entries_of(tree.root, tree.files)))
        runtime = _make_venv(sandbox, provider.python(), plan.runtime)
        notes = _install(sandbox, plan, variables)
        _check_editable(sandbox, plan)
        _check_runner(sandbox)
        freeze = _freeze(sandbox)
        _keep_artifacts(sandbox, tree)
        sandbox.snapshot(key)
    return Built(key=key, runtime=runtime, freeze=freeze, notes=notes)


def _make_venv(sandbox: Sandbox, python: str, wanted: str | None) -> str:
    """Make /env/venv with the wanted interpreter; return e.g. ``python 3.11``."""
    if wanted is not None and _version(sandbox, python) != wanted.removeprefix("python").strip():
        python = f"python{wanted.removeprefix('python').strip()}"
        if _version(sandbox, python) is None:
            raise PrerequisiteError(
                f"runtime {wanted!r} is not in the sandbox",
                hint=f"install {python} on this machine, or leave `runtime` out",
            )
    made = sandbox.exec([python, "-m", "venv", f"{ENV_DIR}/venv"], cwd="/", timeout_s=INSTALL_TIMEOUT_S)
    if made.returncode != 0:
        raise PrerequisiteError(
            f"{python} -m venv failed: {_tail(made)}", hint="install the python3-venv package of your system"
        )
    return f"python {_version(sandbox, PYTHON)}"


def _version(sandbox: Sandbox, python: str) -> str | None:
    """The version (``3.11``) of an interpreter in the sandbox; None if there is no such program."""
    done = sandbox.exec([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], cwd="/")
    return done.stdout.decode().strip() if done.returncode == 0 else None


def _install(sandbox: Sandbox, plan: EnvironmentPlan, variables: Mapping[str, str]) -> tuple[str, ...]:
    pip = f"{PYTHON} -m pip install -q"
    notes = []
    wanted = [*RUNNER_REQUIREMENTS, *plan.requirements] if not plan.pinned else list(plan.requirements)
    together = [*wanted, *plan.optional]
    flags = "--no-deps " if plan.pinned else ""
    first = _shell(sandbox, f"{pip} {flags}{shlex.join(together)}", variables)
    if first.returncode != 0 and plan.optional:
        notes.append(f"declared test requirements did not install and were left out: {', '.join(plan.optional)}")
        first = _shell(sandbox, f"{pip} {flags}{shlex.join(wanted)}", variables)
    _must(first, f"pip install {' '.join(wanted)}")
    for command in plan.install:
        _must(_shell(sandbox, command, variables), command)
    return tuple(notes)


def _shell(sandbox: Sandbox, command: str, variables: Mapping[str, str]) -> ExecResult:
    return sandbox.exec(["/bin/sh", "-c", command], env=variables, timeout_s=INSTALL_TIMEOUT_S)


def _must(done: ExecResult, command: str) -> None:
    if done.returncode != 0:
        ended = "ran past its time limit" if done.timed_out else f"ended with code {done.returncode}"
        raise SourceError(
            f"the project does not install: `{command}` {ended}\n{_tail(done)}",
            hint="set `install` or `requirements` of its entry in repos.yaml",
        )


def _tail(done: ExecResult) -> str:
    return (done.stdout + done.stderr).decode("utf-8", "replace").strip()[-_TAIL_CHARS:]


_WHERE = """
import importlib.util, sys
for name in sys.argv[1:]:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        continue
    if spec is not None:
        print(name, spec.origin or list(spec.submodule_search_locations or [""])[0])
"""


def _check_editable(sandbox: Sandbox, plan: EnvironmentPlan) -> None:
    """A plain install would hide the deletion: tests would import the installed copy and pass."""
    tops = sorted({module.split(".")[0] for module in plan.modules})
    done = sandbox.exec([PYTHON, "-c", _WHERE, *tops], cwd="/")
    found = dict(line.split(" ", 1) for line in done.stdout.decode().splitlines() if " " in line)
    for name, origin in found.items():
        if not origin.startswith(WORKSPACE_DIR + "/"):
            raise SourceError(
                f"module {name} is imported from {origin}, not from the workspace: deletions would not be seen",
                hint="make `install` an editable install (python -m pip install -e .)",
            )
    if not found:
        raise SourceError(
            f"none of the modules {', '.join(tops[:8])} can be imported after the install",
            hint="set `install` of its entry in repos.yaml",
        )


_RUNNER = """
import sys
import coverage, pytest, _pytest.config
_pytest.config.get_config()
print("\\n".join(n for n, m in sys.modules.items() if (getattr(m, "__file__", "") or "").startswith(sys.argv[1])))
"""


def _check_runner(sandbox: Sandbox) -> None:
    """A library that pytest itself is made of cannot lose a feature: every run would fail, and none of the tests."""
    done = sandbox.exec([PYTHON, "-c", _RUNNER, WORKSPACE_DIR + "/"], cwd="/", timeout_s=120.0)
    _must(done, "import pytest")
    if used := done.stdout.decode("utf-8", "replace").split():
        raise SourceError(
            f"the test runner itself imports {', '.join(used[:3])} from the workspace: a deletion would break it",
            hint="leave this repository out; what pytest and coverage are made of cannot be a task",
        )


def _freeze(sandbox: Sandbox) -> tuple[str, ...]:
    done = sandbox.exec([PYTHON, "-m", "pip", "list", "--format=freeze", "--exclude-editable"], timeout_s=120.0)
    _must(done, "pip list")
    skipped = ("pip==", "setuptools==")
    lines = done.stdout.decode().splitlines()
    return tuple(sorted(line.strip() for line in lines if "==" in line and not line.startswith(skipped)))


def _keep_artifacts(sandbox: Sandbox, tree: Tree) -> None:
    program = ArchiveEntry(path="keep.py", content=KEEP_ARTIFACTS.read_bytes())
    names = ArchiveEntry(path="tree-list", content=b"\0".join(path.encode() for path in tree.files))
    sandbox.put(f"{HOME_DIR}/keep", archive.pack([program, names]))
    sandbox.put(f"{ENV_DIR}/artifacts", archive.pack([]))
    done = sandbox.exec(
        [PYTHON, f"{HOME_DIR}/keep/keep.py", f"{HOME_DIR}/keep/tree-list", f"{ENV_DIR}/artifacts"], timeout_s=300.0
    )
    _must(done, KEEP_ARTIFACTS.name)
    # Bytecode of the environment is worth having (every run imports it) and cannot be written later.
    sandbox.exec([PYTHON, "-m", "compileall", "-q", f"{ENV_DIR}/venv/lib"], timeout_s=300.0)


def pinned_install(commands: Sequence[str]) -> tuple[str, ...]:
    """The install commands for an environment whose requirements are pinned already."""
    if tuple(commands) == DEFAULT_INSTALL:
        return ("python -m pip install --no-deps -e .",)
    return tuple(commands)


def describe(
    built: Built, *, test_command: str, build_command: str, timeout_s: float, install: Sequence[str]
) -> Environment:
    """The ``environment`` record of a task."""
    return Environment(
        key=built.key,
        language="python",
        runtime=built.runtime,
        install=pinned_install(install),
        requirements=built.freeze,
        build_command=build_command,
        test_command=test_command,
        timeout_s=timeout_s,
    )
