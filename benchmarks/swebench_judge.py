"""Judges pytest logs by functions that ``swebench`` publishes; needs an interpreter that has it. See ``attacks``."""

from __future__ import annotations

import json
import sys
import tempfile
from types import SimpleNamespace

from swebench.harness import grading
from swebench.harness.constants import END_TEST_OUTPUT, START_TEST_OUTPUT, TEST_EXIT_CODE


def reward(entry: dict[str, object], wanted: dict[str, list[str]]) -> float:
    """1.0 if the log counts as fully resolved. The markers are those that SWE-bench's evaluation script writes."""
    if entry["code"] is None:
        return 0.0
    text = f"{START_TEST_OUTPUT}\n{entry['log']}\n{END_TEST_OUTPUT}\n{TEST_EXIT_CODE}: {entry['code']}\n"
    with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
        file.write(text)
        file.flush()
        spec = SimpleNamespace(log_parser="parse_log_pytest_v2")
        statuses, ran = grading.get_logs_eval(spec, file.name)
    if not ran:
        return 0.0
    report = grading.get_eval_tests_report(statuses, wanted)
    return float(grading.get_resolution_status(report) == grading.ResolvedStatus.FULL.value)


def main() -> None:
    with open(sys.argv[1]) as file:
        value = json.load(file)
    wanted = {name: value[name] for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    json.dump({key: reward(entry, wanted) for key, entry in value["logs"].items()}, sys.stdout)


main()
