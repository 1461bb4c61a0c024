"""Findings as SARIF 2.1.0 (OASIS), which code-scanning tools read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from taskgen.leaks.findings import Finding

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def to_sarif(findings: Sequence[Finding], version: str) -> dict[str, Any]:
    """One run with a rule for each pair of detector and level. ``version``: taskgen's own."""
    rules = sorted({_rule(finding) for finding in findings})
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "taskgen audit",
                        "version": version,
                        "rules": [{"id": rule, "shortDescription": {"text": _describe(rule)}} for rule in rules],
                    }
                },
                "columnKind": "utf16CodeUnits",
                "results": [_result(finding, rules) for finding in findings],
            }
        ],
    }


def _rule(finding: Finding) -> str:
    return f"{finding.detector.replace(' ', '-')}/{finding.level or 'any'}"


def _describe(rule: str) -> str:
    detector, _, level = rule.partition("/")
    what = "" if level == "any" else f": the {level} of deleted code"
    return f"found by {detector}{what}"


def _result(finding: Finding, rules: Sequence[str]) -> dict[str, Any]:
    outer, _, nested = finding.path.partition("!")
    location: dict[str, Any] = {"artifactLocation": {"uri": quote(_bytes(outer))}}
    if finding.line and not nested:
        region: dict[str, Any] = {"startLine": finding.line}
        if finding.excerpt:
            region["snippet"] = {"text": finding.excerpt.encode("utf-8", "replace").decode()}
        location["region"] = region
    identity = "\0".join((finding.detector, finding.path, finding.definition, finding.level))
    return {
        "ruleId": _rule(finding),
        "ruleIndex": rules.index(_rule(finding)),
        "level": finding.severity,
        "message": {"text": f"{finding.message} ({finding.path})".encode("utf-8", "replace").decode()},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"taskgen/v1": hashlib.sha256(_bytes(identity)).hexdigest()},
        "properties": {"action": finding.action, "definition": finding.definition, "path": finding.path},
    }


def _bytes(text: str) -> bytes:
    """The bytes of a name, be it the file system's, or one out of JSON or a class file with any lone surrogate."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
