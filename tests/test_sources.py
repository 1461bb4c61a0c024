from __future__ import annotations

import errno
import functools
import hashlib
import http.server
import io
import json
import multiprocessing
import os
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from repo_helpers import commit_all, make_repo, run_git, write

from taskgen import atomic
from taskgen.errors import SourceError, StoreError
from taskgen.git import list_tree, read_tree
from taskgen.sources.table import fetch
from taskgen.tree import export_tree
from taskgen.types import Checkout, RepoSpec, SourceKind


def sdist(name: str, version: str, sha256: str | None = None) -> RepoSpec:
    return RepoSpec(
        name=f"pypi/{name}",
        kind=SourceKind.SDIST,
        location=name,
        revision=version,
        sha256=sha256,
        where="repos.yaml:2",
    )


def at_path(path: Path, revision: str = "") -> RepoSpec:
    return RepoSpec(
        name="local/x",
        kind=SourceKind.PATH,
        location=path.name,
        base=str(path.parent),
        revision=revision,
        where="repos.yaml:2",
    )


def at_git(url: str, revision: str) -> RepoSpec:
    return RepoSpec(name="o/n", kind=SourceKind.GIT, location=url, revision=revision, where="repos.yaml:2")


def contents(checkout: Checkout) -> dict[str, bytes]:
    return {item.path: content for item, content in read_tree(checkout.bare, checkout.commit)}


# --- An index on this machine --------------------------------------------------------------------


def tar_gz(files: dict[str, bytes], change: Callable[[tarfile.TarInfo], None] = lambda info: None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            change(info)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


GOOD = tar_gz({"pkg-1.0/PKG-INFO": b"Name: pkg\nLicense: MIT License\n", "pkg-1.0/pkg.py": b"x = 1\n"})


class Index:
    """A package index over HTTP: ``/simple/<name>/`` and ``/files/<file>``; counts its requests."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.digests: dict[str, str | None] = {}
        self.failures: list[int] = []
        self.requests: list[str] = []
        handler = functools.partial(_Handler, self)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def add(self, project: str, filename: str, content: bytes) -> str:
        self.files.setdefault(project, {})[filename] = content
        return hashlib.sha256(content).hexdigest()

    def page(self, project: str) -> bytes:
        files = []
        for filename, content in self.files[project].items():
            digest = self.digests.get(filename, hashlib.sha256(content).hexdigest())
            hashes = {} if digest is None else {"sha256": digest}
            files.append({"filename": filename, "url": f"/files/{project}/{filename}", "hashes": hashes})
        return json.dumps({"meta": {"api-version": "1.0"}, "name": project, "files": files}).encode()


class _Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, index: Index, *arguments: object) -> None:
        self.index = index
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.index.requests.append(self.path)
        if self.index.failures:
            self.send_error(self.index.failures.pop(0))
            return
        first, project, *rest = self.path.strip("/").split("/")
        if project not in self.index.files:
            self.send_error(404)
            return
        body = self.index.page(project) if first == "simple" else self.index.files[project][rest[0]]
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    made = Index()
    monkeypatch.setenv("PIP_INDEX_URL", made.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield made
    made.server.shutdown()
    made.server.server_close()


# --- sdist ---------------------------------------------------------------------------------------


def test_a_real_sdist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    first = fetch(sdist("inflection", "0.5.1"), tmp_path / "1")
    assert first.commit == "ab14f0cdde56a1f74da5989f02b19c25e71156d8"
    assert first.source.sha256 == "1a29730d366e996aaacffb2f1f1cb9593dc38e2ddd30c91250c6dde09ea9b417"
    assert first.source.url.endswith("/inflection-0.5.1.tar.gz")
    assert (first.version, first.licence, first.warnings) == ("0.5.1", "MIT", ())
    assert "inflection.py" in contents(first) or "inflection/__init__.py" in contents(first)
    tree = export_tree(first.bare, first.commit, tmp_path / "tree")
    assert "installed-copy" in tree.scrubbed


def test_a_cached_sdist_needs_no_network(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = index.add("pkg", "pkg-1.0.tar.gz", GOOD)
    first = fetch(sdist("pkg", "1.0"), tmp_path)
    assert contents(first).keys() == {"PKG-INFO", "pkg.py"}
    assert first.licence == "MIT License"
    asked = len(index.requests)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    assert fetch(sdist("pkg", "1.0"), tmp_path) == first
    assert fetch(sdist("pkg", "1.0", digest), tmp_path) == first
    assert len(index.requests) == asked
    with pytest.raises(SourceError, match=r"is that of pkg 1\.0, not of pkg 2\.0"):
        fetch(sdist("pkg", "2.0", digest), tmp_path)
    names = {p.name for p in (tmp_path / "sdists").iterdir()}
    assert names == {digest, f"{digest}.lock", "pkg-1.0.json"}


def test_a_damaged_cache_is_made_again(tmp_path: Path, index: Index) -> None:
    digest = index.add("pkg", "pkg-1.0.tar.gz", GOOD)
    first = fetch(sdist("pkg", "1.0"), tmp_path)
    for name in ("record.json", "repo.git/HEAD"):
        (tmp_path / "sdists" / digest / name).write_text("{")
        assert fetch(sdist("pkg", "1.0"), tmp_path) == first


def test_transient_faults_are_tried_again(tmp_path: Path, index: Index) -> None:
    index.add("pkg", "pkg-1.0.tar.gz", GOOD)
    index.failures = [503, 502]
    assert fetch(sdist("pkg", "1.0"), tmp_path).version == "1.0"
    assert len(index.requests) == 4


def test_checksum_mismatch(tmp_path: Path, index: Index) -> None:
    index.add("pkg", "pkg-1.0.tar.gz", GOOD)
    with pytest.raises(SourceError, match="checksum mismatch") as caught:
        fetch(sdist("pkg", "1.0", "0" * 64), tmp_path)
    assert "0" * 64 in str(caught.value)
    index.digests["pkg-1.0.tar.gz"] = "1" * 64
    with pytest.raises(SourceError, match="checksum mismatch"):
        fetch(sdist("pkg", "1.0"), tmp_path)
    index.digests["pkg-1.0.tar.gz"] = None
    with pytest.raises(SourceError, match="gives no sha256"):
        fetch(sdist("pkg", "1.0"), tmp_path)
    assert not [p for p in (tmp_path / "sdists").iterdir() if p.suffix != ".lock"]
    assert fetch(sdist("pkg", "1.0", hashlib.sha256(GOOD).hexdigest()), tmp_path).version == "1.0"


def test_what_the_index_does_not_have(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("0.8", "0.9", "1.0", "1.1"):
        index.add("pkg", f"pkg-{version}.tar.gz", GOOD)
    index.add("pkg", "pkg-2.0-py3-none-any.whl", b"")
    with pytest.raises(SourceError, match=r"version 1\.0\.5 of pkg does not exist") as caught:
        fetch(sdist("pkg", "1.0.5"), tmp_path)
    assert "versions with an sdist: 0.8, 0.9, 1.0, 1.1" in (caught.value.hint or "")
    with pytest.raises(SourceError, match="has no sdist, only built files"):
        fetch(sdist("pkg", "2.0"), tmp_path)
    with pytest.raises(SourceError, match="has no project 'other'"):
        fetch(sdist("other", "2.0"), tmp_path)
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:secret@127.0.0.1:9/simple/")
    with pytest.raises(SourceError, match="cannot read the package index http://127") as caught:
        fetch(sdist("pkg", "1.0"), tmp_path)
    assert "secret" not in str(caught.value)
    assert "PIP_INDEX_URL" in (caught.value.hint or "")


def set_type(value: bytes, target: str = "") -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname = value, target

    return change


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (tar_gz({"pkg-1/../../x": b""}), "unsafe path"),
        (tar_gz({"/pkg-1/x": b""}), "no single top folder"),
        (tar_gz({"../x": b""}), "no single top folder"),
        (tar_gz({"a/x": b"", "b/y": b""}), "no single top folder"),
        (tar_gz({"x": b""}), "no single top folder"),
        (tar_gz({}), "is empty"),
        (tar_gz({"p/x": b""}, set_type(tarfile.CHRTYPE)), "not a plain file"),
        (tar_gz({"p/x": b""}, set_type(tarfile.LNKTYPE, "p/none")), "is broken"),
        (GOOD[:-40], "is broken"),
        (b"no archive", "is broken"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
def test_hostile_sdists(tmp_path: Path, index: Index, data: bytes, message: str) -> None:
    index.add("pkg", "pkg-1.0.tar.gz", data)
    with pytest.raises(SourceError, match=message):
        fetch(sdist("pkg", "1.0"), tmp_path)
    assert not [p for p in (tmp_path / "sdists").iterdir() if p.suffix != ".lock"]


def test_links_modes_and_history_in_an_sdist(tmp_path: Path, index: Index) -> None:
    def change(info: tarfile.TarInfo) -> None:
        if info.name.endswith("link"):
            info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 0
        elif info.name.endswith("hard"):
            info.type, info.linkname, info.size = tarfile.LNKTYPE, "p/run", 0
        info.mode = 0o755 if info.name.endswith("run") else 0o600

    data = tar_gz({"p/run": b"1", "p/link": b"", "p/hard": b"", "p/.git/config": b"x"}, change)
    index.add("pkg", "pkg-1.0.tar.gz", data)
    found = fetch(sdist("pkg", "1.0"), tmp_path)
    modes = {item.path: item.mode for item in list_tree(found.bare, found.commit)}
    assert modes == {"run": "100755", "link": "120000", "hard": "100644"}
    assert contents(found)["hard"] == b"1"
    assert len(found.warnings) == 1
    assert ".git" in found.warnings[0]
    assert "'link': link to an absolute path" in export_tree(found.bare, found.commit, tmp_path / "t").skipped[0]


def test_zip_sdist_gives_the_same_tree(tmp_path: Path, index: Index) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as files:
        files.writestr("pkg-1.0/", b"")
        files.writestr("pkg-1.0/a.py", b"1\n")
        link = zipfile.ZipInfo("pkg-1.0/l")
        link.external_attr = 0o120777 << 16
        files.writestr(link, b"a.py")
    index.add("pkg", "pkg-1.0.zip", buffer.getvalue())
    found = fetch(sdist("pkg", "1.0"), tmp_path)
    assert contents(found) == {"a.py": b"1\n", "l": b"a.py"}
    assert found.source.url.endswith("pkg-1.0.zip")


def _fetch_in_child(spec: RepoSpec, cache: Path, commits: multiprocessing.Queue[str]) -> None:
    commits.put(fetch(spec, cache).commit)


def test_several_processes_fetch_once(tmp_path: Path, index: Index) -> None:
    index.add("pkg", "pkg-1.0.tar.gz", GOOD)
    context = multiprocessing.get_context("spawn")
    commits = context.Queue()
    children = [
        context.Process(target=_fetch_in_child, args=(sdist("pkg", "1.0"), tmp_path, commits)) for _ in range(3)
    ]
    for child in children:
        child.start()
    found = {commits.get(timeout=60) for _ in children}
    for child in children:
        child.join(30)
    assert len(found) == 1
    assert sum(path.startswith("/files/") for path in index.requests) == 1


def test_a_full_disk(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add("pkg", "pkg-1.0.tar.gz", GOOD)

    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic.tempfile, "mkdtemp", full)  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match=f"cannot write below {tmp_path}.*no space is left"):
        fetch(sdist("pkg", "1.0"), tmp_path)


def test_a_lock_that_is_held(tmp_path: Path) -> None:
    with (
        atomic.locked(tmp_path / "e"),
        pytest.raises(StoreError, match="locked by another process"),
        atomic.locked(tmp_path / "e", timeout_s=0.1),
    ):
        pass


# --- git -----------------------------------------------------------------------------------------


def test_git_source(tmp_path: Path) -> None:
    commit = make_repo(tmp_path / "up", {"a.py": "1\n", "LICENSE": "Apache License\n  Version 2.0\n"})
    run_git("tag", "release-1_2", cwd=tmp_path / "up")
    url = (tmp_path / "up").as_uri()
    found = fetch(at_git(url, commit), tmp_path / "c")
    assert (found.commit, found.version, found.licence) == (commit, "1.2", "Apache-2.0")
    assert found.warnings == ()
    assert found.source.revision == commit
    assert fetch(replace(at_git(url, "main"), licence="X"), tmp_path / "c").licence == "X"
    assert "may move" in fetch(at_git(url, "main"), tmp_path / "c").warnings[0]
    with pytest.raises(SourceError, match=r"repos\.yaml:2: o/n: there is no revision 'v7'"):
        fetch(at_git(url, "v7"), tmp_path / "c")
    with pytest.raises(SourceError, match=r"repos\.yaml:2: o/n: cannot fetch"):
        fetch(at_git("http://127.0.0.1:9/a/b", "v7"), tmp_path / "c")


# --- path ----------------------------------------------------------------------------------------


def test_path_to_a_repository(tmp_path: Path) -> None:
    folder = tmp_path / "up"
    first = make_repo(folder, {"a.py": "1\n"})
    run_git("tag", "v0.3", cwd=folder)
    cache = tmp_path / "c"
    found = fetch(at_path(folder), cache)
    assert (found.commit, found.version, found.warnings) == (first, "0.3", ())
    assert found.source.url == "up"
    write(folder, {"a.py": "2\n"})
    dirty = fetch(at_path(folder), cache)
    assert dirty.commit == first
    assert "not committed" in dirty.warnings[0]
    run_git("checkout", "-q", "--detach", cwd=folder)
    second = commit_all(folder, "two")
    assert fetch(at_path(folder), cache).commit == second
    assert fetch(at_path(folder, "v0.3"), cache).commit == first
    assert fetch(at_path(folder / ".git"), cache).commit == second
    with pytest.raises(SourceError, match="no revision 'nope'"):
        fetch(at_path(folder, "nope"), cache)


def test_nothing_that_a_folder_s_configuration_names_is_run(tmp_path: Path) -> None:
    folder, marker = tmp_path / "up", tmp_path / "ran"
    make_repo(folder, {"a.py": "1\n", ".gitattributes": "*.py filter=f\n"})
    for key in ("filter.f.clean", "core.fsmonitor", "uploadpack.packObjectsHook", "core.sshCommand"):
        run_git("config", key, f"touch {marker}; cat", cwd=folder)
    write(folder, {".git/hooks/post-checkout": f"#!/bin/sh\ntouch {marker}\n"}, executable=True)
    write(folder, {"a.py": "2\n"})
    assert "not committed" in fetch(at_path(folder), tmp_path / "c").warnings[0]
    assert not marker.exists()


def test_path_to_a_shallow_clone(tmp_path: Path) -> None:
    make_repo(tmp_path / "up", {"a": "1"})
    write(tmp_path / "up", {"a": "2"})
    commit = commit_all(tmp_path / "up", "two")
    run_git("clone", "-q", "--depth=1", (tmp_path / "up").as_uri(), "shallow", cwd=tmp_path)
    assert fetch(at_path(tmp_path / "shallow"), tmp_path / "c").commit == commit


def test_path_to_a_repository_without_a_commit(tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    run_git("init", "-q", cwd=tmp_path / "up")
    with pytest.raises(SourceError, match=r"repos\.yaml:2: local/x: cannot read"):
        fetch(at_path(tmp_path / "up"), tmp_path / "c")


def test_path_to_plain_files(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    write(folder, {"a.py": "1\n", "sp ace\n": "2", ".venv/x.py": "x", "a/__pycache__/b.pyc": "x"})
    write(folder, {"run": "x"}, executable=True)
    (folder / "l").symlink_to("./a.py")
    os.mkfifo(folder / "pipe")
    first = fetch(at_path(folder), tmp_path / "c")
    assert contents(first) == {"a.py": b"1\n", "sp ace\n": b"2", "run": b"x", "l": b"./a.py"}
    assert first.warnings == ("'pipe' is left out: neither a file nor a link",)
    assert first.version == "0"
    again = fetch(at_path(folder), tmp_path / "other")
    assert again.commit == first.commit
    assert fetch(at_path(folder), tmp_path / "c") == first
    write(folder, {"a.py": "2\n"})
    changed = fetch(at_path(folder), tmp_path / "c")
    assert changed.commit != first.commit
    assert contents(first)["a.py"] == b"1\n"


def test_path_mistakes(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not a folder"):
        fetch(at_path(tmp_path / "none"), tmp_path / "c")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="holds no file"):
        fetch(at_path(tmp_path / "empty"), tmp_path / "c")
    with pytest.raises(SourceError, match="is not a git repository and has no revision"):
        fetch(at_path(tmp_path / "empty", "v1"), tmp_path / "c")


@pytest.mark.parametrize(
    ("files", "licence"),
    [
        ({"PKG-INFO": "License-Expression: BSD-3-Clause\nLicense: x\n\nbody"}, "BSD-3-Clause"),
        ({"PKG-INFO": "License: UNKNOWN\n", "pyproject.toml": '[project]\nlicense = "ISC"\n'}, "ISC"),
        ({"pyproject.toml": "[project]\nlicense = {text = 'MIT'}\n"}, "MIT"),
        ({"pyproject.toml": "[broken", "COPYING": "GNU General Public License\nVersion 3"}, "GPL-3.0-only"),
        ({"LICENSE.txt": "Permission is hereby granted, free of\n charge ... The above copyright notice"}, "MIT"),
        ({"README": "MIT"}, ""),
    ],
)
def test_licences(tmp_path: Path, files: dict[str, bytes | str], licence: str) -> None:
    write(tmp_path / "f", files)
    assert fetch(at_path(tmp_path / "f"), tmp_path / "c").licence == licence
