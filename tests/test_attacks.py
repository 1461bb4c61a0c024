"""The attack suite: complete, adapted to real tasks, and made of data alone."""

from __future__ import annotations

import ast
import io
import re
import sys
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskgen.archive import ArchiveEntry
from taskgen.attacks import adapt
from taskgen.attacks.attack import Attack, Item, Kind, Submission, Target
from taskgen.attacks.handin import final_tree
from taskgen.attacks.table import ATTACKS
from taskgen.sandboxes.select import select
from tests.build_helpers import AREAS, AREAS_TESTS, PYPROJECT

LISTED = range(1, 69)
MAX_BYTES = 1_200_000
SHAPES = '''\
"""Shapes."""

from __future__ import annotations

from functools import cached_property

__all__ = ["Square", "side_of"]


class Square:
    """A square."""

    kind = "square"

    def __init__(self, side: float) -> None:
        """Make it."""
        self.side = side

    @cached_property
    def area(self) -> float: return self.side ** 2

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Square):
            raise TypeError("not a square")
        return self.side == other.side


def side_of(square: Square, *, scale: float = 1.0) -> float: "Its side."; return square.side * scale


def untouched() -> int:
    return 1
'''


def entries(files: dict[str, str]) -> dict[str, ArchiveEntry]:
    return {path: ArchiveEntry(path=path, content=text.encode()) for path, text in files.items()}


def target_of(
    deleted: dict[tuple[str, str], str], files: dict[str, str], gold: dict[str, str], tests: dict[str, str]
) -> Target:
    """``deleted``: (path, qualified name) -> kind. Every test function of ``tests`` is to be fixed."""
    names = [(path, n) for path, text in tests.items() for n in re.findall(r"def (test\w*)", text)]
    row = {
        "instance_id": "local-demo__function-0123456789",
        "repo": "local/demo",
        "source": {"kind": "path", "url": "demo", "revision": "0", "sha256": ""},
        "language": "python",
        "FAIL_TO_PASS": [f"{path}::{name}" for path, name in names],
        "PASS_TO_PASS": [],
        "test_files": sorted(tests),
        "deleted": [
            {
                "path": path, "qualified_name": name, "kind": kind, "signature": "",
                "start_line": 1, "end_line": 3, "lines": 3,
            }
            for (path, name), kind in deleted.items()
        ],
        "environment": {
            "runtime": "python {}.{}".format(*sys.version_info),
            "requirements": ["pytest==9.2.0"],
            "test_command": "python -m pytest",
        },
    }  # fmt: skip
    return Target(
        row=row,
        workspace=entries(files),
        tests=entries(tests),
        gold={path: text.encode() for path, text in gold.items()},
    )


def demo() -> Target:
    """The project of the build's tests, with one function gone."""
    stub = AREAS.replace('    if width < 0 or height < 0:\n        raise ValueError("negative side")\n', "", 1)
    stub = stub.replace("    area = width * height\n    return area\n", "    raise NotImplementedError\n", 1)
    files = {"pyproject.toml": PYPROJECT, "shapes/__init__.py": "", "shapes/areas.py": stub}
    tests = {"tests/test_areas.py": AREAS_TESTS, "tests/data.txt": "1\n"}
    deleted = {("shapes/areas.py", "rectangle"): "function"}
    return target_of(deleted, files, {"shapes/areas.py": AREAS}, tests)


def class_demo() -> Target:
    """A package below src/, with a class and a function of it gone, and tests at the root."""
    files = {"setup.py": "from setuptools import setup\n\nsetup(name='demo')\n", "src/shapes/__init__.py": ""}
    tests = {
        "test_square.py": "from shapes.square import Square\n\n\ndef test_area():\n    assert Square(2).area == 4\n"
    }
    deleted = {("src/shapes/square.py", "Square"): "class", ("src/shapes/square.py", "side_of"): "function"}
    return target_of(deleted, files, {"src/shapes/square.py": SHAPES, "src/shapes/__init__.py": "import json\n"}, tests)


TARGETS = {"demo": demo(), "class": class_demo()}
EVERY = [pytest.param(a, name, id=f"{a.number}-{a.name}-{name}") for a in ATTACKS for name in TARGETS]


def submission(attack: Attack, name: str) -> Submission:
    found = attack.make(TARGETS[name])
    if found is None:
        pytest.skip("cannot be adapted to this target")
    return found


def python_files(found: Submission) -> Iterator[Item]:
    return (i for i in found.items if i.kind is Kind.FILE and i.path.endswith(".py"))


def test_all_listed_attacks_are_there_and_more() -> None:
    numbers = [attack.number for attack in ATTACKS]
    assert set(LISTED) <= set(numbers)
    assert len(numbers) == len(set(numbers)) >= 95
    assert numbers == sorted(numbers)


def test_names_are_unique_and_every_attack_says_why() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert all(re.fullmatch(r"[a-z0-9-]+", attack.name) for attack in ATTACKS)
    assert all(len(attack.why) > 20 and "\n" not in attack.why for attack in ATTACKS)


@pytest.mark.parametrize("name", TARGETS)
def test_nearly_all_adapt(name: str) -> None:
    missing = [attack.name for attack in ATTACKS if attack.make(TARGETS[name]) is None]
    assert len(missing) <= (0 if name == "demo" else 3), missing


@pytest.mark.parametrize(("attack", "name"), EVERY)
def test_what_is_handed_in_is_well_formed(attack: Attack, name: str) -> None:
    found = submission(attack, name)
    assert found.items or found.script
    assert sum(len(item.content) for item in found.items) < MAX_BYTES
    for item in python_files(found):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(item.content, item.path.replace("\0", "?"))
    for item in found.items:
        assert item.kind is Kind.FILE or not item.content
        assert item.target or item.kind not in (Kind.SYMLINK, Kind.HARDLINK, Kind.DEVICE, Kind.GITLINK)


@pytest.mark.parametrize(("attack", "name"), EVERY)
def test_the_same_target_gives_the_same_bytes(attack: Attack, name: str) -> None:
    assert attack.make(TARGETS[name]) == attack.make(TARGETS[name])


def test_bytecode_for_another_python_is_not_made() -> None:
    row = {**demo().row, "environment": {**demo().row["environment"], "runtime": "python 3.1"}}
    target = Target(row=row, workspace=demo().workspace, tests=demo().tests, gold=demo().gold)
    missing = {attack.number for attack in ATTACKS if attack.make(target) is None}
    assert missing == {51, 52, 53, 70, 74}


# --- Bodies --------------------------------------------------------------------------------------


def rewritten(target: Target, *body: str, prelude: str = "") -> dict[str, str]:
    return {item.path: item.content.decode() for item in adapt.with_bodies(target, body, prelude)}


def functions(text: str) -> dict[str, list[str]]:
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return {node.name: [ast.unparse(statement) for statement in node.body] for node in nodes}


def test_bodies_of_deleted_functions_are_replaced_and_no_others() -> None:
    text = rewritten(demo(), "x = 1", "return x")["shapes/areas.py"]
    found = functions(text)
    assert found["rectangle"][1:] == ["x = 1", "return x"]
    assert found["rectangle"][0].startswith("'Return the area of a rectangle") or '"""' in found["rectangle"][0]
    assert found["triangle"] == functions(AREAS)["triangle"]


def test_a_class_keeps_its_skeleton_and_imports_come_back() -> None:
    files = rewritten(class_demo(), f"return ({adapt.NAME}, locals())")
    text = files["src/shapes/square.py"]
    assert 'kind = "square"' in text
    assert "@cached_property" in text
    found = functions(text)
    assert found["area"] == ["return ('Square.area', locals())"]
    assert found["side_of"] == ["return ('side_of', locals())"]
    assert found["untouched"] == ["return 1"]
    assert files["src/shapes/__init__.py"] == "import json\n"


def test_init_returns_nothing() -> None:
    assert functions(rewritten(class_demo(), "return 5")["src/shapes/square.py"])["__init__"][1:] == ["5"]


def test_a_prelude_stands_behind_docstring_and_future_imports() -> None:
    text = rewritten(class_demo(), "pass", prelude="MARK = 1")["src/shapes/square.py"]
    tree = ast.parse(text)
    assert ast.get_docstring(tree) == "Shapes."
    assert [ast.unparse(node) for node in tree.body[1:4]] == [
        "from __future__ import annotations",
        "MARK = 1",
        "from functools import cached_property",
    ]


def test_a_prelude_of_a_file_without_statements() -> None:
    target = demo()
    empty = Target(row=target.row, workspace={}, tests={}, gold={"shapes/areas.py": b"# nothing\n"})
    assert rewritten(empty, "pass", prelude="MARK = 1")["shapes/areas.py"] == "# nothing\n\nMARK = 1\n\n"


def test_the_partial_answer_lacks_the_check() -> None:
    attack = next(a for a in ATTACKS if a.number == 48)
    (item,) = submission(attack, "demo").items
    assert "raise" not in "".join(functions(item.content.decode())["rectangle"])


def test_lookup_tables_hold_what_the_tests_compare_with() -> None:
    attack = next(a for a in ATTACKS if a.number == 44)
    text = submission(attack, "demo").items[0].content.decode()
    assert "('rectangle', 2, 3)" in text.replace('"', "")
    assert ": 6," in text


def test_a_script_of_any_length_runs(tmp_path: Path) -> None:
    long = "x" * 300_000
    submission = Submission(script=f"cat > big.txt <<'END'\n{long}\nEND\n")
    tree = final_tree({}, submission, lambda: select("bubblewrap", tmp_path).create())
    with tarfile.open(fileobj=io.BytesIO(tree)) as tar:
        member = next(member for member in tar if member.name.endswith("big.txt"))
        content = tar.extractfile(member)
        assert content is not None and content.read() == f"{long}\n".encode()
