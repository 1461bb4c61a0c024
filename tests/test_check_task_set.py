"""Tries the task set checker on a tiny set made here: a sound one, and broken ones of each sort."""

from __future__ import annotations

import difflib
import importlib.util
import io
import json
import shutil
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import pytest

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
zstandard = pytest.importorskip("zstandard")

CHECKER = Path(__file__).parents[1] / "benchmarks" / "check_task_set.py"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
SITE = f"/env/venv/lib/python{VERSION}/site-packages"
ADD = "def add(a, b):\n    return a + b\n"
SCALE = '''

class Ruler:
    """Measures."""

    def __init__(self, unit): self.unit = unit

    def scale(self, values, factor=2):
        """Every value, times the factor and the unit."""
        result = []
        for value in values:
            product = value * factor * self.unit
            result.append(product)
        return result
'''
TEST_ADD = "import pytest\n\nfrom tiny import calc\n\n\ndef test_add():\n    assert calc.add(1, 2) == 3\n"
TEST_SCALE = """

@pytest.mark.parametrize("unit", [1, 2])
def test_scale(unit):
    assert calc.Ruler(unit).scale([1]) == [2 * unit]
"""
TEST_BOX = """import os, socket


def test_box():
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
    assert os.getcwd() == "/workspace"
    assert not any(os.access(path, os.W_OK) for path in ("/", "/usr", "/env"))
"""
Files = dict[str, str]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_task_set", CHECKER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_task_set"] = module
    spec.loader.exec_module(module)
    return module


checker = load()


class Machine(Protocol):
    root: Path


def diff(old: Files, new: Files) -> str:
    text = ""
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name, "").splitlines(True), new.get(name, "").splitlines(True)
        origin = f"a/{name}" if name in old else "/dev/null"
        target = f"b/{name}" if name in new else "/dev/null"
        text += "".join(difflib.unified_diff(before, after, origin, target))
    return text


def packed(files: Files, backwards: int = False, mtime: int = 0, owner: int = 0) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for position, name in enumerate(sorted(files, reverse=bool(backwards))):
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uid = len(files[name].encode()), mtime * position, owner
            tar.addfile(info, io.BytesIO(files[name].encode()))
    return bytes(zstandard.compress(buffer.getvalue()))


@dataclass
class Tiny:
    """One task, held as its parts. A change to a part is a fault of the written task."""

    digit: int = 0
    pristine: Files = field(
        default_factory=lambda: {
            "README.md": "tiny\n",
            "tests/test_calc.py": TEST_ADD + TEST_SCALE,
            "tiny/__init__.py": "",
            "tiny/calc.py": ADD + SCALE,
        }
    )
    workspace: Files = field(default_factory=dict)
    tests: Files = field(default_factory=dict)
    gold: str = ""
    row: dict[str, Any] = field(default_factory=dict)
    table: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.workspace = self.pristine | {"tests/test_calc.py": TEST_ADD, "tiny/calc.py": ADD}
        self.derive()

    def derive(self) -> None:
        """The other parts, from the two trees."""
        self.tests = {k: v for k, v in self.pristine.items() if k.startswith("tests/")}
        solved = self.pristine | {k: v for k, v in self.workspace.items() if k.startswith("tests/")}
        self.gold = diff(self.workspace, solved)
        self.row = self.default_row()

    def default_row(self) -> dict[str, Any]:
        digest, commit = "ab" * 32, "c" * 40
        tests = {k: v for k, v in self.workspace.items() if k.startswith("tests/")}
        return {
            "schema_version": 1,
            "instance_id": f"owner-tiny__delete-class-{self.digit:010x}",
            "repo": "owner/tiny",
            "base_commit": commit,
            "source": {"kind": "git", "url": "https://example.org/tiny", "revision": commit, "sha256": digest},
            "language": "python",
            "recipe": "delete-class",
            "recipe_sha256": digest,
            "problem_statement": "Write class `Ruler` in tiny/calc.py, with `scale(values, factor=2)`.\n",
            "patch": self.gold,
            "test_patch": diff(tests, self.tests),
            "deletion_patch": diff(self.pristine, self.workspace),
            "FAIL_TO_PASS": [f"tests/test_calc.py::test_scale[{unit}]" for unit in (1, 2)],
            "PASS_TO_PASS": ["tests/test_calc.py::test_add"],
            "test_files": sorted(self.tests),
            "deleted": [
                {
                    "path": "tiny/calc.py",
                    "qualified_name": name,
                    "kind": kind,
                    "signature": None,
                    "start_line": 5,
                    "end_line": 16,
                    "lines": 12,
                }
                for name, kind in (("Ruler", "class"), ("Ruler.scale", "method"))
            ],
            "environment": {
                "language": "python",
                "runtime": f"python {VERSION}",
                "install": ["touch made-by-install", f"echo /workspace > {SITE}/tiny.pth"],
                "requirements": [],
                "build_command": "test -e made-by-install",
                "test_command": "/env/venv/bin/python -m pytest -q",
                "timeout_s": 60,
                "image": None,
            },
            "checks": {
                "n_runs": 3,
                "flaky": [],
                "null_fails": True,
                "stub_fails": True,
                "gold_passes": True,
                "tree_restored": True,
                "seconds": 1.5,
            },
            "audit": {"scanner_version": "1", "findings": {}, "thief_reward": 0.0},
            "difficulty": None,
            "created_at": "2025-01-01T00:00:00+00:00",
        }

    def write(self, root: Path) -> dict[str, Any]:
        folder = root / "tasks" / self.row["instance_id"]
        folder.mkdir(parents=True)
        contents = {
            "task.json": json.dumps(self.row).encode(),
            "instruction.md": self.row["problem_statement"].encode(),
            "workspace.tar.zst": packed(self.workspace),
            "gold.patch": self.gold.encode(),
            "tests.tar.zst": packed(self.tests),
            "deletion.patch": self.row["deletion_patch"].encode(),
        }
        for name, data in (contents | self.files).items():
            (folder / name).write_bytes(data)
        return self.row | self.table


def write_set(root: Path, *tasks: Tiny) -> Path:
    rows = [task.write(root) for task in tasks]
    for row in rows:  # parquet cannot hold a struct of no fields
        row["audit"] = {k: v for k, v in row["audit"].items() if v != {}}
    parquet.write_table(pyarrow.Table.from_pylist(rows), root / "tasks.parquet")
    (root / "rejected.jsonl").write_text(
        json.dumps(dict.fromkeys(("candidate", "stage", "reason", "detail"), "x")) + "\n"
    )
    (root / "build.json").write_text('{"seed": 0}')
    return root


# --- faults that the files alone show ---


def gold_of_tests(task: Tiny) -> None:
    task.gold = task.row["patch"] = diff(task.workspace, task.pristine)


def stale_gold(task: Tiny) -> None:
    task.gold = task.row["patch"] = task.gold.replace(" def add", " def plus")


def wrong_gold(task: Tiny) -> None:
    task.gold = task.row["patch"] = task.gold.replace("value * factor", "value + factor")


def other_test_patch(task: Tiny) -> None:
    task.row["test_patch"] = task.row["test_patch"].replace("2 * unit", "3 * unit")


def hidden_test_left(task: Tiny) -> None:
    task.workspace["tests/test_calc.py"] = task.pristine["tests/test_calc.py"].replace("[2 *", "[9 *")
    task.derive()


def code_left(task: Tiny) -> None:
    task.pristine["notes.py"] = task.workspace["notes.py"] = SCALE.replace("Ruler", "Copy")
    task.derive()


def definition_left(task: Tiny) -> None:
    task.workspace["tiny/calc.py"] = ADD + SCALE.replace('"""Measures."""', "x = 1")
    task.derive()


def parts(**values: object) -> Callable[[Tiny], None]:
    return lambda task: task.row.update(values)


def inner(name: str, **values: object) -> Callable[[Tiny], None]:
    return lambda task: task.row[name].update(values)


def file(name: str, data: bytes) -> Callable[[Tiny], None]:
    return lambda task: task.files.update({name: data})


def litter(name: str) -> Callable[[Tiny], None]:
    def change(task: Tiny) -> None:
        task.pristine[name] = task.workspace[name] = "x\n"
        task.derive()

    return change


def repacked(**how: int) -> Callable[[Tiny], None]:
    return lambda task: task.files.update({"workspace.tar.zst": packed(task.workspace, **how)})


FAULTS: list[tuple[str, Callable[[Tiny], None]]] = [
    ("problem_statement is not equal to instruction.md", file("instruction.md", b"other")),
    ("patch is not equal to gold.patch", parts(patch="x")),
    ("task.json and tasks.parquet differ in language", lambda task: task.table.update(language="go")),
    ("no field created_at", lambda task: task.row.pop("created_at")),
    ("unknown field extra", parts(extra=1)),
    ("schema_version is of type str, not int", parts(schema_version="1")),
    ("tasks.parquet.FAIL_TO_PASS[0] is of type int", lambda task: task.table.update(FAIL_TO_PASS=[1])),
    ("checks.n_runs is of type bool", inner("checks", n_runs=True)),
    ("schema_version is not 1 or 2", parts(schema_version=3)),
    ("instance_id is not", parts(recipe="other")),
    ("base_commit is malformed", parts(base_commit="main")),
    ("created_at is not", parts(created_at="2025-01-01T00:00:00+02:00")),
    ("FAIL_TO_PASS is empty", parts(FAIL_TO_PASS=[])),
    ("in both FAIL_TO_PASS and", parts(PASS_TO_PASS=["tests/test_calc.py::test_scale[1]"])),
    ("flaky, but in a test list", inner("checks", flaky=["tests/test_calc.py::test_add"])),
    ("audit.thief_reward is not 0", inner("audit", thief_reward=0.5)),
    ("checks.stub_fails is not true", inner("checks", stub_fails=False)),
    ("does not name what hidden tests use: Ruler", parts(problem_statement="Write `scale`.")),
    ("do not list the same files: tests/other.py", parts(test_files=["tests/other.py", "tests/test_calc.py"])),
    ("members are not in sorted order", repacked(backwards=1)),
    ("members have different times", repacked(mtime=5)),
    ("owner other than 0/0", repacked(owner=1000)),
    ("cannot be unpacked safely", file("workspace.tar.zst", packed({"../outside": "x"}))),
    ("cannot be unpacked safely", file("tests.tar.zst", b"no archive")),
    ("caches or build output: .git, .git/HEAD", litter(".git/HEAD")),
    ("caches or build output: tiny.egg-info", litter("tiny.egg-info/PKG-INFO")),
    ("caches or build output: tiny/__pycache__", litter("tiny/__pycache__/calc.pyc")),
    ("gold.patch touches test files: tests/test_calc.py", gold_of_tests),
    ("gold.patch does not apply", stale_gold),
    ("is not the pristine tree: tiny/calc.py", wrong_gold),
    ("test_patch and tests.tar.zst give different files: tests/test_calc.py", other_test_patch),
    ("FAIL_TO_PASS tests are in the workspace", hidden_test_left),
    ("deleted code (scale) can be read in workspace/notes.py", code_left),
    ("deleted Ruler.scale is still in the workspace", definition_left),
    ("deleted Ruler is not defined in the pristine", lambda t: t.row["deleted"][0].update(path="x.py")),
    ("unknown file notes.txt", file("notes.txt", b"")),
]


def run(root: Path, *flags: str) -> int:
    return int(checker.main([str(root), "--cache", str(root.parent / "cache"), *flags]))


def test_a_sound_set_passes_the_file_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write_set(tmp_path / "set", Tiny(1), Tiny(2)), "--no-tests") == 0
    assert capsys.readouterr().out == "2 tasks checked, 0 violations\n"


@pytest.mark.parametrize(("text", "fault"), FAULTS, ids=[text for text, _ in FAULTS])
def test_a_fault_in_the_files_is_found(
    text: str, fault: Callable[[Tiny], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = Tiny()
    fault(task)
    assert run(write_set(tmp_path / "set", task), "--no-tests") == 1
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "name", "content"),
    [
        ("tasks.parquet cannot be read", "tasks.parquet", "no table"),
        ("build.json", "build.json", "{"),
        ("rejected.jsonl: not an object with", "rejected.jsonl", '{"stage": "x"}\n'),
        ("no file deletion.patch", "tasks/other/gold.patch", ""),
        ("tasks.parquet has no such row", "tasks.parquet", "no table"),
    ],
)
def test_a_fault_of_the_set_is_found(
    text: str, name: str, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_set(tmp_path / "set", Tiny())
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text(content)
    assert run(root, "--no-tests") == 1
    assert text in capsys.readouterr().out


# --- faults that only runs show ---


@pytest.fixture
def quick_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual environments without pip, that get this interpreter's pytest."""
    original = checker.Machine.set_up

    def set_up(machine: Machine, line: str) -> None:
        venv = line.endswith("-m venv /env/venv")
        original(machine, line.replace("-m venv", "-m venv --without-pip") if venv else line)
        site = Path(pytest.__file__).parents[1]
        for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments") if venv else ():
            shutil.copytree(site / name, machine.root / SITE.lstrip("/") / name)
        if venv and (site / "py.py").exists():
            shutil.copy(site / "py.py", machine.root / SITE.lstrip("/"))

    monkeypatch.setattr(checker.Machine, "set_up", set_up)


def stub_passes(task: Tiny) -> None:
    task.pristine["tests/test_calc.py"] = TEST_ADD + TEST_SCALE.split("    assert")[0] + "    calc.Ruler\n"
    task.derive()


def passes_before(task: Tiny) -> None:
    task.pristine["tests/test_calc.py"] += "\n\ndef test_easy():\n    pass\n"
    task.derive()
    task.row["FAIL_TO_PASS"].append("tests/test_calc.py::test_easy")


def skipped(task: Tiny) -> None:
    task.pristine["tests/test_calc.py"] += "\n\n@pytest.mark.xfail\ndef test_odd():\n    assert 0\n"
    task.derive()
    task.row["PASS_TO_PASS"].append("tests/test_calc.py::test_odd")


def fails_alone(task: Tiny) -> None:
    task.pristine["tests/data.txt"] = "x"
    task.pristine["tests/test_calc.py"] = TEST_ADD.replace(
        "    assert", "    assert __import__('os').path.exists('tests/data.txt')\n    assert"
    )
    task.workspace["tests/test_calc.py"] = task.pristine["tests/test_calc.py"]
    task.pristine["tests/data.txt"] = "x\n"
    task.pristine["tests/test_calc.py"] += TEST_SCALE
    task.derive()


def build_fails(task: Tiny) -> None:
    task.row["environment"]["build_command"] = "exit 7"


RUN_FAULTS: list[tuple[str, Callable[[Tiny], None]]] = [
    ("a patch of stubs (return None) passes", stub_passes),
    ("workspace + tests: FAIL_TO_PASS passes: tests/test_calc.py::test_easy", passes_before),
    ("workspace + gold + tests: fails: tests/test_calc.py::test_odd", skipped),
    ("workspace alone: PASS_TO_PASS fails: tests/test_calc.py::test_add", fails_alone),
    ("workspace + tests: build_command fails: status 7", build_fails),
]


@pytest.mark.usefixtures("quick_setup")
def test_faults_in_runs_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [Tiny(number) for number in range(len(RUN_FAULTS) + 1)]
    for (_, fault), task in zip(RUN_FAULTS, tasks, strict=False):
        fault(task)
    assert run(write_set(tmp_path / "set", *tasks), "--no-bwrap", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["checked"] == len(tasks)
    for (text, _), task in zip(RUN_FAULTS, report["tasks"], strict=False):
        assert any(text in violation for violation in task["violations"]), task
    assert report["tasks"][-1]["violations"] == []
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 1


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not installed")
@pytest.mark.usefixtures("quick_setup")
def test_a_sound_set_passes_in_bwrap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = Tiny(1)
    for files in (task.pristine, task.workspace):
        files["tests/test_box.py"] = TEST_BOX
    task.derive()
    task.row["PASS_TO_PASS"].append("tests/test_box.py::test_box")
    assert run(write_set(tmp_path / "set", task), "--bwrap") == 0, capsys.readouterr().out
    assert capsys.readouterr().out == "1 tasks checked, 0 violations\n"


def test_a_failed_set_up_is_no_violation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = Tiny()
    task.row["environment"]["runtime"] = "python 1.0"
    assert run(write_set(tmp_path / "set", task), "--no-bwrap") == 2
    out = capsys.readouterr().out
    assert "could not check: no interpreter for 'python 1.0'" in out
    assert out.endswith("0 tasks checked, 0 violations\n")


def test_only_picks_one_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_set(tmp_path / "set", Tiny(1), Tiny(2))
    assert run(root, "--no-tests", "--only", Tiny(2).row["instance_id"]) == 0
    assert capsys.readouterr().out == "1 tasks checked, 0 violations\n"
    with pytest.raises(SystemExit):
        run(root, "--only", "absent")


# --- parts ---


def test_deleted_code_in_a_pinned_package_is_found(tmp_path: Path) -> None:
    task = Tiny()
    for name in ("tree/tiny/calc.py", "site/tiny/calc.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(ADD + SCALE)
    found = checker.check_leaks(task.row, tmp_path / "tree", (tmp_path / "site").rglob("*"))
    assert list(found) == ["deleted code (scale) can be read in tiny/calc.py"]


def test_a_command_over_its_limit_is_ended(tmp_path: Path) -> None:
    code, output = checker.execute(["sh", "-c", "echo begun; sleep 60"], {}, tmp_path, 0.3)
    assert (code, output) == (124, "begun")


def test_stubs_keep_the_source_whole() -> None:
    source = (
        "class A:\n    @property\n    def x(self): return 'é'\n\n    async def y(self):\n"
        "        @staticmethod\n        def z():\n            pass\n        yield 1\n\nB = 2\n"
    )
    module = checker.ast.parse(source)
    functions = list(checker.outer_functions(module))
    assert checker.stubbed(source.encode(), functions).decode() == (
        "class A:\n    @property\n    def x(self): return None\n\n    async def y(self):\n"
        "        return None\n\nB = 2\n"
    )


def test_a_report_that_was_cut_off_is_read(tmp_path: Path) -> None:
    lines = [
        {"id": "a", "when": "call", "outcome": "passed"},
        {"id": "b", "when": "call", "outcome": "passed"},
        {"id": "b", "when": "teardown", "outcome": "failed"},
        {"id": "c", "when": "call", "outcome": "skipped"},
    ]
    path = tmp_path / "report.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"id": "d", "wh')
    assert checker.read_report(path) == ({"a"}, {"a", "b", "c"})
