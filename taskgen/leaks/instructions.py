"""Text in a repository that speaks to coding agents: their own files, injected prompts, invisible characters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from taskgen.leaks.findings import Finding
from taskgen.leaks.policy import Action

_FILES = re.compile(
    r"(?:^|/)(?:AGENTS\.md|CLAUDE(?:\.local)?\.md|GEMINI\.md|\.cursorrules|\.windsurfrules|\.clinerules|llms(?:-full)?\.txt"
    r"|\.aider[^/]*|copilot-instructions\.md)$|(?:^|/)\.(?:claude|cursor/rules|gemini|codex)/",
    re.I,
)
_PROMPT = re.compile(
    rb"(?:ignore|disregard|forget)\s+(?:all\s+|any\s+)?(?:of\s+)?(?:the\s+|your\s+|my\s+)?(?:previous|prior|above|earlier)"
    rb"\s+(?:instructions?|prompts?|messages?)"
    rb"|\byou\s+are\s+(?:now\s+)?(?:an?|the)\s+(?:AI|LLM|language\s+model|coding\s+(?:agent|assistant))\b"
    rb"|\b(?:attention|note|instructions?)\s+(?:for|to)\s+(?:AI|LLM|coding)\s+(?:agents?|assistants?|models?)\b",
    re.I,
)
# Bidirectional controls (CVE-2021-42574), tag characters; zero-width ones are everyday in some scripts.
_INVISIBLE = re.compile(r"[\u202a-\u202e\u2066-\u2069\U000e0001-\U000e007f]")
_INVISIBLE_RAW = re.compile(rb"\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]|\xf3\xa0[\x80\x81]")
_FLAG = "\U0001f3f4"


def find(path: str, data: bytes) -> Iterator[Finding]:
    """What a file says to an agent; nothing of binary files."""
    if b"\0" in data[:4096]:
        return
    if _FILES.search(path):
        yield _finding(path, "a file of instructions to coding agents", data[:300].decode("utf-8", "replace"), 1)
        return
    if found := _PROMPT.search(data):
        line = data.count(b"\n", 0, found.start()) + 1
        excerpt = data[max(0, found.start() - 60) : found.end() + 120].decode("utf-8", "replace")
        yield _finding(path, "a sentence that addresses a model", excerpt, line)
    if _INVISIBLE_RAW.search(data):
        text = data.decode("utf-8", "replace").replace(_FLAG, "")
        if (hidden := _INVISIBLE.search(text)) and not _is_flag(data):
            line = text.count("\n", 0, hidden.start()) + 1
            shown = text[max(0, hidden.start() - 40) : hidden.end() + 40]
            yield _finding(
                path,
                "invisible characters that change how text is read",
                shown.encode("ascii", "backslashreplace").decode(),
                line,
            )


def _is_flag(data: bytes) -> bool:
    """Flags of England and the like are spelt with tag characters, and with nothing else of the kind."""
    without = re.sub(r"\U0001f3f4[\U000e0020-\U000e007f]+", "", data.decode("utf-8", "replace"))
    return _INVISIBLE.search(without) is None


def _finding(path: str, message: str, excerpt: str, line: int) -> Finding:
    return Finding(
        detector="instructions", path=path, level="", definition="", severity="warning", action=Action.REPORT.value,
        excerpt=excerpt, message=message, line=line,
    )  # fmt: skip
