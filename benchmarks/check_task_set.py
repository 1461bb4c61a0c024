"""Check a task set against the task set format, version 1, from its files alone.

It shares no code with the program that writes task sets. Exit status: 0 all checked and no violation,
1 violations, 2 no violation found, but something could not be checked.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet  # type: ignore[import-untyped]
import zstandard

Row = dict[str, Any]
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

SHAPES = {
    "row": "schema_version:int instance_id,repo,base_commit,language,recipe,recipe_sha256:str source:source "
    "problem_statement,patch,test_patch,deletion_patch,created_at:str deleted:list[deletion] checks:checks "
    "FAIL_TO_PASS,PASS_TO_PASS,test_files:list[str] environment:environment audit:audit "
    "difficulty:null|difficulty",
    "source": "kind:str sha256:null|str",
    "deletion": "path,qualified_name,kind:str signature:null|str start_line,end_line,lines:int",
    "environment": "language,runtime:str install:list[str|list[str]] requirements:str|list[str] "
    "build_command:null|str|list[str] test_command:str|list[str] timeout_s:number image:null|str",
    "checks": "n_runs:int flaky:list[str] null_fails,stub_fails,gold_passes,tree_restored:bool seconds:struct|number",
    "audit": "thief_reward:number",
    "difficulty": "policy:str policy_version:number|str n,passes:int pass_at_1:number "
    "interval:interval|list[number] band,measured_at:str",
    "interval": "low,high:number",
}
TYPES: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "number": (int, float), "bool": (bool,)}
TYPES |= {"null": (type(None),), "struct": (dict,)}
PATTERNS = {
    "base_commit": "[0-9a-f]{40}|[0-9a-f]{64}",
    "recipe_sha256": "[0-9a-f]{64}",
    "repo": "[^/]+/[^/]+",
}
TEXTS = {"instruction.md": "problem_statement", "gold.patch": "patch", "deletion.patch": "deletion_patch"}
TASK_FILES = {"task.json", "workspace.tar.zst", "tests.tar.zst", *TEXTS}
#: The grader's own file, since version 2; what it holds is not part of the contract.
OPTIONAL_FILES = {"guards.json.zst"}
LITTER = re.compile(
    r"(^|/)(\.(git|hg|svn|bzr|tox|nox|eggs|venv|cache|hypothesis|coverage|\w+_cache)|__pycache__)(/|$)"
    r"|\.py[co]$|\.(egg|dist)-info(/|$)|^build/(lib|bdist|temp)|^dist/.*\.(whl|gz)$"
)
PLUGIN_NAME = "check_task_set_report"
PLUGIN = """
import json, os
FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "report.jsonl")
FD = os.open(FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
def emit(report, when, write=os.write, dumps=json.dumps, fd=FD):
    line = {"id": report.nodeid, "when": when, "outcome": report.outcome}
    write(fd, (dumps(line) + "\\n").encode())
def pytest_runtest_logreport(report):
    emit(report, report.when)
def pytest_collectreport(report):
    if report.failed:
        emit(report, "collect")
"""
SETUP_LIMIT_S, SIZE_LIMIT = 3600.0, 8 << 30
# Stubs may make a program wait for ever; a test that did not end by then did not pass.
STUB_LIMIT_S = 60.0
FAILED_SET_UPS: dict[Path, str] = {}  # so that the next task of the same environment need not try again


class ViolationError(Exception):
    """A violation after which the rest of the task's checks make no sense."""


class UncheckedError(Exception):
    """The check itself could not be made; says nothing about the task."""


@dataclass(frozen=True)
class Options:
    root: Path
    cache: Path
    runs: int = 1
    bwrap: bool = False
    tests: bool = True


@dataclass
class Result:
    instance_id: str
    violations: list[str] = field(default_factory=list)
    could_not_check: str | None = None
    seconds: float = 0.0


def some(items: Iterable[str]) -> str:
    listed = sorted(set(items))
    return ", ".join(listed[:5]) + (f" (+{len(listed) - 5} more)" if len(listed) > 5 else "")


# --- the row ---


def fields(shape: str) -> dict[str, str]:
    groups = [group.partition(":") for group in SHAPES[shape].split()]
    return {key: kind for keys, _, kind in groups for key in keys.split(",")}


def mistyped(value: object, shape: str, where: str) -> list[str]:
    """What is not of the shape: a name of TYPES or SHAPES, list[shape], or shape|shape."""
    if (inner := re.fullmatch(r"list\[(.*)\]", shape)) and isinstance(value, list):
        return [p for i, v in enumerate(value) for p in mistyped(v, inner[1], f"{where}[{i}]")]
    if "|" in shape and not inner:
        tries = [mistyped(value, one, where) for one in shape.split("|")]
        return [] if [] in tries else tries[-1]
    if shape in SHAPES and isinstance(value, dict):
        return [p for k, s in fields(shape).items() for p in mistyped(value.get(k), s, f"{where}.{k}")]
    right = type(value) in TYPES.get(shape, ())
    return [] if right else [f"{where} is of type {type(value).__name__}, not {shape}"]


def check_types(row: Row, name: str) -> list[str]:
    unknown = [f"{name}: unknown field {key}" for key in row.keys() - fields("row").keys()]
    absent = [f"{name}: no field {key}" for key in fields("row").keys() - row.keys()]
    return sorted(unknown + absent) + mistyped(row, "row", name)


def plain(value: object) -> object:
    """One form for a value of JSON and of parquet, where structs are filled up with nulls."""
    if isinstance(value, list) and value and all(isinstance(v, tuple) for v in value):
        value = dict(value)
    if isinstance(value, dict):
        kept = {k: plain(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v is not None and v != {}}
    return [plain(v) for v in value] if isinstance(value, list) else value


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def is_utc(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).utcoffset() == timedelta(0)
    except ValueError:
        return False


def check_values(row: Row) -> Iterator[str]:
    yield from (f"{k} is malformed: {row[k]!r}" for k, p in PATTERNS.items() if not re.fullmatch(p, row[k]))
    yield from (f"checks.{k} is not true" for k, value in row["checks"].items() if value is False)
    match = re.fullmatch(r"([\w.-]+)__([\w.-]+)-[0-9a-f]{10}", row["instance_id"])
    project, recipe = slug(row["repo"].split("/")[-1]), slug(row["recipe"])
    named = match and project in slug(match[1]) and slug(match[2]) == recipe
    gain, keep, flaky = (set(s) for s in (row["FAIL_TO_PASS"], row["PASS_TO_PASS"], row["checks"]["flaky"]))
    for good, text in (
        (named, "instance_id is not <repo-slug>__<recipe>-<10 hex digits>"),
        (row["schema_version"] in (1, 2), "schema_version is not 1 or 2"),
        (is_utc(row["created_at"]), "created_at is not ISO 8601 in UTC"),
        (row["source"]["kind"] in ("git", "sdist", "path"), "source.kind is not git, sdist or path"),
        (gain, "FAIL_TO_PASS is empty"),
        (not gain & keep, f"in both FAIL_TO_PASS and PASS_TO_PASS: {some(gain & keep)}"),
        (not (gain | keep) & flaky, f"flaky, but in a test list: {some((gain | keep) & flaky)}"),
        (row["deleted"], "deleted is empty"),
        (row["audit"]["thief_reward"] == 0, "audit.thief_reward is not 0"),
        (row["checks"]["n_runs"] > 0, "checks.n_runs is not positive"),
        (row["environment"]["timeout_s"] > 0, "environment.timeout_s is not positive"),
        (row["environment"]["language"] == row["language"], "environment.language differs from language"),
    ):
        if not good:
            yield text


def read_row(folder: Path, table_row: Row | None, violations: list[str]) -> Row:
    files = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if TASK_FILES - files:
        raise ViolationError(f"no file {some(TASK_FILES - files)}")
    violations += [f"unknown file {name}" for name in files - TASK_FILES - OPTIONAL_FILES]
    try:
        row: Row = json.loads((folder / "task.json").read_bytes())
    except ValueError as error:
        raise ViolationError(f"task.json: {error}") from error
    if not isinstance(row, dict) or row.get("instance_id") != folder.name:
        raise ViolationError("task.json is not an object with this instance_id")
    if problems := check_types(row, "task.json"):
        violations += problems[:-1]
        raise ViolationError(problems[-1])
    violations += check_types(table_row, "tasks.parquet") if table_row else ["tasks.parquet has no such row"]
    if unequal := [key for key in row if table_row and plain(row[key]) != plain(table_row.get(key))]:
        violations.append(f"task.json and tasks.parquet differ in {some(unequal)}")
    return row


# --- files, archives and patches ---


def tree(root: Path) -> dict[str, tuple[str, bytes]]:
    files: dict[str, tuple[str, bytes]] = {}
    for path in root.rglob("*"):
        if path.is_symlink():
            files[path.relative_to(root).as_posix()] = ("link", str(path.readlink()).encode())
        elif path.is_file():
            kind = "exec" if path.stat().st_mode & 0o100 else "file"
            files[path.relative_to(root).as_posix()] = (kind, hashlib.sha256(path.read_bytes()).digest())
    return files


def differing(a: Path, b: Path) -> set[str]:
    first, second = tree(a), tree(b)
    return {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}


def inside(root: Path, name: str) -> Path:
    if not (root / name).parent.resolve().is_relative_to(root.resolve()):
        raise ViolationError(f"path leads out of the tree: {name}")
    return root / name


def overlay(source: Path, into: Path, names: Iterable[str] | None = None) -> None:
    for name in tree(source) if names is None else names:
        target = inside(into, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy2(source / name, target, follow_symlinks=False)


def unpack(archive: Path, into: Path) -> list[str]:
    """Unpacks the archive; returns what is not fixed in it. Refuses unsafe members."""
    into.mkdir()
    members: list[tarfile.TarInfo] = []
    try:
        with (
            archive.open("rb") as file,
            zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as stream,
            tarfile.open(fileobj=stream, mode="r|") as tar,
        ):
            size = 0
            for member in tar:
                members.append(member)
                size += member.size
                if size > SIZE_LIMIT:
                    raise ViolationError(f"{archive.name}: unpacks to more than {SIZE_LIMIT} bytes")
                tar.extract(member, into, filter="data")
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise ViolationError(f"{archive.name}: cannot be unpacked safely: {error}") from error
    return [f"{archive.name}: {problem}" for problem in unfixed(members)]


def unfixed(members: list[tarfile.TarInfo]) -> Iterator[str]:
    names = [m.name.removeprefix("./") for m in members]
    if len(set(names)) < len(names):
        yield "has a member twice"
    if names not in (sorted(names), sorted(names, key=lambda n: n.split("/"))):
        yield "members are not in sorted order"
    if len({m.mtime for m in members}) > 1:
        yield "members have different times"
    if any(m.uid or m.gid or {m.uname, m.gname} - {"", "root"} for m in members):
        yield "members have an owner other than 0/0"


def git_apply(where: Path, patch: bytes, label: str, *flags: str) -> str:
    variables = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    variables |= {"GIT_CEILING_DIRECTORIES": str(where.parent)}
    variables |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    argv = ["git", "apply", "-p1", "--whitespace=nowarn", *flags]
    done = subprocess.run(argv, cwd=where, env=variables, input=patch, capture_output=True)
    if done.returncode:
        raise ViolationError(f"{label} does not apply: {done.stderr.decode(errors='replace').strip()[:300]}")
    return done.stdout.decode(errors="surrogateescape")


def touched(patch: bytes, where: Path, label: str) -> set[str]:
    lines = git_apply(where, patch, label, "--numstat", "-z").split("\0")
    moved = re.findall(r"^rename (?:from|to) (.+)$", patch.decode(errors="replace"), re.MULTILINE)
    return {line.split("\t", 2)[2] for line in lines if line} | set(moved)


# --- source code ---


def parse(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def definitions(node: ast.AST | None, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    for child in ast.iter_child_nodes(node) if node else ():
        if isinstance(child, Definition):
            yield prefix + child.name, child
            yield from definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from definitions(child, prefix)


def outer_functions(node: ast.AST) -> Iterator[Function]:
    if isinstance(node, Function):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from outer_functions(child)


def first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def find_deleted(item: Row, root: Path) -> list[Definition]:
    """The definitions that one entry of `deleted` names; by its lines where the name is not unique."""
    name = item["qualified_name"].replace("<locals>.", "")
    found = [node for known, node in definitions(parse(root / item["path"])) if known == name]
    low, high = item["start_line"], item["end_line"]
    return [n for n in found if first_line(n) <= high and (n.end_lineno or 0) >= low] or found


def deleted_functions(row: Row, root: Path) -> dict[str, list[Function]]:
    result: dict[str, list[Function]] = {}
    for item in row["deleted"]:
        found = [f for node in find_deleted(item, root) for f in outer_functions(node)]
        result.setdefault(item["path"], []).extend(found)
    return result


def stubbed(source: bytes, functions: Iterable[Function]) -> bytes:
    starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
    spans = set()
    for first, last in ((node.body[0], node.body[-1]) for node in functions):
        begin = starts[first_line(first) - 1] + first.col_offset
        spans.add((begin, starts[(last.end_lineno or 0) - 1] + (last.end_col_offset or 0)))
    for begin, end in sorted(spans, reverse=True):
        if not any(b <= begin and end <= e for b, e in spans - {(begin, end)}):
            source = source[:begin] + b"return None" + source[end:]
    return source


def test_function(root: Path, test_id: str) -> Function | None:
    path, *names = test_id.split("[", 1)[0].split("::")
    found = dict(definitions(parse(root / path))).get(".".join(names))
    return found if isinstance(found, Function) else None


def identifiers(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute):
            yield part.id if isinstance(part, ast.Name) else part.attr
        elif isinstance(part, ast.alias):
            yield part.name.split(".")[-1]


def squeezed(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def check_leaks(row: Row, pristine: Path, files: Iterable[Path]) -> Iterator[str]:
    """Deleted bodies of five lines or more that can be read in one of the files."""
    bodies: dict[str, str] = {}
    for path, functions in deleted_functions(row, pristine).items():
        lines = inside(pristine, path).read_text(errors="replace").split("\n") if functions else []
        for node in functions:
            body = squeezed("\n".join(lines[first_line(node.body[0]) - 1 : node.end_lineno]))
            bodies |= {body: node.name} if body.count("\n") >= 4 and len(body) >= 120 else {}
    for file in (path for path in files if path.is_file() and not path.is_symlink()):
        data = file.read_bytes() if file.stat().st_size < 4 << 20 else b""
        hits = [body for body in bodies if max(body.split("\n"), key=len).encode() in data]
        if any(body in squeezed(data.decode(errors="replace")) for body in hits):
            names = some(bodies[body] for body in hits)
            yield f"deleted code ({names}) can be read in {file.parent.name}/{file.name}"


# --- the machine that runs the tests ---


def find_python(runtime: str) -> Path:
    """The interpreter itself for "python 3.11", not a shim or one of a virtual environment."""
    match = re.search(r"\d+\.\d+", runtime)
    version = match[0] if match else "3"
    installed = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}*/bin/python"))
    probe = "import sys; print('%d.%d' % sys.version_info[:2], sys.base_prefix)"
    for candidate in (sys.executable, f"python{version}", *map(str, installed)):
        if shutil.which(candidate):
            done = subprocess.run([candidate, "-c", probe], capture_output=True, text=True)
            found, _, prefix = done.stdout.strip().partition(" ")
            if done.returncode == 0 and f"{found}.".startswith(f"{version}."):
                return Path(prefix) / "bin" / f"python{found}"
    raise UncheckedError(f"no interpreter for {runtime!r}")


def execute(argv: list[str], env: dict[str, str], cwd: Path, limit: float) -> tuple[int, str]:
    """Exit status (124: over the limit) and the end of the output."""
    with tempfile.TemporaryFile() as log:
        job = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = job.wait(limit)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        log.seek(0)
        return code, log.read().decode(errors="replace").strip()[-1000:]


def shell_line(command: str | list[str]) -> str:
    return command if isinstance(command, str) else shlex.join(command)


@dataclass
class Outcome:
    passed: set[str]
    seen: set[str]
    build_failure: str
    ending: str


@dataclass
class Machine:
    """One environment. Commands name /workspace, /env and /report, whether bound or rewritten."""

    options: Options
    setup: Row
    root: Path
    place: Path
    python: Path

    def local(self, text: str) -> str:
        if self.options.bwrap:
            return text
        real = {"/workspace": self.place / "run", "/env": self.root / "env", "/report": self.place / "report"}
        pattern = r"(?<![\w./-])(/workspace|/env|/report)(?![\w-])"
        return re.sub(pattern, lambda m: str(real[m[0]]), text)

    def variables(self, network: bool) -> dict[str, str]:
        path = f"/env/venv/bin:{os.environ.get('PATH', os.defpath)}"
        home = str(Path.home()) if network else "/report/home"  # pip's configuration is in the first
        known = {"PATH": path, "VIRTUAL_ENV": "/env/venv", "HOME": home}
        known |= {"LANG": "C.UTF-8", "USER": "nobody", "PYTHONDONTWRITEBYTECODE": "1"}
        passed = re.compile(r"(PIP_|UV_|SSL_).*|.*_proxy|.*_CA_BUNDLE", re.IGNORECASE)
        outer = {k: v for k, v in os.environ.items() if network and passed.fullmatch(k)}
        return {key: self.local(value) for key, value in known.items()} | outer

    def sandbox(self, network: bool) -> list[str]:
        argv = ["bwrap", "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534"]
        argv += ["--die-with-parent", "--new-session", *(["--share-net"] if network else [])]
        for path in sorted(Path("/").iterdir()):
            if path.is_symlink():
                argv += ["--symlink", str(path.readlink()), str(path)]
            elif path.name not in ("proc", "dev", "tmp", "workspace", "env", "report"):
                argv += ["--ro-bind", str(path), str(path)]
        home, prefix = Path.home(), self.python.parent.parent
        for hidden in (Path("/tmp"), home, self.options.root, self.options.cache):
            argv += ["--tmpfs", str(hidden)]
        for shown in (prefix, home / ".config/pip", home / ".pip", home / ".local/bin"):
            argv += ["--ro-bind-try", str(shown), str(shown)]
        argv += ["--proc", "/proc", "--dev", "/dev", "--bind", str(self.place / "run"), "/workspace"]
        argv += ["--bind" if network else "--ro-bind", str(self.root / "env"), "/env"]
        argv += ["--bind", str(self.place / "report"), "/report", "--chdir", "/workspace"]
        return [*argv, "--remount-ro", "/"]

    def call(self, line: str, limit: float, network: bool = False) -> tuple[int, str]:
        argv = [*(self.sandbox(network) if self.options.bwrap else []), "sh", "-c", self.local(line)]
        return execute(argv, self.variables(network), self.place / "run", limit)

    def fresh(self, state: Path) -> None:
        for name in ("run", "report"):
            shutil.rmtree(self.place / name, ignore_errors=True)
        shutil.copytree(state, self.place / "run", symlinks=True)
        overlay(self.root / "installed", self.place / "run")
        (self.place / "report/home").mkdir(parents=True)
        (self.place / f"report/{PLUGIN_NAME}.py").write_text(PLUGIN)

    def prepare(self, state: Path) -> None:
        """Makes the environment in the given tree and keeps the files that its set-up put there."""
        if (self.root / "ready").exists():
            return
        if self.root in FAILED_SET_UPS:
            raise UncheckedError(FAILED_SET_UPS[self.root])
        for name in ("env", "installed"):
            shutil.rmtree(self.root / name, ignore_errors=True)
            (self.root / name).mkdir()
        self.fresh(state)
        pins = self.setup["requirements"]
        (self.root / "env/requirements.txt").write_text(pins if isinstance(pins, str) else "\n".join(pins))
        self.set_up(f"{shlex.quote(str(self.python))} -m venv /env/venv")
        site = self.root / "env/venv/lib" / self.python.name / "site-packages"
        (site / f"{PLUGIN_NAME}.pth").write_text(self.local("/report") + "\n")
        if pins:
            self.set_up("/env/venv/bin/python -m pip install -r /env/requirements.txt")
        # The set-up ran in a pristine tree, so what the install commands copy is no leak of the task's.
        (self.root / "pinned").write_text("\n".join(map(str, site.rglob("*"))))
        for line in map(shell_line, self.setup["install"]):
            self.set_up(line)
        self.set_up(f"/env/venv/bin/python -m pytest -p {PLUGIN_NAME} --version")
        made = tree(self.place / "run").keys() - tree(state).keys()
        overlay(self.place / "run", self.root / "installed", [n for n in made if "__pycache__" not in n])
        (self.root / "ready").touch()

    def set_up(self, line: str) -> None:
        code, output = self.call(line, SETUP_LIMIT_S, network=True)
        if code:
            FAILED_SET_UPS[self.root] = f"set-up command {line!r} ended with {code}: {output[-600:]}"
            raise UncheckedError(FAILED_SET_UPS[self.root])

    def run_tests(self, state: Path, most_s: float = math.inf) -> Outcome:
        self.fresh(state)
        limit, failure = min(most_s, float(self.setup["timeout_s"])), ""
        if self.setup.get("build_command"):
            code, output = self.call(shell_line(self.setup["build_command"]), limit)
            failure = f"status {code}: {output[-300:]}" if code else ""
        line = f"{shell_line(self.setup['test_command'])} -p no:cacheprovider -p {PLUGIN_NAME}"
        code, output = self.call(f"{line} --continue-on-collection-errors", limit)
        passed, seen = read_report(self.place / "report/report.jsonl")
        return Outcome(passed, seen, failure, "timeout" if code == 124 else f"status {code}: {output[-200:]}")


def read_report(path: Path) -> tuple[set[str], set[str]]:
    """The tests that passed (a call passed, no phase failed) and all that were reported."""
    called, failed, seen = set[str](), set[str](), set[str]()
    for line in path.read_text().splitlines() if path.exists() else []:
        if not line.endswith("}"):  # cut off when the time was over
            continue
        report = json.loads(line)
        seen.add(report["id"])
        if report["outcome"] == "failed":
            failed.add(report["id"])
        elif report["when"] == "call" and report["outcome"] == "passed":
            called.add(report["id"])
    return called - failed, seen


@contextmanager
def machine(row: Row, options: Options, scratch: Path, state: Path) -> Iterator[Machine]:
    """A ready machine. Without bwrap its tree has one path for all tasks, so the lock is kept."""
    setup = row["environment"]
    if row["language"] != "python":
        raise UncheckedError(f"cannot run tests in {row['language']}")
    identity = [row["repo"], row["base_commit"], setup["requirements"], setup["install"]]
    identity += [setup["runtime"], options.bwrap]
    root = options.cache / hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:20]
    root.mkdir(exist_ok=True)
    place = scratch if options.bwrap else root
    result = Machine(options, setup, root, place, find_python(setup["runtime"]))
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result.prepare(state)
        if not options.bwrap:
            yield result
            return
    yield result


# --- one task ---


@dataclass
class Task:
    row: Row
    folder: Path
    scratch: Path
    options: Options

    def at(self, name: str) -> Path:
        return self.scratch / name

    def copied(self, source: str, name: str, change: Callable[[Path], object]) -> None:
        change(Path(shutil.copytree(self.at(source), self.at(name), symlinks=True)))

    def check(self) -> Iterator[str]:
        for name, key in TEXTS.items():
            if (self.folder / name).read_bytes() != self.row[key].encode():
                yield f"{key} is not equal to {name}"
        yield from check_values(self.row)
        yield from unpack(self.folder / "workspace.tar.zst", self.at("workspace"))
        yield from unpack(self.folder / "tests.tar.zst", self.at("tests"))
        yield from self.check_contents()
        yield from self.check_trees()
        yield from self.check_source()
        yield from check_leaks(self.row, self.at("pristine"), self.at("workspace").rglob("*"))
        if self.options.tests:
            with machine(self.row, self.options, self.scratch, self.at("pristine")) as runner:
                pinned = (runner.root / "pinned").read_text().splitlines()
                yield from check_leaks(self.row, self.at("pristine"), map(Path, pinned))
                yield from self.check_runs(runner)

    def check_contents(self) -> Iterator[str]:
        workspace = self.at("workspace")
        names = [path.relative_to(workspace).as_posix() for path in workspace.rglob("*")]
        if litter := [name for name in names if LITTER.search(name)]:
            yield f"workspace holds version history, caches or build output: {some(litter)}"
        if difference := set(self.row["test_files"]) ^ tree(self.at("tests")).keys():
            yield f"test_files and tests.tar.zst do not list the same files: {some(difference)}"

    def check_trees(self) -> Iterator[str]:
        files, deletion = set(self.row["test_files"]), (self.folder / "deletion.patch").read_bytes()
        gold, put_back = (self.folder / "gold.patch").read_bytes(), self.row["test_patch"].encode()
        self.copied("workspace", "pristine", lambda to: git_apply(to, deletion, "deletion.patch -R", "-R"))
        self.copied("workspace", "graded", lambda to: overlay(self.at("tests"), to))
        self.copied("workspace", "solved", lambda to: git_apply(to, gold, "gold.patch"))
        self.copied("workspace", "tested", lambda to: git_apply(to, put_back, "test_patch"))
        overlay(self.at("tests"), self.at("solved"))
        if wrong := touched(gold, self.scratch, "gold.patch") & files:
            yield f"gold.patch touches test files: {some(wrong)}"
        if wrong := touched(put_back, self.scratch, "test_patch") - files:
            yield f"test_patch touches files that are not in test_files: {some(wrong)}"
        if wrong := differing(self.at("pristine"), self.at("solved")):
            yield f"workspace + gold + tests is not the pristine tree: {some(wrong)}"
        if wrong := differing(self.at("tested"), self.at("graded")):
            yield f"test_patch and tests.tar.zst give different files: {some(wrong)}"

    def check_source(self) -> Iterator[str]:
        row, workspace, pristine = self.row, self.at("workspace"), self.at("pristine")
        for item in row["deleted"]:
            found = find_deleted(item, pristine)
            left = {ast.dump(node) for _, node in definitions(parse(workspace / item["path"]))}
            if not found and re.search("func|method|class|propert", item["kind"]):
                yield f"deleted {item['qualified_name']} is not defined in the pristine {item['path']}"
            if any(ast.dump(node) in left for node in found):
                yield f"deleted {item['qualified_name']} is still in the workspace"
        if shown := [test for test in row["FAIL_TO_PASS"] if test_function(workspace, test)]:
            yield f"FAIL_TO_PASS tests are in the workspace: {some(shown)}"
        hidden = [test_function(pristine, test) for test in row["FAIL_TO_PASS"]]
        used = {name for node in hidden if node for name in identifiers(node)}
        parts = [item["qualified_name"].split(".") for item in row["deleted"]]
        public = {p[-1] for p in parts if not any(part.startswith("_") for part in p)}
        if unsaid := public & used - set(re.findall(r"\w+", row["problem_statement"])):
            yield f"problem_statement does not name what hidden tests use: {some(unsaid)}"

    def check_runs(self, runner: Machine) -> Iterator[str]:
        gain, keep = set(self.row["FAIL_TO_PASS"]), set(self.row["PASS_TO_PASS"])
        for state in ("graded", "solved") * self.options.runs:
            outcome = runner.run_tests(self.at(state))
            solved, name = state == "solved", f"workspace{' + gold' * (state == 'solved')} + tests"
            if outcome.build_failure:
                yield f"{name}: build_command fails: {outcome.build_failure}"
            if not solved and gain & outcome.passed:
                yield f"{name}: FAIL_TO_PASS passes: {some(gain & outcome.passed)}"
            if missing := (gain | keep if solved else keep) - outcome.passed:
                yield f"{name}: fails: {some(missing)} [{outcome.ending}]"
        self.copied("pristine", "stubs", self.write_stubs)
        if gain <= runner.run_tests(self.at("stubs"), STUB_LIMIT_S).passed:
            yield "a patch of stubs (return None) passes every FAIL_TO_PASS test"
        outcome = runner.run_tests(self.at("workspace"))
        started = {test.split("[", 1)[0] for test in outcome.seen}
        lost = {test for test in keep - outcome.seen if test.split("[", 1)[0] not in started}
        bad = {test for test in lost if test_function(self.at("workspace"), test)}
        if bad := bad | (keep & outcome.seen - outcome.passed):
            yield f"workspace alone: PASS_TO_PASS fails: {some(bad)} [{outcome.ending}]"

    def write_stubs(self, into: Path) -> None:
        functions = deleted_functions(self.row, into)
        if not any(functions.values()):
            raise UncheckedError("deleted names no function that this Python can parse, to write a stub for")
        for path, nodes in functions.items():
            if nodes:
                file = inside(into, path)
                file.write_bytes(stubbed(file.read_bytes(), nodes))


def check_task(instance_id: str, table_row: Row | None, options: Options) -> Result:
    result, begun = Result(instance_id), time.monotonic()
    folder = options.root / "tasks" / instance_id
    with tempfile.TemporaryDirectory(dir=options.cache, ignore_cleanup_errors=True) as scratch:
        try:
            row = read_row(folder, table_row, result.violations)
            for violation in Task(row, folder, Path(scratch), options).check():
                result.violations += [violation] if violation not in result.violations else []
        except ViolationError as error:
            result.violations.append(str(error))
        except (UncheckedError, OSError) as error:
            result.could_not_check = str(error)
    result.seconds = round(time.monotonic() - begun, 1)
    return result


# --- the set ---


def read_table(root: Path, violations: list[str]) -> dict[str, Row]:
    try:
        rows = parquet.ParquetFile(root / "tasks.parquet").read().to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these kinds
        violations.append(f"tasks.parquet cannot be read: {error}")
        return {}
    table = {str(row.get("instance_id")): row for row in rows}
    violations += ["tasks.parquet has an instance_id twice"] if len(table) < len(rows) else []
    return table


def check_json(path: Path, lines: bool, keys: set[str]) -> list[str]:
    try:
        texts = path.read_text().splitlines() if lines else [path.read_text()]
        values = [json.loads(text) for text in texts]
    except (OSError, ValueError) as error:
        return [f"{path.name}: {error}"]
    good = all(isinstance(value, dict) and keys <= value.keys() for value in values)
    return [] if good else [f"{path.name}: not an object with {some(keys)}"]


def check_set(root: Path, violations: list[str]) -> dict[str, Row | None]:
    """Checks the files of the set itself; returns its tasks with their rows of the table."""
    violations += check_json(root / "build.json", False, {"seed"})
    violations += check_json(root / "rejected.jsonl", True, {"candidate", "stage", "reason", "detail"})
    table = read_table(root, violations)
    folders = {path.name for path in (root / "tasks").glob("*")}
    return {name: table.get(name) for name in sorted(table.keys() | folders)}


def check_all(ids: dict[str, Row | None], options: Options, jobs: int) -> list[Result]:
    results: list[Result] = []
    with ThreadPoolExecutor(jobs) as pool:
        for result in pool.map(check_task, ids.keys(), ids.values(), [options] * len(ids)):
            results.append(result)
            state = "could not check" if result.could_not_check else "checked"
            text = f"{state}, {len(result.violations)} violations, {result.seconds} s"
            print(f"[{len(results)}/{len(ids)}] {result.instance_id}: {text}", file=sys.stderr)
    return results


def show(violations: list[str], results: list[Result]) -> None:
    for violation in violations:
        print(f"task set: {violation}")
    for result in results:
        for violation in result.violations:
            print(f"{result.instance_id}: {violation}")
        if result.could_not_check:
            print(f"{result.instance_id}: could not check: {result.could_not_check}")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "check-task-set"
    add("set", type=Path, help="the task set's directory (it holds tasks.parquet)")
    add("--only", action="append", metavar="ID", help="check this task only; may be repeated")
    add("--json", action="store_true", help="print one JSON object instead of lines")
    add("--jobs", type=int, default=1, help="tasks at a time (default 1)")
    add("--runs", type=int, default=1, help="test runs with and without the gold patch (default 1)")
    add("--cache", type=Path, default=cache, help="where environments are kept (default %(default)s)")
    add("--no-tests", action="store_true", help="check the files only: make no environment, run no test")
    default = shutil.which("bwrap") is not None
    text = "run commands in bwrap: read-only system, no network for tests (default: if bwrap is installed)"
    add("--bwrap", action=argparse.BooleanOptionalAction, default=default, help=text)
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = arguments()
    args = parser.parse_args(argv)
    if not args.set.is_dir():
        parser.error(f"{args.set} is not a directory")
    args.cache.mkdir(parents=True, exist_ok=True)
    options = Options(args.set.resolve(), args.cache.resolve(), args.runs, args.bwrap, not args.no_tests)
    violations: list[str] = []
    tasks = check_set(options.root, violations)
    if unknown := set(args.only or ()) - tasks.keys():
        parser.error(f"no such task: {some(unknown)}")
    chosen = {name: row for name, row in tasks.items() if not args.only or name in args.only}
    results = check_all(chosen, options, args.jobs)
    count = len(violations) + sum(len(result.violations) for result in results)
    checked = sum(result.could_not_check is None for result in results)
    if args.json:
        report = {"checked": checked, "violations": count, "set": violations}
        print(json.dumps(report | {"tasks": [vars(result) for result in results]}, indent=2))
    else:
        show(violations, results)
        print(f"{checked} tasks checked, {count} violations")
    return 1 if count else 2 if checked < len(results) else 0


if __name__ == "__main__":
    sys.exit(main())
