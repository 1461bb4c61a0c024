"""SARIF: what the schema requires is there, whatever a hostile file is called."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskgen.leaks.findings import Finding
from taskgen.leaks.sarif import to_sarif

TEXT = st.text(st.characters(exclude_categories=()), max_size=12)
FINDINGS = st.builds(
    Finding,
    detector=TEXT.filter(bool),
    path=TEXT,
    level=st.sampled_from(["", "name", "constants", "docstring", "signature", "body"]),
    definition=TEXT,
    severity=st.sampled_from(["error", "warning", "note"]),
    action=st.sampled_from(["reject", "scrub", "report", "specification"]),
    excerpt=TEXT,
    message=TEXT,
    line=st.integers(0, 9),
)


def finding(
    path: str = "a b/c#1.pyc", *, level: str = "body", severity: str = "error", line: int = 3, definition: str = "m.f"
) -> Finding:
    return Finding(
        detector="python bytecode", path=path, level=level, definition=definition, severity=severity, action="scrub",
        excerpt="return 1", message="the body of m.f", line=line,
    )  # fmt: skip


def check(log: dict[str, Any]) -> None:
    """The demands of the 2.1.0 schema on the properties that are used."""
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    rules = [rule["id"] for rule in driver["rules"]]
    assert driver["name"] and len(rules) == len(set(rules))
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error") and result["message"]["text"]
        assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
        for location in result["locations"]:
            place = location["physicalLocation"]
            assert re.fullmatch(r"[A-Za-z0-9/._~%-]*", place["artifactLocation"]["uri"])
            assert place.get("region", {}).get("startLine", 1) >= 1


def test_a_finding_has_a_rule_a_place_and_an_identity() -> None:
    log = to_sarif([finding(), finding(line=0), finding(level="", path="x.whl!m.py", severity="note")], "1.2")
    check(log)
    first, second, nested = log["runs"][0]["results"]
    assert first["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%20b/c%231.pyc"
    assert first["locations"][0]["physicalLocation"]["region"]["startLine"] == 3
    assert "region" not in second["locations"][0]["physicalLocation"]
    assert nested["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "x.whl"
    assert log["runs"][0]["tool"]["driver"]["version"] == "1.2"
    # A finding that moved to another line is the same one.
    assert first["partialFingerprints"] == second["partialFingerprints"] != nested["partialFingerprints"]


@pytest.mark.parametrize(
    "findings", [[], [finding(path="/usr/lib/a:b.py")], [finding(path="\udcff\n")], [finding("a.map!\ud800")]]
)
def test_it_can_be_written_and_read(findings: list[Finding]) -> None:
    log = to_sarif(findings, "1")
    check(log)
    assert json.loads(json.dumps(log)) == log


@settings(max_examples=100, deadline=None)
@given(st.lists(FINDINGS, max_size=5))
def test_any_finding_is_taken(findings: list[Finding]) -> None:
    check(json.loads(json.dumps(to_sarif(findings, "1"))))
