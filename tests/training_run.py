"""``taskgen train`` as a process, graded without a sandbox: a patch passes by its digest. Not a test module."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import taskgen.commands.train
from taskgen.cli import main
from taskgen.rollout_file import Grade
from taskgen.sandbox import SandboxProvider


class ByDigest:
    """Grades as ``taskgen.rollout.Grader`` does, a third of all patches as right."""

    def __init__(self, provider: SandboxProvider, cache: Path, known: dict[tuple[str, str], Grade]) -> None: ...

    def grade(self, folder: Path, patch: bytes) -> tuple[str, Grade, float]:
        digest = hashlib.sha256(folder.name.encode() + patch).hexdigest()
        passes = bool(patch) and int(digest[:8], 16) % 3 == 0
        return digest, Grade(float(passes), "resolved" if passes else "unresolved", ""), 0.0


if __name__ == "__main__":
    taskgen.commands.train.Grader = ByDigest  # type: ignore[assignment,misc]
    sys.argv[0] = "taskgen"
    main()
