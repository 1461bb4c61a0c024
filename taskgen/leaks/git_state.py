"""What a .git directory tells by itself: where the history can be fetched from, and what holds it. Git is not run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from taskgen.leaks.findings import Finding, without_credentials
from taskgen.leaks.policy import Action

_URL = re.compile(r"^\s*(?:url|pushurl)\s*=\s*(\S.*)$", re.M)
_RUNS = re.compile(
    r"^\s*(fsmonitor|hookspath|sshcommand|textconv|command|clean|smudge|process|editor|pager|helper)\s*=\s*(\S.*)$",
    re.M | re.I,
)
_MAX_BYTES = 1 << 20


def examine(paths: Iterable[str], read: Callable[[str], bytes | None]) -> Iterator[Finding]:
    """Findings about the repositories among the files of a tree.

    Args:
        read: the content of one of the files.
    """
    listed = sorted(paths)
    for head in (p for p in listed if p == "HEAD" or p.endswith("/HEAD")):
        root = head.removesuffix("HEAD")
        own = [p for p in listed if p.startswith(root)]
        if f"{root}config" in own:  # an empty repository has neither objects nor refs, and may have remotes
            yield from _repository(root, own, lambda path: (read(path) or b"")[:_MAX_BYTES].decode("utf-8", "replace"))


def _repository(root: str, paths: list[str], text: Callable[[str], str]) -> Iterator[Finding]:
    def found(path: str, message: str, excerpt: str, action: Action = Action.SCRUB) -> Finding:
        return Finding(
            detector="git", path=path, level="", definition="", action=action.value,
            excerpt=without_credentials(excerpt)[:300],
            severity="error" if action is Action.SCRUB else "warning", message=message,
        )  # fmt: skip

    config = text(f"{root}config")
    for url in _URL.findall(config):
        yield found(f"{root}config", "a remote from which the history can be fetched", url)
    for key, value in _RUNS.findall(config):
        yield found(f"{root}config", "a setting that makes git run a program", f"{key} = {value}")
    for name, message in (
        ("objects/info/alternates", "another repository's objects are read through this one"),
        ("shallow", "a shallow clone: its remote has the rest"),
    ):
        if f"{root}{name}" in paths:
            yield found(f"{root}{name}", message, text(f"{root}{name}"))
    commits = _commits(root, paths, text)
    if len(commits) > 1:
        yield found(
            root.rstrip("/") or ".git", f"{len(commits)} commits are referred to: there is a history",
            ", ".join(sorted(commits)[:6]), Action.REPORT,
        )  # fmt: skip
    for path in paths:
        if path.startswith(f"{root}hooks/") and not path.endswith(".sample"):
            yield found(path, "a hook that git runs", "", Action.REPORT)


def _commits(root: str, paths: list[str], text: Callable[[str], str]) -> set[str]:
    """Ids in refs, logs and the like."""
    holders = [
        p for p in paths
        if p.startswith((f"{root}refs/", f"{root}logs/"))
        or p in (f"{root}packed-refs", f"{root}ORIG_HEAD", f"{root}FETCH_HEAD", f"{root}MERGE_HEAD")
    ]  # fmt: skip
    return {oid for p in holders for oid in re.findall(r"\b[0-9a-f]{40}\b", text(p)) if oid.strip("0")}
