"""Run ``make demo`` and put what it prints on stdout into the README, between the transcript's fences.

    python benchmarks/transcript.py

The seconds and the free space differ from run to run; all else is the same on every machine.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCED = re.compile(r"(<!-- transcript: .*? -->\n```console\n).*?(```\n)", re.DOTALL)


def main() -> int:
    done = subprocess.run(["make", "demo"], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=None)
    sys.stdout.write(done.stdout)
    if done.returncode != 0:
        return done.returncode
    readme = ROOT / "README.md"
    text = readme.read_text("utf-8")
    printed = "\n".join(line.rstrip() for line in f"$ make demo\n{done.stdout}".splitlines()) + "\n"
    if not FENCED.search(text):
        raise SystemExit("README.md has no transcript block")
    readme.write_text(FENCED.sub(lambda match: match.group(1) + printed + match.group(2), text), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
