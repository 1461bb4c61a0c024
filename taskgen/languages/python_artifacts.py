"""Inside the sandbox, after the install: keep what the install put into the workspace, and nothing else.

Usage: python_artifacts.py TREE_LIST OUT. TREE_LIST holds the names of the tree's own files, NUL-separated; what else
lies in /workspace (metadata of an editable install, compiled extensions) goes to OUT. Copies of sources in
build folders and bytecode stay behind.
"""

from __future__ import annotations

import os
import shutil
import sys

WORKSPACE = "/workspace"
LEFT_BEHIND = {"build", "dist", "__pycache__", ".eggs", "wheels"}


def main(tree_list: str, out: str) -> None:
    with open(tree_list, "rb") as names:
        own = {os.fsdecode(name) for name in names.read().split(b"\0")}
    for folder, folders, files in os.walk(WORKSPACE):
        relative = os.path.relpath(folder, WORKSPACE)
        folders[:] = [name for name in folders if name not in LEFT_BEHIND]
        for name in files:
            path = os.path.normpath(os.path.join(relative, name))
            if path in own or path.endswith((".pyc", ".pyo", ".o", ".c")):
                continue
            os.makedirs(os.path.join(out, os.path.dirname(path)), exist_ok=True)
            shutil.copy2(os.path.join(WORKSPACE, path), os.path.join(out, path), follow_symlinks=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
