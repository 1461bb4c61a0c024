"""Tokens and keys that a published task would give away."""

from __future__ import annotations

import re
from collections.abc import Iterator

from taskgen.leaks.findings import Finding
from taskgen.leaks.policy import Action

# (what it is, pattern). The formats are those that the issuers document.
_PATTERNS: tuple[tuple[str, bytes], ...] = (
    ("private key", rb"-----BEGIN (?:[A-Z]{2,8} )?PRIVATE KEY(?: BLOCK)?-----\s*[A-Za-z0-9+/=\r\n:, -]{64,}"),
    ("AWS access key", rb"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b"),
    ("GitHub token", rb"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,})\b"),
    ("GitLab token", rb"\bglpat-[A-Za-z0-9_-]{20,}\b"),
    ("Slack token", rb"\bxox[abprs]-[0-9]{6,}-[A-Za-z0-9-]{10,}\b"),
    ("Google API key", rb"\bAIza[A-Za-z0-9_-]{35}\b"),
    ("Stripe key", rb"\b[sr]k_live_[A-Za-z0-9]{20,}\b"),
    ("Anthropic key", rb"\bsk-ant-[A-Za-z0-9_-]{32,}"),
    ("OpenAI key", rb"\bsk-(?:proj-)?[A-Za-z0-9_-]{20,}T3BlbkFJ[A-Za-z0-9_-]{20,}"),
    ("Hugging Face token", rb"\bhf_[A-Za-z]{34}\b"),
    ("npm token", rb"\bnpm_[A-Za-z0-9]{36}\b"),
    ("PyPI token", rb"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{40,}"),
    ("registry password", rb"(?m)^\s*//[^\s:]+/:_authToken\s*=\s*[A-Za-z0-9_-]{16,}"),
    ("password in a URL", rb"\bhttps?://[A-Za-z0-9_.-]{2,40}:[^\s@/:'\"{}<>$*]{8,60}@[A-Za-z0-9.-]+\.[a-z]{2,}"),
)  # fmt: skip
_ANY = re.compile(b"|".join(b"(" + pattern.replace(rb"(?m)^", rb"(?:^|\n)") + b")" for _, pattern in _PATTERNS))
# What every one of them holds; one quick look before the slow one.
_HINT = re.compile(
    rb"PRIVATE KEY|AKIA|ASIA|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AIza|[sr]k_live_|sk-ant-|T3BlbkFJ|hf_|npm_"
    rb"|pypi-Ag|_authToken|://[^\s/]{3,80}@"
)
_PLACEHOLDER = re.compile(
    rb"EXAMPLE|example|xxxx|XXXX|changeme|placeholder|dummy|1234567890|password@|pass(?:word)?:", re.I
)
_TEST = re.compile(r"(?:^|/)(?:tests?|testing|fixtures?|examples?|docs?)(?:/|$)|(?:^|/)test_", re.I)
_SHOWN_CHARS = 6


def find(path: str, data: bytes) -> Iterator[Finding]:
    """The secrets in a file, shown by their first characters alone."""
    if _HINT.search(data) is None:
        return
    for found in _ANY.finditer(data):
        text = found.group()
        if _PLACEHOLDER.search(text) or len(set(text[-24:])) < 6:
            continue
        kind = _PATTERNS[(found.lastindex or 1) - 1][0]
        is_test = _TEST.search(path) is not None
        yield Finding(
            detector="secret",
            path=path,
            level="",
            definition="",
            severity="note" if is_test else "error",
            action=(Action.REPORT if is_test else Action.SCRUB).value,
            excerpt=text.strip()[:_SHOWN_CHARS].decode("utf-8", "replace") + "…",
            message=f"what looks like a {kind}" + (", in test material" if is_test else ""),
            line=data.count(b"\n", 0, found.start()) + 1,
        )
