"""Whether what a call did succeeded, from what the tool showed."""

from __future__ import annotations

import re

from taskgen.monitor.machine import Hit
from taskgen.types import ToolResult

_NETWORK = re.compile(
    r"could not resolve|name resolution|network is unreachable|connection (?:refused|timed out|broken)"
    r"|no matching distribution"
    r"|could not find a version|unable to access|name or service not known|failed to establish|no route to host"
    r"|ETIMEDOUT"
    r"|ENOTFOUND|\b40[34]\b|timed? ?out|unable to (?:fetch|resolve|locate)|failed to (?:fetch|download)"
    r"|NewConnectionError"
    r"|proxy ?error|offline|temporary failure",
    re.I,
)
_MISSING = re.compile(
    r"not found|no such file|no module named|permission denied|does not exist|cannot (?:access|open|stat|find)"
    r"|not installed"
    r"|is not recognized|read-only file system|operation not permitted|unable to open|no such table|no match",
    re.I,
)
_GIT = re.compile(
    r"^(?:fatal|error):|unknown revision|invalid object name|bad revision|not a git repository|no stash entries",
    re.I | re.M,
)
_EDIT = re.compile(
    r"no replacement|did not appear|no match|not unique|^error\b|failed|read-only|permission denied", re.I | re.M
)
_TRACEBACK = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*$", re.M)
_RETURN_CODE = re.compile(
    r"<returncode>(-?\d+)</returncode>|(?:exit(?:ed)?(?: with)?(?: code| status)?|return code)[: =]+(-?\d+)", re.I
)
_EMPTY = re.compile(
    r"^\W*(?:\(?no output\)?|<output>\s*</output>|(?:tool|command) (?:ran|executed|completed).*)?\W*$", re.I | re.S
)
_NETWORK_RULES = frozenset({"fetch-project", "network", "other-network", "other-packages"})
_WRITES = frozenset({"start-files", "weaken-tests", "runner-config", "edit-tests", "forge-results", "detect-tests"})
_SHOWS = frozenset({"read-cache", "git-history", "installed-copy", "hidden-files", "grader-files", "decompile"})
#: The result's head and tail that are looked at.
_LOOKED_AT = 20_000


def failed(hit: Hit, result: ToolResult | None) -> bool:
    """Whether the tool's answer says that what a rule matched did not work. No answer: not known, so not failed."""
    if result is None:
        return False
    text = result.text
    if len(text) > 2 * _LOOKED_AT:
        text = f"{text[:_LOOKED_AT]}\n{text[-_LOOKED_AT:]}"
    if hit.rule in _WRITES:
        return (result.is_error or _code(result, text) not in (0, None)) and bool(
            _EDIT.search(text) or _MISSING.search(text)
        )
    if hit.rule in _NETWORK_RULES and _NETWORK.search(text):
        return True
    if "git" in hit.needles and _GIT.search(text):
        return True
    lines = [line for line in text.splitlines() if _MISSING.search(line)]
    if any(needle in line for line in lines for needle in hit.needles):
        return True
    bad = result.is_error or _code(result, text) not in (0, None)
    if bad and (lines or _TRACEBACK.search(text)):
        return True
    return hit.rule in _SHOWS and hit.shows and bool(_EMPTY.match(text[:200]))


def _code(result: ToolResult, text: str) -> int | None:
    if result.exit_code is not None:
        return result.exit_code
    found = _RETURN_CODE.search(text[-300:]) or _RETURN_CODE.search(text[:300])
    return int((found[1] or found[2])[:9]) if found else None
