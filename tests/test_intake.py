"""What is taken of a model's work: allowed source text, from a patch or a tree; everything else is refused, by name."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from taskgen.archive import ArchiveEntry
from taskgen.errors import FormatError
from taskgen.grading import intake
from taskgen.grading.intake import DoesNotApply, Rules, from_patch, from_tree
from taskgen.languages import python

WORKSPACE = {
    path: ArchiveEntry(path=path, content=content)
    for path, content in {
        "pyproject.toml": b"[project]\n",
        "README.md": b"Read me.\n",
        "pkg/__init__.py": b"",
        "pkg/areas.py": b"def area():\n    raise NotImplementedError\n",
        "pkg/data.json": b"{}\n",
        "pkg/sub/__init__.py": b"",
        "tests/test_areas.py": b"def test(): ...\n",
        "single.py": b"x = 1\n",
    }.items()
}
RULES = Rules(
    roots=frozenset({"pkg", "single.py", "gone.py"}), suffixes=python.suffixes,
    is_test=python.is_test_file, workspace=WORKSPACE,
)  # fmt: skip


def new_file(path: str, text: str = "x = 1", mode: str = "100644") -> str:
    return f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{text}\n"


SOLUTION = """\
diff --git a/pkg/areas.py b/pkg/areas.py
--- a/pkg/areas.py
+++ b/pkg/areas.py
@@ -1,2 +1,2 @@
 def area():
-    raise NotImplementedError
+    return 1
"""


def taken(patch: str) -> dict[str, bytes | None]:
    found = from_patch(patch.encode(), RULES).changes
    return {path: None if entry is None else entry.content for path, entry in found.items()}


def refused(patch: str | bytes) -> dict[str, str]:
    data = patch.encode() if isinstance(patch, str) else patch
    return {item.path: item.reason for item in from_patch(data, RULES).refused}


def test_source_of_the_packages_is_taken() -> None:
    patch = SOLUTION + new_file("pkg/sub/more.py") + new_file("gone.py") + new_file("pkg/types.pyi")
    assert taken(patch) == {
        "pkg/areas.py": b"def area():\n    return 1\n", "pkg/sub/more.py": b"x = 1\n", "gone.py": b"x = 1\n",
        "pkg/types.pyi": b"x = 1\n",
    }  # fmt: skip
    assert refused(patch) == {}


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("tests/test_areas.py", "test file"),
        ("tests/data/x.py", "test file"),
        ("pkg/test_more.py", "test file"),
        ("conftest.py", "test file"),
        ("pkg/conftest.py", "test file"),
        ("sitecustomize.py", "loads by itself"),
        ("pkg/usercustomize.py", "loads by itself"),
        ("setup.py", "outside"),
        ("noxfile.py", "outside"),
        ("pkg/x.pth", "loads by itself"),
        ("evil.dist-info/entry_points.txt", "loads by itself"),
        ("pkg.egg-info/entry_points.txt", "loads by itself"),
        ("pkg/__pycache__/areas.cpython-311.pyc", "loads by itself"),
        ("pytest.ini", "configuration"),
        ("pkg/pytest.toml", "configuration"),
        ("tox.ini", "configuration"),
        ("setup.cfg", "configuration"),
        ("pyproject.toml", "configuration"),
        (".pytest.ini", "configuration"),
        (".github/x.py", "hidden"),
        ("pkg/.hidden.py", "hidden"),
        ("json.py", "outside"),
        ("pluggy/__init__.py", "outside"),
        ("docs/conf.py", "outside"),
        ("pkg/areas.pyc", "not a source file"),
        ("pkg/areas.so", "not a source file"),
        ("pkg/notes.txt", "not a source file"),
        ("pkg/Areas.py", "upper and lower case"),
        ("pkg/sub.py", "take the place"),
        ("pkg/areas/__init__.py", "take the place"),
        ("pkg/are\u202eas.py", "unusual"),
        ("pkg/\uff41reas.py", "unusual"),
        ("../evil.py", "'..'"),
        ("pkg/../../evil.py", "'..'"),
        (".git/hooks/x.py", ".git"),
        ("pkg/.GIT/config", ".git"),
    ],
)
def test_what_steers_or_shadows_is_refused_and_the_rest_is_taken(path: str, reason: str) -> None:
    patch = SOLUTION + new_file(path)
    assert reason in refused(patch)[path]
    assert list(taken(patch)) == ["pkg/areas.py"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x = '\0'\n", "binary"),
        (b"x = '\xff'\n", "not UTF-8"),
        (b"# -*- coding: utf-7 -*-\n", "encoding utf-7"),
        (b"# coding: rot13\n", "encoding"),
        (b"# coding: nonsense\n", "encoding"),
        (b"x" * (1 << 20) + b"\n", "larger"),
    ],
)
def test_what_is_no_plain_text_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    write(tmp_path, {"pkg/areas.py": content})
    (item,) = from_tree(tmp_path, RULES).refused
    assert (item.path, reason in item.reason) == ("pkg/areas.py", True)


def test_links_binaries_and_renames_of_tests_are_refused() -> None:
    link = new_file("pkg/link.py", "/etc/passwd", "120000").replace(
        "+/etc/passwd\n", "+/etc/passwd\n\\ No newline at end of file\n"
    )
    binary = (
        "diff --git a/pkg/b.py b/pkg/b.py\nnew file mode 100644\nindex " + "0" * 40 + ".." + "1" * 40
        + "\nGIT binary patch\nliteral 3\nKcmZQzWMT#Y01f~L\n\nliteral 0\nHcmV?d00001\n\n"
    )  # fmt: skip
    move = "diff --git a/tests/test_areas.py b/pkg/moved.py\nsimilarity index 100%\n"
    move += "rename from tests/test_areas.py\nrename to pkg/moved.py\n"
    assert refused(link)["pkg/link.py"] == "a symbolic link"
    assert refused(binary)["pkg/b.py"] == "a binary file"
    assert "test file" in refused(move)["tests/test_areas.py"]
    assert taken(link + binary + move + SOLUTION) == {"pkg/areas.py": b"def area():\n    return 1\n"}


@pytest.mark.parametrize("patch", ["Here you are:\n", "--- a/x\n+++ b/x\n", SOLUTION + "trailing words\n"])
def test_what_is_no_patch_is_an_error(patch: str) -> None:
    with pytest.raises(FormatError, match="not an acceptable patch"):
        from_patch(patch.encode(), RULES)


def test_a_patch_that_does_not_fit_is_said_to_be_one() -> None:
    with pytest.raises(DoesNotApply):
        from_patch(SOLUTION.replace("raise Not", "raise Other").encode(), RULES)


def write(root: Path, changed: dict[str, bytes | None]) -> None:
    files = {path: entry.content for path, entry in WORKSPACE.items()} | changed
    for path, content in files.items():
        if content is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)


def test_a_tree_is_read_without_following_or_entering_anything(tmp_path: Path) -> None:
    root, secret = tmp_path / "tree", tmp_path / "secret.py"
    secret.write_text("TOP = 'secret'\n")
    write(
        root,
        {
            "pkg/areas.py": b"def area():\n    return 1\n",
            "single.py": None,
            "README.md": None,
            ".git/config": b"[core]\n\tfsmonitor = touch /tmp/pwned\n",
        },
    )
    (root / "pkg/link.py").symlink_to(secret)
    (root / "pkg/dir").symlink_to(tmp_path)
    os.link(secret, root / "pkg/hard.py")
    os.mkfifo(root / "pkg/pipe.py")
    found = from_tree(root, RULES)
    assert {p: e and e.content for p, e in found.changes.items()} == {
        "pkg/areas.py": b"def area():\n    return 1\n",
        "single.py": None,
    }
    assert {item.path: item.reason for item in found.refused} == {
        "pkg/link.py": "a symbolic link", "pkg/dir": "a symbolic link", "pkg/hard.py": "a hard link",
        "pkg/pipe.py": "neither a file nor a folder", "README.md": "deleted; outside of the project's packages",
    }  # fmt: skip


def test_a_hostile_archive_is_read_as_data(tmp_path: Path) -> None:
    file = tmp_path / "tree.tar"
    with tarfile.open(file, "w") as tar:
        for path, entry in WORKSPACE.items():
            info = tarfile.TarInfo(f"./{path}")
            info.size = len(entry.content)
            tar.addfile(info, io.BytesIO(entry.content))
        for name, kind, target in (
            ("pkg/hard.py", tarfile.LNKTYPE, "/etc/shadow"), ("pkg/dev.py", tarfile.CHRTYPE, ""),
            ("../../out.py", tarfile.REGTYPE, ""), ("/abs.py", tarfile.REGTYPE, ""),
            ("pkg/l.py", tarfile.SYMTYPE, "/etc"), (".git/config", tarfile.REGTYPE, ""),
        ):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    found = from_tree(file, RULES)
    assert found.changes == {}
    assert {i.path for i in found.refused} == {"pkg/hard.py", "pkg/dev.py", "../../out.py", "/abs.py", "pkg/l.py"}
    (tmp_path / "broken.tar").write_bytes(file.read_bytes()[:700])
    for place in (tmp_path / "broken.tar", tmp_path / "nothing"):
        with pytest.raises(FormatError):
            from_tree(place, RULES)


def test_a_flood_of_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_FILES", 3)
    write(tmp_path, {f"pkg/m{i}.py": b"x = 1\n" for i in range(4)})
    with pytest.raises(FormatError, match="more than 3 files"):
        from_tree(tmp_path, RULES)
    with pytest.raises(FormatError, match="more than 3 files"):
        from_patch("".join(new_file(f"pkg/m{i}.py") for i in range(4)).encode(), RULES)
