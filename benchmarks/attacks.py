"""The attack suite against three graders: ``python -m benchmarks.attacks TASKS --report FILE --swebench PYTHON``.

FILE is what ``taskgen audit TASKS --attack --json`` printed. The same submissions go to two other graders:

- plain: the hidden tests' files are copied over the agent's tree, on the agent's machine, and pytest runs them; the
  reward is 1 when pytest ends with code 0 and its JUnit report has every FAIL_TO_PASS test as passed;
- SWE-bench: the agent's tree on a fresh machine, the tests' files put back, pytest -rA, and the log judged by the
  functions that PyPI's ``swebench`` publishes (``get_logs_eval``, ``get_eval_tests_report``,
  ``get_resolution_status``). PYTHON is an interpreter that has it.

Both run the files of the hidden tests alone. Prints a table by group; writes what it prints with ``--json``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Column, Table

from taskgen import archive, taskset
from taskgen.attacks.attack import Item, Submission
from taskgen.attacks.handin import given_tree, run_script
from taskgen.attacks.table import ATTACKS
from taskgen.cli import cache_folder
from taskgen.commands.attack import target_of
from taskgen.errors import SandboxUnavailable
from taskgen.grading.task import Task, load
from taskgen.sandbox import HOME_DIR, WORKSPACE_DIR, SandboxProvider
from taskgen.sandboxes.select import select

TIMEOUT_S = 60.0
TESTS_DIR = f"{HOME_DIR}/hidden-tests"
JUDGE = Path(__file__).parent / "swebench_judge.py"


@dataclass(frozen=True)
class Ran:
    """A run of pytest: its code (None: it was ended), output and JUnit report. ``lost``: the sandbox was, with it."""

    code: int | None
    log: str
    junit: bytes
    lost: bool = False


def run(task: Task, submission: Submission, key: str, provider: SandboxProvider, *, on_agents_machine: bool) -> Ran:
    """Put the tests over the submission's tree and run pytest on the hidden tests' files."""
    files = sorted({test.split("::")[0] for test in task.fail_to_pass})
    script = submission.script if on_agents_machine else ""
    command = "\n".join(
        [
            f"cd {WORKSPACE_DIR}", "cp -a /env/artifacts/. . 2>/dev/null", script,
            f"cd {WORKSPACE_DIR}; cp -af {TESTS_DIR}/. .",
            f"python -m pytest -rA --junitxml=/tmp/report.xml {shlex.join([*task.suite.args, *files])} 2>&1",
            "code=$?; printf '\\n--report--\\n'; cat /tmp/report.xml 2>/dev/null; exit $code",
        ]
    )  # fmt: skip
    try:
        with provider.create(snapshot=key) as sandbox:
            sandbox.put(WORKSPACE_DIR, given_tree(task.workspace, submission))
            sandbox.put(TESTS_DIR, archive.pack(task.tests.values()))
            done = run_script(sandbox, command, timeout_s=TIMEOUT_S, env={"CI": "true"})
    except SandboxUnavailable:
        return Ran(None, "", b"", lost=True)
    log, _, junit = done.stdout.rpartition(b"\n--report--\n")
    return Ran(None if done.timed_out else done.returncode, log.decode("utf-8", "replace"), junit)


def plain_reward(task: Task, ran: Ran) -> float:
    """Code 0, and a JUnit report in which no hidden test's file has anything but passes, as many as there are."""
    if ran.code != 0:
        return 0.0
    try:
        cases = list(ElementTree.fromstring(ran.junit).iter("testcase"))  # a benchmark, in a throw-away process
    except ElementTree.ParseError:
        return 0.0
    names = [case.get("name") for case in cases if not list(case.iter("failure")) and not list(case.iter("error"))]
    return float({_bare(test) for test in task.fail_to_pass} <= set(names))


def _bare(test: str) -> str:
    """The name of a test in a JUnit report: function and parameters."""
    function, bracket, rest = test.partition("[")
    return function.rpartition("::")[2] + bracket + rest


def swebench_rewards(task: Task, logs: Mapping[str, Ran], python: str) -> dict[str, float]:
    """What SWE-bench's functions make of the logs, by key."""
    files = {test.split("::")[0] for test in task.fail_to_pass}
    beside = [test for test in task.row["PASS_TO_PASS"] if test.split("::")[0] in files]
    wanted = {
        "FAIL_TO_PASS": sorted(task.fail_to_pass), "PASS_TO_PASS": beside,
        "logs": {key: {"code": ran.code, "log": ran.log} for key, ran in logs.items()},
    }  # fmt: skip
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(wanted, file)
        file.flush()
        done = subprocess.run([python, JUDGE, file.name], check=True, capture_output=True)
    return dict(json.loads(done.stdout))


def compare(folder: Path, provider: SandboxProvider, cache: Path, python: str, jobs: int) -> list[dict[str, Any]]:
    """One row an attack: the rewards of both graders. Equal submissions are run once."""
    task = load(folder)
    key = task.snapshot(provider, cache)
    gold = Submission(items=tuple(_items(task)))
    made = [(0, "gold", "control", gold), (0, "no-op", "control", Submission())]
    aim = target_of(task)
    made += [(a.number, a.name, a.group, s) for a in ATTACKS if (s := a.make(aim)) is not None]
    plans: dict[str, tuple[Submission, bool]] = {}
    for _, _, _, submission in made:
        for on_agents in (True, False):
            plans[_digest(submission, on_agents)] = (submission, on_agents)
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda plan: run(task, plan[0], key, provider, on_agents_machine=plan[1]), plans.values())
        runs = dict(zip(plans, found, strict=True))
    judged = swebench_rewards(task, runs, python)
    return [
        {
            "task": folder.name, "number": number, "name": name, "group": group,
            "plain": plain_reward(task, runs[_digest(s, True)]), "swebench": judged[_digest(s, False)],
            "lost": runs[_digest(s, True)].lost or runs[_digest(s, False)].lost,
        }
        for number, name, group, s in made
    ]  # fmt: skip


def _items(task: Task) -> list[Item]:
    return [Item(path=path, content=entry.content) for path, entry in task.gold.items() if entry is not None]


def _digest(submission: Submission, on_agents: bool) -> str:
    parts = (submission.items, submission.deleted, submission.script if on_agents else "")
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--swebench", required=True, metavar="PYTHON")
    parser.add_argument("--only", action="append", help="the id of a task; repeatable")
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cache = cache_folder()
    provider = select(args.sandbox, cache)
    ours = {(a["task"], a["number"], a["name"]): a["reward"] for a in json.loads(args.report.read_text())["attempts"]}
    rows = []
    for folder in taskset.find_tasks(args.tasks):
        if args.only and folder.name not in args.only:
            continue
        print(folder.name, file=sys.stderr, flush=True)
        rows += compare(folder, provider, cache, args.swebench, args.jobs)
    for row in rows:
        row["taskgen"] = ours.get((row["task"], row["number"], row["name"]))
    table = Table("group", *(Column(n, justify="right") for n in ("attempts", "plain pytest", "SWE-bench", "taskgen")))
    for group in dict.fromkeys(row["group"] for row in rows):
        of = [row for row in rows if row["group"] == group]
        sums = [f"{sum(row[grader] or 0 for row in of):.0f}" for grader in ("plain", "swebench", "taskgen")]
        table.add_row(group, str(len(of)), *sums)
    Console().print(table)
    names = {row["name"] for row in rows if row["number"]}
    for grader in ("plain", "swebench", "taskgen"):
        won = {row["name"] for row in rows if row["number"] and row[grader]}
        print(f"{grader}: {len(won)} of {len(names)} attacks earn the reward on some task")
    lost = [f"{row['task']} {row['name']}" for row in rows if row["lost"]]
    print(
        f"{len(lost)} of {len(rows)} runs ended with their sandbox, which counts as no reward: {', '.join(lost[:10])}"
    )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
