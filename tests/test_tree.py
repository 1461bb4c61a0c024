from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from repo_helpers import make_repo, run_git, write

from taskgen import safepath, tree
from taskgen.archive import pack
from taskgen.errors import FormatError, StoreError
from taskgen.git import ImportEntry, import_tree
from taskgen.scrubrules import RULES, Scrubber
from taskgen.tree import Tree, export_tree, files_digest, scan_directory

# kind -> (paths that go, paths beside them that stay)
SCRUBBED: list[tuple[str, list[str], list[str]]] = [
    (
        "version-history",
        [".git/config", ".hg/store", "a/.svn/entries", ".bzr/x", ".jj/x", "_darcs/x", "CVS/Root", "sub/.git"],
        [".gitignore", ".gitattributes", ".github/workflows/ci.yml", "git/x", "CVS.py"],
    ),
    ("version-history", [".gitmodules", ".git-blame-ignore-revs", ".git_archival.txt", ".hgtags"], [".gitkeep"]),
    ("version-history", ["fixtures/r.git/HEAD", "fixtures/r.git/objects/00/11"], ["fixtures/notbare.git/x"]),
    ("version-history", [".pc/applied-patches", ".pc/p/a.py"], ["pc/applied-patches"]),
    ("bytecode", ["a/__pycache__/a.txt", "a/b.pyc", "a/c.pyo"], ["a/b.py", "a/pycache/x"]),
    (
        "cache",
        [
            ".mypy_cache/x",
            ".pytest_cache/x",
            ".ruff_cache/x",
            ".hypothesis/x",
            ".pytype/x",
            ".tox/py/x",
            "s/.nox/x",
            ".eggs/x.py",
            "n/.ipynb_checkpoints/a.ipynb",
        ],
        ["mypy_cache/x", "hypothesis/x"],
    ),
    ("virtual-environment", [".venv/bin/python"], ["venv/x.py"]),
    ("virtual-environment", ["env/pyvenv.cfg", "env/lib/python3/a.py"], ["environment/a.py"]),
    (
        "installed-copy",
        [
            "node_modules/a/b.js",
            "w/site-packages/a.py",
            "w/dist-packages/a.py",
            "src/a.egg-info/PKG-INFO",
            "a-1.dist-info/METADATA",
            "a.egg/x",
            "b.egg",
            "old.egg-info",
            "wheels/a-1-py3-none-any.whl",
        ],
        ["PKG-INFO", "egg_info.py", "eggs/x"],
    ),
    ("build-output", ["build/lib/a/b.py", "build/lib.linux/a.so"], ["builder/lib/a.py"]),
    ("build-output", ["x/build/bdist.linux/a.py", "x/build/other.py"], ["x/b.py"]),
    ("build-output", ["build/temp.linux/a.txt"], []),
    ("", [], ["build/lib/a.py", "build/__init__.py", "other/build/script.sh"]),
    ("build-output", ["dist/a-1.tar.gz", "dist/x.txt"], ["distance/a.tar.gz"]),
    ("", [], ["dist/a.js", "pkg/dist/a.tar.gz", "pkg/dist/__init__.py"]),
    ("build-output", ["docs/_build/a.html", "x/doc/_build/a"], ["_build/a", "docs/build/a"]),
    ("compiled", ["a/_speed.so", "a/_speed.pyd", "a/m.o"], ["a/_speed.c", "tests/data/x.so", "tests/data/y.elf"]),
    (
        "test-report",
        ["htmlcov/a.html", ".coverage", ".coverage.host.1", "coverage.xml", "lcov.info", "r/junit.xml"],
        [".coveragerc", "coverage.py"],
    ),
    ("index", ["tags", "TAGS"], ["src/tags", "a/TAGS", "tags.py"]),
    (
        "editor-leftover",
        [".idea/x", ".vscode/s.json", "a.py.orig", "a.rej", "a.py~", ".a.swp", ".b.swo", "d/.DS_Store"],
        ["a.original", "~a"],
    ),
]


@pytest.mark.parametrize(("kind", "gone", "kept"), SCRUBBED)
def test_rules(kind: str, gone: list[str], kept: list[str]) -> None:
    scrubber = Scrubber([*gone, *kept])
    found = {path: rule.kind if (rule := scrubber.rule_for(path)) else "" for path in [*gone, *kept]}
    assert found == dict.fromkeys(gone, kind) | dict.fromkeys(kept, "")


def test_every_pattern_is_tested() -> None:
    paths = [path for _, gone, _ in SCRUBBED for path in gone]
    for rule in RULES:
        for pattern in (*rule.folders, *rule.files):
            name = pattern.rpartition("/")[2].replace("*", "")
            assert any(name in path for path in paths), pattern


def test_export(tmp_path: Path) -> None:
    upstream = tmp_path / "up"
    make_repo(
        upstream,
        {"b.py": "2\r\n", "a/sp ace\n\u00e9": b"\0", "a/x.pyc": "x", "junit.xml": "x"},
    )
    write(upstream, {".gitattributes": "*.py text eol=lf\n"})
    write(upstream, {"run": "#!/bin/sh\n"}, executable=True)
    (upstream / "in").symlink_to("./a")
    (upstream / "a" / "up").symlink_to("../b.py")
    (upstream / "abs").symlink_to("/etc/passwd")
    (upstream / "a" / "out").symlink_to("../../x")
    (upstream / "tricky").symlink_to("in/../../x")
    # Not b.py: git would read it again, by the new attributes.
    run_git("add", "-f", ".gitattributes", "run", "in", "a/up", "abs", "a/out", "tricky", cwd=upstream)
    run_git("commit", "-q", "-m", "two", cwd=upstream)
    commit = run_git("rev-parse", "HEAD", cwd=upstream)
    into = tmp_path / "cache" / "t"
    found = export_tree(upstream / ".git", commit, into)
    assert list(found.files) == [".gitattributes", "a/sp ace\n\u00e9", "a/up", "b.py", "in", "run"]
    assert found.root == into / "tree"
    assert scan_directory(found.root) == found.files
    assert found.files["in"].link_target == "./a"
    assert found.files["run"].executable
    assert (found.root / "b.py").read_bytes() == b"2\r\n"
    assert (found.root / "b.py").stat().st_mode & 0o777 == 0o644
    assert (found.root / "run").stat().st_mode & 0o777 == 0o755
    assert dict(found.scrubbed) == {"bytecode": 1, "test-report": 1}
    assert sorted(message.partition(":")[0] for message in found.skipped) == ["'a/out'", "'abs'", "'tricky'"]
    assert found.digest == files_digest(found.files)
    assert pack(found.root) == pack(found.root)
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == ["t", "t.lock"]


def small(tmp_path: Path, entries: list[ImportEntry]) -> Tree:
    bare = tmp_path / "r.git"
    commit = import_tree(bare, entries, label="x")
    return export_tree(bare, commit, tmp_path / "out")


def test_what_cannot_be_carried_is_skipped_with_a_message(tmp_path: Path) -> None:
    found = small(
        tmp_path,
        [
            ImportEntry(path="ok", content=b""),
            ImportEntry(path="latin-\udce9", content=b""),
            ImportEntry(path="README", content=b"1"),
            ImportEntry(path="readme", content=b"2"),
            ImportEntry(path="DIR", content=b"2"),
            ImportEntry(path="dir/x", content=b"2"),
            ImportEntry(path="big", content=bytes(tree.MAX_FILE_BYTES + 1)),
            ImportEntry(path="n" * 256, content=b""),
            ImportEntry(path="link", content=b"\xff", mode="120000"),
        ],
    )
    assert list(found.files) == ["DIR", "README", "ok"]
    messages = "\n".join(found.skipped)
    for part in (
        "'latin-\\udce9': name is not UTF-8",
        "'readme': differs from 'README' by case alone",
        "'dir/x': differs from 'DIR' by case alone",
        "'big': 33554433 bytes",
        "longer than 255 bytes",
        "'link': link target is not UTF-8",
    ):
        assert part in messages
    assert len(found.skipped) == 6


def test_submodules_are_skipped(tmp_path: Path) -> None:
    commit = make_repo(tmp_path / "up", {"a": "1"})
    run_git("update-index", "--add", "--cacheinfo", f"160000,{commit},vendor/lib", cwd=tmp_path / "up")
    run_git("commit", "-q", "-m", "sub", cwd=tmp_path / "up")
    found = export_tree(tmp_path / "up" / ".git", "main", tmp_path / "out")
    assert list(found.files) == ["a"]
    assert found.skipped == ("'vendor/lib': submodule",)


def test_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    def digest(name: str, **change: object) -> str:
        entry: dict[str, object] = {"path": "a", "content": b"1", "mode": "100644"} | change
        (tmp_path / name).mkdir()
        return small(tmp_path / name, [ImportEntry(**entry)]).digest  # type: ignore[arg-type]

    digests = [
        digest("1"),
        digest("2", path="b"),
        digest("3", content=b"2"),
        digest("4", mode="100755"),
        digest("5", mode="120000"),
    ]
    assert len(set(digests)) == 5
    assert digest("6") == digests[0]


def test_an_intact_export_is_used_again_and_a_damaged_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "r.git"
    commit = import_tree(bare, [ImportEntry(path="a", content=b"1")], label="x")
    out = tmp_path / "out"
    first = export_tree(bare, commit, out)
    manifest = out / "manifest.json"
    with monkeypatch.context() as patch:
        patch.setattr(tree, "list_tree", None)
        assert export_tree(bare, commit, out) == first
    for damage in (
        lambda: (out / "tree" / "a").write_bytes(b"2"),
        lambda: (out / "tree" / "new").write_bytes(b"2"),
        lambda: (out / "tree" / "a").chmod(0o755),
        lambda: manifest.write_text("{"),
        lambda: manifest.write_text(json.dumps({"format": 1})),
        manifest.unlink,
    ):
        damage()
        assert export_tree(bare, commit, out) == first
        assert scan_directory(out / "tree") == first.files
    second = import_tree(bare, [ImportEntry(path="a", content=b"other")], label="x")
    assert export_tree(bare, second, out).digest != first.digest


def test_a_full_disk_names_the_folder_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(safepath, "write_file", full)
    with pytest.raises(StoreError, match="no space is left") as caught:
        small(tmp_path, [ImportEntry(path="a", content=b"1")])
    assert str(tmp_path) in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.lock", "r.git"]


@pytest.mark.parametrize(
    "path",
    ["", "/a", "a/../b", "./a", "a//b", "a/", ".git/x", "a/.GIT", "git~1/x", "a\0b", "x" * 256, "a/" * 1500 + "a"],
)
def test_unsafe_paths(path: str) -> None:
    assert safepath.path_problem(path)


@pytest.mark.parametrize("path", ["a", "a b", ".gitignore", "a\nb", "...", "a..b/c", "\u00e9", "-x", "git"])
def test_safe_paths(path: str) -> None:
    assert safepath.path_problem(path) is None


@pytest.mark.parametrize(
    ("path", "target", "safe"),
    [
        ("l", "a", True),
        ("d/l", "../a", True),
        ("d/l", "..", True),
        ("d/l", "./../a", True),
        ("l", "..", False),
        ("d/l", "../../a", False),
        ("l", "/a", False),
        ("l", "", False),
        ("l", "d/../a", False),
        ("l", ".git/config", False),
        ("l", "a\0", False),
    ],
)
def test_links(path: str, target: str, safe: bool) -> None:
    assert (safepath.link_problem(path, target) is None) == safe


def test_writing_through_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "l").symlink_to(tmp_path)
    with pytest.raises(FormatError, match="not a folder"):
        safepath.write_file(tmp_path / "root", "l/x", b"", executable=False)
    with pytest.raises(FormatError, match="twice"):
        safepath.write_link(tmp_path / "root", "l", "x")
    with pytest.raises(FormatError, match="cannot replace"):
        safepath.write_file(tmp_path, "root", b"", executable=False, overwrite=True)
    with pytest.raises(FormatError, match="out of the tree"):
        safepath.write_link(tmp_path / "root", "m", "..")
