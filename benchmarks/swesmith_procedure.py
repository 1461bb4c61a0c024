# mypy: disable-error-code=import-not-found
"""SWE-smith's procedural pipeline on one local tree: generate, collect, validate a sample, report as JSON.

Its own code does the work (``swesmith.bug_gen.procedural.generate``, ``swesmith.bug_gen.collect_patches``,
``swesmith.harness.valid``), with all its modifiers, one candidate at a time, a whole run of the suite for each.
One call is replaced, that to Docker: the candidate's container becomes a copy of the tree, in which the patch is
applied with SWE-smith's own commands and its own evaluation script runs. No image is pulled, no container is
started, and bytecode of the pristine tree is copied along, all of which favours SWE-smith.

``compare_swesmith.py`` runs this with the Python of a virtual environment that has swesmith; this file must not
import taskgen.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

OWNER, COMMIT = "local", "0" * 40
_PR_SET_CHILD_SUBREAPER = 36


class Meter:
    """CPU of this process and of everything that it started, sandboxes included.

    The kernel hands CPU up from child to parent, but not in two cases that sandboxes bring about. bwrap may end
    before the first process of its pid namespace is reaped: we become the parent of such orphans and reap them. And
    a namespace that is killed takes the CPU of all but its first process with it: ``before_kill`` notes that.
    """

    _lost_s = 0.0

    def __init__(self) -> None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._last = self.read()

    @classmethod
    def read(cls) -> float:
        """CPU seconds so far, of this process and of those that were reaped or noted."""
        spent = cls._lost_s
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            usage = resource.getrusage(who)
            spent += usage.ru_utime + usage.ru_stime
        return spent

    @classmethod
    def before_kill(cls) -> None:
        """Note the CPU of all processes below this one that live in a pid namespace, its first one left out."""
        cls._lost_s += sum(spent for pid, spent in _descendants() if _dies_unseen(pid))

    def lap(self) -> float:
        """CPU seconds since the last lap; nothing may be running any more."""
        reap_all()
        now = self.read()
        spent, self._last = now - self._last, now
        return spent


def _descendants() -> Iterator[tuple[int, float]]:
    """(pid, CPU seconds with those of its reaped children) of each process below this one."""
    tick = os.sysconf("SC_CLK_TCK")
    below, spent = dict[int, list[int]](), dict[int, float]()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            below.setdefault(int(fields[1]), []).append(int(folder.name))
            spent[int(folder.name)] = sum(map(int, fields[11:15])) / tick
    queue = below.get(os.getpid(), [])
    while queue:
        pid = queue.pop()
        yield pid, spent[pid]
        queue += below.get(pid, [])


def _dies_unseen(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                ours, *inner = line.split()[1:]
                return bool(ours and inner) and inner[-1] != "1"
    return False


def reap_all(within_s: float = 10.0) -> None:
    """Wait for children that have ended or are about to."""
    deadline = time.monotonic() + within_s
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)


class CopyRunner:
    """Stands in for SWE-smith's ``run_patch_in_container``."""

    def __init__(self, pristine: Path, work: Path, launch: Sequence[str]) -> None:
        """``launch``: what goes before the command; ``{work}`` in it becomes the folder of the copy."""
        self._pristine, self._work, self._launch = pristine, work, launch
        self.reference_cpu_s = 0.0

    def __call__(
        self,
        instance: dict[str, Any],
        run_id: str,
        log_dir: Path,
        timeout: int,
        patch: str | None = None,
        **_unused: object,
    ) -> tuple[logging.Logger, bool]:
        """Run the suite with ``patch`` applied (None: the reference run); write the log where SWE-smith reads it."""
        from swebench.harness.docker_build import setup_logger

        instance_id = instance["instance_id"]
        folder = log_dir / run_id / instance_id
        folder.mkdir(parents=True, exist_ok=True)
        logger = setup_logger(instance_id, folder / "run_instance.log")
        if patch is None:
            reap_all()
            before = Meter.read()
            timed_out = self._run(self._pristine, instance, run_id, folder, timeout)
            reap_all()
            self.reference_cpu_s += Meter.read() - before
            return logger, timed_out
        copy = self._work / "copy"
        subprocess.run(["cp", "-a", str(self._pristine), str(copy)], check=True)
        try:
            if not _apply(copy, patch, folder):
                return logger, False
            return logger, self._run(copy, instance, run_id, folder, timeout)
        finally:
            shutil.rmtree(copy)

    def _run(self, tree: Path, instance: dict[str, Any], run_id: str, folder: Path, timeout: int) -> bool:
        from swebench.harness.constants import TESTS_TIMEOUT
        from swesmith.constants import TEST_OUTPUT_END, TEST_OUTPUT_START
        from swesmith.profiles import registry

        command, _ = registry.get(run_id).get_test_cmd(instance)
        script = ["set -uxo pipefail", f": '{TEST_OUTPUT_START}'", command, f": '{TEST_OUTPUT_END}'"]
        launch = [word.replace("{work}", str(tree)) for word in self._launch]
        output, timed_out = _bounded([*launch, "/bin/bash", "-c", "\n".join(script)], timeout)
        if timed_out:
            output += f"\n\n{TESTS_TIMEOUT}: {timeout} seconds exceeded"
        (folder / "test_output.txt").write_text(output)
        return timed_out


def _apply(copy: Path, patch: str, folder: Path) -> bool:
    from swesmith.constants import GIT_APPLY_CMDS

    file = (folder / "patch.diff").absolute()
    file.write_text(patch)
    # The copy is no repository; one above it must not be taken for it.
    environ = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}
    return any(
        subprocess.run([*command.split(), str(file)], cwd=copy, env=environ, capture_output=True).returncode == 0
        for command in GIT_APPLY_CMDS
    )


def _bounded(argv: Sequence[str], timeout: int) -> tuple[str, bool]:
    """The output of a program, both streams together, and whether it ran past its time."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.communicate(timeout=timeout)[0].decode("utf-8", "replace"), False
    except subprocess.TimeoutExpired:
        Meter.before_kill()
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0].decode("utf-8", "replace"), True


def _register(name: str, test_command: str) -> str:
    """Make the tree known to SWE-smith as it knows any Python repository; returns its name there."""
    from swesmith.profiles import registry
    from swesmith.profiles.python import PythonProfile

    fields = {"owner": OWNER, "repo": name, "commit": COMMIT, "test_cmd": test_command}
    local = make_dataclass(
        "Local",
        [(key, str, value) for key, value in fields.items()],
        bases=(PythonProfile,),
        namespace={"_cache_mirror_exists": True},  # the "mirror" is the folder that is there already
    )
    registry.register_profile(local)
    return str(registry.get(f"{OWNER}__{name}.{COMMIT[:8]}").repo_name)


def _sampled(patches: list[dict[str, Any]], size: int, seed: int) -> list[dict[str, Any]]:
    ordered = sorted(patches, key=lambda patch: str(patch["instance_id"]))
    return random.Random(seed).sample(ordered, min(size, len(ordered)))


def _verdicts(folder: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        path = folder / name / "report.json"
        report = json.loads(path.read_text()) if path.exists() else {}
        f2p, p2p = len(report.get("FAIL_TO_PASS", ())), len(report.get("PASS_TO_PASS", ()))
        yield {"id": name, "timed_out": bool(report.get("timed_out")), "f2p": f2p, "p2p": p2p}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The whole procedure, in the working directory; returns what is to be reported."""
    from swesmith.bug_gen import collect_patches
    from swesmith.bug_gen.procedural import generate
    from swesmith.constants import LOG_DIR_BUG_GEN, LOG_DIR_RUN_VALIDATION
    from swesmith.harness import valid

    launch = json.loads(options.launch)
    repo = _register(options.name, options.test_command)
    runner = valid.run_patch_in_container = CopyRunner(options.tree, options.work, launch)
    shutil.copytree(options.tree, repo, symlinks=True)
    meter = Meter()
    generate.main(repo=repo, max_bugs=-1, seed=options.seed)
    collect_patches.main(LOG_DIR_BUG_GEN / repo)
    generation = meter.lap()
    patches = json.loads((LOG_DIR_BUG_GEN / f"{repo}_all_patches.json").read_text())
    sample = _sampled(patches, options.sample, options.seed)
    Path("sample.json").write_text(json.dumps(sample))
    meter.lap()
    valid.main("sample.json", workers=1)
    validation = meter.lap() - runner.reference_cpu_s
    verdicts = list(_verdicts(LOG_DIR_RUN_VALIDATION / repo, [patch["instance_id"] for patch in sample]))
    return {
        "proposed": len(patches),
        "generation_cpu_s": generation,
        "validation_cpu_s": validation,
        "reference_cpu_s": runner.reference_cpu_s,
        "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "verdicts": verdicts,
    }


def main() -> None:
    """Parse the options, run, write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True, help="folder with the pristine tree; it may be written to")
    parser.add_argument("--work", type=Path, required=True, help="empty folder for logs and copies")
    parser.add_argument("--name", required=True, help="name of the repository")
    parser.add_argument("--test-command", required=True, help="what runs the suite, in the tree")
    parser.add_argument("--launch", default="[]", help="JSON list of words before a run; {work} is the copy")
    parser.add_argument("--sample", type=int, default=30, help="candidates to validate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of generation and sample (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="file for the report, in JSON")
    options = parser.parse_args()
    for name in ("tree", "work", "out"):
        setattr(options, name, getattr(options, name).absolute())
    os.chdir(options.work)
    options.out.write_text(json.dumps(run(options)))


if __name__ == "__main__":
    main()
