"""Real git repositories for tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def run_git(*arguments: str, cwd: Path) -> str:
    env = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.org",
    }
    done = subprocess.run(["git", *arguments], cwd=cwd, env=env, check=True, capture_output=True)
    return os.fsdecode(done.stdout).strip()


def write(root: Path, files: dict[str, bytes | str], *, executable: bool = False) -> None:
    for path, content in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        place.chmod(0o755 if executable else 0o644)


def make_repo(root: Path, files: dict[str, bytes | str]) -> str:
    """A repository with one commit on branch main; returns the commit."""
    root.mkdir(parents=True, exist_ok=True)
    run_git("init", "-q", "-b", "main", cwd=root)
    write(root, files)
    return commit_all(root, "one")


def commit_all(root: Path, message: str) -> str:
    run_git("add", "-A", "-f", cwd=root)
    run_git("commit", "-q", "--allow-empty", "-m", message, cwd=root)
    return run_git("rev-parse", "HEAD", cwd=root)
