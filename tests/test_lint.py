from __future__ import annotations

from pathlib import Path

import pytest

from taskgen import lint
from taskgen.errors import PrerequisiteError

CLEAN = b"import os\n\n\ndef f():\n    return os\n"


@pytest.mark.parametrize(
    ("edited", "rule"),
    [
        (b"def f():\n    return os\n", "F821"),
        (b"import os\n", "F401"),
        (CLEAN + b"\n\ndef f():\n    return 1\n", "F811"),
        (CLEAN + b"\n\n__all__ = ['g']\n", "F822"),
        (CLEAN + b"\nreturn 1\n", "F706"),
        (b"def f(:\n", "invalid-syntax"),
        (CLEAN + b"\n\ndef g():\n    x = 1\n", "F841"),
        (b"import os  # noqa\n", "F401"),
    ],
)
def test_new_faults_are_found(edited: bytes, rule: str) -> None:
    found = lint.new_findings({"a/m.py": CLEAN}, {"a/m.py": edited})
    assert any(line.startswith("a/m.py: ") and rule in line for line in found), found


def test_old_faults_are_no_news_wherever_they_moved() -> None:
    faulty = b"import sys\n\n\ndef f():\n    return undefined\n"
    assert lint.new_findings({"m.py": faulty}, {"m.py": b"\n\n\n" + faulty}) == []


def test_one_more_of_the_same_fault_is_news() -> None:
    once, twice = b"x = undefined\n", b"x = undefined\ny = undefined\n"
    assert len(lint.new_findings({"m.py": once}, {"m.py": twice})) == 1


def test_the_configuration_of_the_repository_is_not_read() -> None:
    files = {
        "m.py": b"import os\n",
        "ruff.toml": b"lint.ignore = ['F401']\n",
        "pyproject.toml": b"[tool.ruff]\nx = 1\n",
    }
    assert lint.findings(files)["m.py", "F401", "`os` imported but unused"] == 1


def test_thousands_of_findings_are_read_whole() -> None:
    assert lint.findings({"m.py": b"".join(b"x = undefined_%d\n" % n for n in range(9000))}).total() == 9000


def test_no_files() -> None:
    assert lint.new_findings({}, {}) == []


def test_a_missing_linter_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    with pytest.raises(PrerequisiteError, match="ruff is not installed"):
        lint.findings({"m.py": CLEAN})
