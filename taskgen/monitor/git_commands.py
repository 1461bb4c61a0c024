"""What rules say of a git command."""

from __future__ import annotations

import re
from collections.abc import Sequence

from taskgen.monitor import edits, network, tables
from taskgen.monitor.machine import UNKNOWN, Machine
from taskgen.monitor.tables import Access

_GLOBAL_WITH_VALUE = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--super-prefix"})
#: HEAD, HEAD~2, HEAD^, @~1, with what follows the colon left out: how far back it goes is group 2 and 3.
_HEAD = re.compile(r"^(?:HEAD|@)((?:~\d*|\^\d*)*)$")
_OTHER = re.compile(
    r"^(?:[0-9a-f]{7,40}|(?:refs/|origin/|upstream/|remotes/|tags/).*|(?:ORIG|FETCH|MERGE)_HEAD|stash|.*@\{.*\}"
    r"|[\w./-]+[~^][~^\d]*|v?\d+\.\d+(?:\.\d+)*)$"
)


def run_git(machine: Machine, argv: Sequence[str], stdin: str | None = None) -> None:
    """Follow ``git`` with these words behind it."""
    words, folder = _globals(machine, argv)
    if not words:
        return
    outer = machine.cwd
    if folder is not None:
        machine.cwd = machine.resolve(folder)
    try:
        _subcommand(machine, words[0], words[1:], stdin)
    finally:
        machine.cwd = outer


def _globals(machine: Machine, argv: Sequence[str]) -> tuple[list[str], str | None]:
    """The sub-command and its words, aliases of ``-c`` resolved; and the folder of ``-C``."""
    words, folder = list(argv), None
    aliases: dict[str, str] = {}
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option not in _GLOBAL_WITH_VALUE or not words:
            continue
        value = words.pop(0)
        if option == "-C":
            folder = value
        elif option == "-c" and value.startswith("alias."):
            name, _, text = value.removeprefix("alias.").partition("=")
            aliases[name] = text
    if words and (alias := aliases.get(words[0])):
        if alias.startswith("!"):
            machine.run_shell(machine, alias[1:])
            return [], folder
        words = alias.split() + words[1:]
    return words, folder


def _subcommand(machine: Machine, name: str, words: list[str], stdin: str | None) -> None:
    reads = f"git {name} {' '.join(words)}"[:120].strip()
    if name == "commit":
        machine.commits += 1
    elif name == "stash":
        _stash(machine, words, reads)
    elif name == "rm":
        for path in _paths(words):
            edits.remove(machine, path)
    elif name == "apply" or name == "am":
        texts = [machine.read(path) for path in _paths(words)] or [stdin]
        for text in texts:
            if text is not None:
                edits.apply_patch(machine, text)
    elif name == "config":
        if any(tables.GIT_PROGRAM_KEYS.search(word) for word in words[:4]) and "--get" not in words:
            machine.hit("start-files", reads, "git")
    elif name in tables.GIT_NETWORK or (name == "remote" and "add" in words):
        _network(machine, name, words, reads)
    elif name == UNKNOWN or name in tables.GIT_PLUMBING:
        _plumbing(machine, name, words, reads)
    elif name in tables.GIT_REVISION_READERS:
        _revisions(machine, name, words, reads)


def _plumbing(machine: Machine, name: str, words: list[str], reads: str) -> None:
    if name == "reflog" and words[:1] in (["expire"], ["delete"]):
        return
    revisions = [word for word in words if not word.startswith("-")]
    harmless = name in (
        "cat-file",
        "ls-tree",
        "archive",
        "rev-list",
        "diff-tree",
        "format-patch",
        "replace",
        "cherry-pick",
    )
    everything = any(w.startswith(("--all", "--batch", "--reflog", "-g", "--objects", "--root")) for w in words)
    if harmless and not everything and revisions and not any(_is_old(machine, word) for word in revisions):
        return
    machine.hit("git-history", reads, "git")


def _revisions(machine: Machine, name: str, words: list[str], reads: str) -> None:
    before = words[: words.index("--")] if "--" in words else words
    options = [word for word in before if word.startswith("-")]
    revisions = [word for word in before if not word.startswith("-")]
    revisions += [word.partition("=")[2] for word in options if word.startswith("--source=")]
    if "-s" in options and name == "restore" and revisions:
        options.remove("-s")
    old = any(_is_old(machine, word) for word in revisions)
    if name in tables.GIT_LISTS:
        content = any(_is_content(option) for option in options)
        if content or (old and any(".." not in w and _is_old(machine, w) for w in revisions)):
            machine.hit("git-history", reads, "git")
        else:
            machine.hit("git-log", reads, "git")
    elif old:
        machine.hit("git-history", reads, "git")
    elif name in ("blame", "annotate"):
        machine.hit("git-log", reads, "git")
    elif name == "revert" and not machine.commits:
        machine.hit("git-history", reads, "git")


def _is_content(option: str) -> bool:
    for known in tables.GIT_CONTENT_OPTIONS:
        if option == known or (known.startswith("--") and option.startswith(f"{known}=")):
            return True
        if known in ("-S", "-G", "-L", "-U") and option.startswith(known):
            return True
    return False


def _is_old(machine: Machine, word: str) -> bool:
    """Whether a word names something older than the workspace's first commit, or outside of its branch."""
    for part in re.split(r"\.{2,3}", word.lstrip("^")):
        revision = part.partition(":")[0]
        if not revision:
            continue
        if found := _HEAD.match(revision):
            if _steps(found[1]) > machine.commits:
                return True
        elif revision == UNKNOWN or (revision.startswith(UNKNOWN) and ":" in part):
            return True
        elif (revision.startswith("stash") and machine.stashes) or ("/" in revision and "." in revision):
            continue
        elif _OTHER.match(revision):
            return True
    return False


def _steps(text: str) -> int:
    """How many commits ``~2^`` goes back."""
    return sum(int(m[1] or 1) if m[0][0] == "~" or not m[1] else 1 for m in re.finditer(r"[~^](\d*)", text[:200]))


def _stash(machine: Machine, words: list[str], reads: str) -> None:
    action = next((word for word in words if not word.startswith("-")), "push")
    if action in ("push", "save"):
        machine.stashes += 1
    elif action in ("show", "pop", "apply", "branch") and not machine.stashes:
        machine.hit("git-history", reads, "git")


def _network(machine: Machine, name: str, words: list[str], reads: str) -> None:
    targets = [word for word in words if not word.startswith("-")]
    url = next((word for word in targets if "://" in word or re.match(r"^[\w.-]+@[\w.-]+:", word)), "")
    if url:
        network.fetch(machine, url, by=f"git {name}", is_clone=True)
    elif name == "clone":
        for path in targets[:1]:
            machine.touch(Access.LIST, path)
    elif name != "remote":
        machine.hit("network", reads, "git", "fatal")


def _paths(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith("-")]
