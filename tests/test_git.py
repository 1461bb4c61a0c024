from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repo_helpers import commit_all, make_repo, run_git, write

from taskgen import gitexec
from taskgen.errors import CommandError, FormatError, PrerequisiteError, SourceError, StoreError
from taskgen.git import (
    ImportEntry,
    PatchEntry,
    apply_patch,
    describe_tag,
    diff_directories,
    import_tree,
    list_tree,
    mirror,
    patch_bytes,
    patch_paths,
    read_blobs,
    read_tree,
    redacted,
    resolve,
)
from taskgen.tree import scan_directory

Files = dict[str, bytes | str]

# --- Environment ---------------------------------------------------------------------------------


def test_the_user_s_configuration_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.write_text("[user]\n\tname = somebody\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_SSL_CAINFO", "/ca.pem")
    monkeypatch.setenv("HOME", str(tmp_path))
    env = gitexec.environment()
    assert "GIT_DIR" not in env
    assert env["GIT_SSL_CAINFO"] == "/ca.pem"
    with pytest.raises(CommandError):
        gitexec.git(["config", "user.name"])
    monkeypatch.setenv("TASKGEN_GIT_CONFIG", str(config))
    assert gitexec.git(["config", "user.name"]) == b"somebody\n"


def test_no_git_and_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    monkeypatch.setattr(gitexec.process.subprocess, "Popen", _popen_with_path(str(bin_dir)))  # type: ignore[attr-defined]
    with pytest.raises(PrerequisiteError, match="git is not installed"):
        gitexec.git(["version"])
    with pytest.raises(PrerequisiteError, match="git is not installed"):
        list(read_blobs(tmp_path, ["0" * 40]))
    write(bin_dir, {"git": "#!/bin/sh\necho 'write error: No space left on device' >&2; exit 128\n"}, executable=True)
    with pytest.raises(StoreError, match=str(tmp_path / "x")):
        gitexec.git(["version"], bare=tmp_path / "x")


def _popen_with_path(path: str) -> object:
    original = subprocess.Popen

    def popen(argv: list[str], **options: object) -> object:
        program = Path(path) / argv[0]
        return original([str(program), *argv[1:]], **options)  # type: ignore[call-overload]

    return popen


# --- Mirror and resolve --------------------------------------------------------------------------


def test_mirror_takes_heads_and_tags_only(tmp_path: Path) -> None:
    upstream = tmp_path / "up"
    commit = make_repo(upstream, {"a.py": "1\n"})
    run_git("tag", "-a", "-m", "x", "v1.0", cwd=upstream)
    run_git("checkout", "-q", "-b", "pull", cwd=upstream)
    write(upstream, {"a.py": "from a pull request\n"})
    pull = commit_all(upstream, "pull")
    run_git("update-ref", "refs/pull/1/head", pull, cwd=upstream)
    run_git("checkout", "-q", "main", cwd=upstream)
    run_git("branch", "-q", "-D", "pull", cwd=upstream)
    bare = mirror(upstream.as_uri(), tmp_path / "cache" / "m.git", "main")
    refs = run_git("for-each-ref", "--format=%(refname)", cwd=bare).splitlines()
    assert refs == ["refs/heads/main", "refs/tags/v1.0"]
    assert resolve(bare, "v1.0") == resolve(bare, commit) == resolve(bare, "main") == commit
    with pytest.raises(CommandError):
        gitexec.git(["cat-file", "-e", pull], bare=bare)
    assert not list((tmp_path / "cache").glob(".m.git*"))


def test_mirror_is_refreshed_only_for_what_is_missing(tmp_path: Path) -> None:
    upstream, bare = tmp_path / "up", tmp_path / "m.git"
    first = make_repo(upstream, {"a.py": "1\n"})
    mirror(str(upstream), bare, "main")
    write(upstream, {"a.py": "2\n"})
    second = commit_all(upstream, "two")
    mirror(str(upstream), bare, "main")
    assert resolve(bare, "main") == first
    mirror(str(upstream), bare, second)
    assert resolve(bare, second) == second
    upstream.rename(tmp_path / "gone")
    mirror(str(upstream), bare, first)
    with pytest.raises(SourceError, match="cannot fetch"):
        mirror(str(upstream), bare, "v9")


def test_missing_revision(tmp_path: Path) -> None:
    make_repo(tmp_path / "up", {"a": "1"})
    bare = mirror(str(tmp_path / "up"), tmp_path / "m.git")
    with pytest.raises(SourceError, match="no revision 'v9'"):
        resolve(bare, "v9")
    with pytest.raises(SourceError, match="no commit"):
        mirror(str(tmp_path / "up"), bare, "1" * 40)
    for text in ("--all", "a..b", "main@{0}", "", ":/x", "a b"):
        with pytest.raises(SourceError, match="is not a commit, tag or branch"):
            resolve(bare, text)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/a/b.git", "ext::sh -c touch%20/tmp/taskgen-owned", "--upload-pack=x", "/no/such"]
)
def test_urls_that_cannot_be_fetched(tmp_path: Path, url: str) -> None:
    with pytest.raises(SourceError, match="cannot fetch"):
        mirror(url, tmp_path / "m.git")
    assert not (tmp_path / "m.git").exists()
    assert not Path("/tmp/taskgen-owned").exists()


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    assert redacted("https://me:secret@example.org/a") == "https://example.org/a"
    assert redacted("git@example.org:a/b") == "git@example.org:a/b"
    with pytest.raises(SourceError) as caught:
        mirror("http://me:secret@127.0.0.1:9/a.git", tmp_path / "m.git")
    assert "secret" not in str(caught.value)


def test_describe_tag(tmp_path: Path) -> None:
    commit = make_repo(tmp_path / "up", {"a": "1"})
    bare = mirror(str(tmp_path / "up"), tmp_path / "m.git")
    assert describe_tag(bare, commit) is None
    run_git("tag", "v2.1", cwd=bare)
    assert describe_tag(bare, commit) == "v2.1"


# --- Read and import -----------------------------------------------------------------------------


def test_read_tree_is_raw(tmp_path: Path) -> None:
    upstream = tmp_path / "up"
    commit = make_repo(
        upstream,
        {
            "a.bat": b"x\r\ny\n",
            'new\nline "q" \u00e9': b"2",
            "id": b"$Id$\n",
            "bin": b"\0\xff",
        },
    )
    write(upstream, {".gitattributes": "*.bat text eol=crlf\nid ident\nbin export-ignore\n"})
    write(upstream, {"run.sh": "x"}, executable=True)
    (upstream / "link").symlink_to("./a.bat")
    commit = commit_all(upstream, "two")
    bare = mirror(str(upstream), tmp_path / "m.git")
    found = {item.path: (item.mode, content) for item, content in read_tree(bare, commit)}
    assert found["id"] == ("100644", b"$Id$\n")
    assert found["bin"] == ("100644", b"\0\xff")
    assert found["run.sh"] == ("100755", b"x")
    assert found["link"] == ("120000", b"./a.bat")
    assert found['new\nline "q" \u00e9'] == ("100644", b"2")
    assert [i.path for i, _ in read_tree(bare, commit, lambda item: item.is_link)] == ["link"]


def test_read_blobs_large_and_missing(tmp_path: Path) -> None:
    big = b"x\n" * (25 << 20)
    bare = tmp_path / "b.git"
    commit = import_tree(bare, [ImportEntry(path="big", content=big)], label="x")
    ((_, content),) = read_tree(bare, commit)
    assert content == big
    with pytest.raises(SourceError, match="is missing"):
        list(read_blobs(bare, ["1" * 40]))
    with pytest.raises(CommandError, match="not a git repository"):
        list(read_blobs(tmp_path / "none", ["1" * 40]))


def test_import_has_one_hash_everywhere(tmp_path: Path) -> None:
    entries = [
        ImportEntry(path='b/"q"\n\\', content=b"1"),
        ImportEntry(path="a", content=b"2", mode="100755"),
        ImportEntry(path="l", content=b"a", mode="120000"),
        ImportEntry(path="latin-\udce9", content=b""),
        ImportEntry(path="a", content=b"3", mode="100755"),
    ]
    first = import_tree(tmp_path / "1.git", entries, label="x-1.tar.gz")
    second = import_tree(tmp_path / "2.git", [*entries[2:], *entries[:1]], label="x-1.tar.gz")
    assert first == second == "9488faa7c6805a58eecbd1af7fcbc64041dc6bab"
    assert import_tree(tmp_path / "3.git", entries, label="x-2.tar.gz") != first
    found = {item.path: item.mode for item in list_tree(tmp_path / "1.git", first)}
    assert found == {'b/"q"\n\\': "100644", "a": "100755", "l": "120000", "latin-\udce9": "100644"}


def test_import_that_git_refuses(tmp_path: Path) -> None:
    with pytest.raises(CommandError):
        import_tree(tmp_path / "1.git", [ImportEntry(path="a", content=b"", mode="777")], label="x")


# --- Patches -------------------------------------------------------------------------------------


def patched(tmp_path: Path, old: Files, new: Files) -> str:
    """The patch between two sets of files, having checked that git apply and apply_patch agree on it."""
    a, b = tmp_path / "one", tmp_path / "two"
    for root, files in ((a, old), (b, new)):
        root.mkdir(parents=True)
        write(root, files)
    patch = diff_directories(a, b)
    apply_patch(patch_bytes(patch), a)
    assert scan_directory(a) == scan_directory(b)
    return patch


CASES: dict[str, tuple[Files, Files]] = {
    "modify": ({"a": "1\n2\n3\n"}, {"a": "1\n3\n"}),
    "add and delete": ({"d/a": "1\n"}, {"e/b": "1\n"}),
    "no newline at the end": ({"a": "1\n2", "b": "1\n", "c": "1"}, {"a": "1\n2\n", "b": "1", "c": "2"}),
    "crlf": ({"a": "1\r\n2\r\n", "b": "1\n"}, {"a": "1\r\n3\n", "b": "1\r\n"}),
    "lone cr": ({"a": "1\r2\r3\n"}, {"a": "1\r2\r4\r"}),
    "empty files": ({"a": "", "b": "1"}, {"b": "", "c": ""}),
    "odd names": (
        {"sp ace": "1\n", " lead": "1\n", "b/ b": "1\n", 'q"uote': "1\n", "nl\nx": "1\n", "\u00e9\u4e2d": "1\n"},
        {"sp ace": "2\n", " lead": "2\n", "b/ b": "", 'q"uote': "2\n", "nl\nx": "2\n", "tab\t": "1\n", "x b/x": ""},
    ),
    "file to folder": ({"a": "1\n", "b/c": "1\n"}, {"a/x/y": "1\n", "b": "1\n"}),
    "attributes": (
        {".gitattributes": "* text eol=crlf\n*.u working-tree-encoding=UTF-16\n", "a": "1\r\n2\n", "u.u": "1\n"},
        {".gitattributes": "* text eol=crlf -diff filter=x\n", "a": "1\r\n3\n", "u.u": "2\n"},
    ),
    "looks like a patch": ({"a": "-- a\n++ b\n"}, {"a": "--- a/x\n+++ b/x\n@@ -1 +1 @@\ndiff --git a/x b/x\n\\ No\n"}),
    "bytes": ({"a": b"\0\1\n\xff"}, {"a": b"\0\2\n\xfe\n", "b": b"\x1a\0"}),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_patch_round_trip(tmp_path: Path, case: str) -> None:
    old, new = CASES[case]
    assert patched(tmp_path / "forth", old, new) != ""
    patched(tmp_path / "back", new, old)


def test_patch_is_fixed_and_git_applies_it(tmp_path: Path) -> None:
    old: Files = {"pkg/a.py": "def f():\n    return 1\n", "gone": "x\n", "same": "s\n"}
    new: Files = {"pkg/a.py": "def f():\n    return 2\n", "sp ace": "y", "same": "s\n"}
    patch = patched(tmp_path / "1", old, new)
    assert patch == patched(tmp_path / "elsewhere" / "2", old, new)
    assert patch.startswith("diff --git a/gone b/gone\ndeleted file mode 100644\nindex ")
    assert str(tmp_path) not in patch
    plain = tmp_path / "plain"
    write(plain, old)
    subprocess.run(["git", "apply", "-p1"], cwd=plain, input=patch_bytes(patch), check=True)
    assert scan_directory(plain) == scan_directory(tmp_path / "1" / "two")


def test_exec_bit(tmp_path: Path) -> None:
    write(tmp_path / "a", {"x": "1\n", "y": "1\n"})
    write(tmp_path / "b", {"x": "1\n", "y": "2\n"}, executable=True)
    patch = patch_bytes(diff_directories(tmp_path / "a", tmp_path / "b"))
    assert patch_paths(patch) == [PatchEntry(path="x", kind="mode"), PatchEntry(path="y", kind="modify")]
    apply_patch(patch, tmp_path / "a")
    assert scan_directory(tmp_path / "a") == scan_directory(tmp_path / "b")


lines = st.lists(st.sampled_from(["a\n", "b\n", "a\r\n", "\n", "\\ No\n", "@@ -1 +1 @@\n", "\r", "\x0c\n", "\u2028\n"]))
texts = st.builds(lambda parts, end: "".join(parts) + end, lines, st.sampled_from(["", "z", "\r"]))
trees = st.dictionaries(st.sampled_from(["a", "b c", "d/e", "d/f\u00e9", 'q"\n']), texts, max_size=4)


@given(trees, trees)
@settings(max_examples=25, deadline=None)
def test_any_text_round_trips(old: Files, new: Files) -> None:
    with tempfile.TemporaryDirectory() as folder:
        patch = patched(Path(folder), old, new)
    assert (patch == "") == (old == new)
    changed = {path for path in {*old, *new} if old.get(path) != new.get(path)}
    assert {entry.path for entry in patch_paths(patch_bytes(patch))} == changed


def header(path: str = "x", extra: str = "", other: str | None = None) -> str:
    return f"diff --git a/{path} b/{other or path}\n{extra}"


def new_file(path: str, mode: str = "100644") -> bytes:
    return (
        f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n".encode()
    )


HUNK = "@@ -1 +1 @@\n-1\n+2\n"
HOSTILE: dict[str, bytes] = {
    "parent": new_file("../x"),
    "parent inside": new_file("a/../../x"),
    "absolute": new_file("/etc/x"),
    "git folder": new_file(".git/hooks/pre-commit"),
    "git folder, other case": new_file("sub/.GiT/config"),
    "quoted parent": b'diff --git "a/\\056\\056/x" "b/\\056\\056/x"\nnew file mode 100644\n--- /dev/null\n'
    b'+++ "b/\\056\\056/x"\n@@ -0,0 +1 @@\n+x\n',
    "symlink": new_file("l", "120000"),
    "submodule": new_file("s", "160000"),
    "symlink made of a file": header("x", "old mode 100644\nnew mode 120000\n").encode(),
    "symlink changed": header("x", "index 1111111..2222222 120000\n--- a/x\n+++ b/x\n" + HUNK).encode(),
    "special mode": header("x", "old mode 100644\nnew mode 104755\n").encode(),
    "binary": header(
        "x", "new file mode 100644\nindex 0000000..1111111\nGIT binary patch\nliteral 1\nIcmZPo\n\n"
    ).encode(),
    "binary differs": header("x", "index 1111111..2222222 100644\nBinary files a/x and b/x differ\n").encode(),
    "two names": header("x", "--- a/x\n+++ b/y\n" + HUNK).encode(),
    "other name": header("x", "--- a/y\n+++ b/y\n" + HUNK).encode(),
    "traditional": b"--- a/x\n+++ b/x\n" + HUNK.encode(),
    "text before": b"hello\n" + new_file("x"),
    "text between": new_file("x") + b"hello\n" + new_file("y"),
    "hidden second file": new_file("x") + b"--- a/y\n+++ b/y\n" + HUNK.encode(),
    "wrong counts": header("x", "--- a/x\n+++ b/x\n@@ -1,3 +1 @@\n-1\n+2\n").encode(),
    "no prefix": b"diff --git x x\n--- x\n+++ x\n" + HUNK.encode(),
    "not a patch": b"please\n",
    "rename out": header("x", "similarity index 100%\nrename from x\nrename to ../y\n", "../y").encode(),
    "new and /dev/null at odds": header("x", "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n").encode(),
    "bad quoting": b'diff --git "a/x" "b/x"\n--- "a/\\9"\n+++ "b/x"\n' + HUNK.encode(),
}


@pytest.mark.parametrize("case", HOSTILE, ids=str)
def test_hostile_patches(tmp_path: Path, case: str) -> None:
    write(tmp_path / "in", {"x": "1\n", "y": "1\n"})
    before = scan_directory(tmp_path)
    with pytest.raises(FormatError, match="not an acceptable patch") as caught:
        patch_paths(HOSTILE[case])
    assert caught.value.hint
    with pytest.raises(FormatError):
        apply_patch(HOSTILE[case], tmp_path / "in")
    assert scan_directory(tmp_path) == before


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_patches(data: st.DataObject) -> None:
    good = bytearray(new_file("x") + header("y", "--- a/y\n+++ b/y\n" + HUNK).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.sampled_from(list(b'\n\t "\\/a.-+@01\0')))
    try:
        paths = patch_paths(bytes(good))
    except FormatError:
        return
    assert all(not entry.path.startswith("/") and ".." not in entry.path.split("/") for entry in paths)


def test_renames_and_copies_are_read(tmp_path: Path) -> None:
    repo = tmp_path / "r"
    make_repo(repo, {"a b.py": "1\n2\n3\n4\n5\n6\n", "c": "c\n" * 9})
    (repo / "a b.py").rename(repo / "\u00e9.py")
    write(repo, {"c2": "c\n" * 9, "c": "c\n" * 9 + "d\n"})
    run_git("add", "-A", cwd=repo)
    out = subprocess.run(["git", "diff", "--cached", "-M", "-C"], cwd=repo, capture_output=True, check=True).stdout
    assert b"rename from" in out
    assert b"copy from" in out
    assert sorted(patch_paths(out), key=lambda e: (e.path, e.kind)) == [
        PatchEntry(path="a b.py", kind="delete"),
        PatchEntry(path="c", kind="modify"),
        PatchEntry(path="c2", kind="add"),
        PatchEntry(path="\u00e9.py", kind="add"),
    ]
    plain = tmp_path / "plain"
    write(plain, {"a b.py": "1\n2\n3\n4\n5\n6\n", "c": "c\n" * 9})
    apply_patch(out, plain)
    assert sorted(scan_directory(plain)) == ["c", "c2", "\u00e9.py"]


def test_links_when_they_are_allowed(tmp_path: Path) -> None:
    write(tmp_path / "a", {"f": "1\n"})
    write(tmp_path / "b", {"f": "1\n"})
    (tmp_path / "b" / "l").symlink_to("./f")
    patch = patch_bytes(diff_directories(tmp_path / "a", tmp_path / "b"))
    back = patch_bytes(diff_directories(tmp_path / "b", tmp_path / "a"))
    assert patch_paths(patch, allow_links=True) == [PatchEntry(path="l", kind="add", is_symlink=True)]
    apply_patch(patch, tmp_path / "a", allow_links=True)
    assert os.readlink(tmp_path / "a" / "l") == "./f"  # noqa: PTH115
    apply_patch(back, tmp_path / "a", allow_links=True)
    assert sorted(scan_directory(tmp_path / "a")) == ["f"]


def test_a_patch_that_does_not_apply_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"y": "other\n", "d/z": "1\n"})
    (tmp_path / "out").symlink_to("/tmp")
    before = scan_directory(tmp_path)
    modify = header("y", "--- a/y\n+++ b/y\n" + HUNK).encode()
    for patch, message in [
        (new_file("x") + modify, "patch failed: y:1"),
        (new_file("x") + new_file("y"), "already exists"),
        (new_file("x") + new_file("d"), "'d' is a folder"),
        (new_file("x") + new_file("out/x"), "out is not a folder"),
        (new_file("x") + new_file("y/x"), "is not a folder"),
        (modify.replace(b"y", b"none"), "none"),
    ]:
        with pytest.raises(FormatError, match=message):
            apply_patch(patch, tmp_path)
        assert scan_directory(tmp_path) == before


def test_apply_inside_a_repository_leaves_it_alone(tmp_path: Path) -> None:
    commit = make_repo(tmp_path, {"w/a": "1\n"})
    apply_patch(header("a", "--- a/a\n+++ b/a\n" + HUNK).encode(), tmp_path / "w")
    assert (tmp_path / "w" / "a").read_text() == "2\n"
    assert run_git("rev-parse", "HEAD", cwd=tmp_path) == commit
    assert run_git("diff", "--cached", "--name-only", cwd=tmp_path) == ""


def test_diff_of_special_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "b" / "pipe")
    with pytest.raises(FormatError, match="neither a file"):
        diff_directories(tmp_path / "a", tmp_path / "b")
    assert patch_paths(b"") == []
