"""HTML: the text of a page with its lines and indentation, so that shown source code comes out as it was written."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from taskgen.leaks.blob import Blob

NAME = "html"
RAW_STRINGS = False
_BEGIN = re.compile(
    rb"\s*(?:\xef\xbb\xbf)?\s*(?:<!--.{0,2000}?-->\s*)?<(?:!doctype\s+html|html|head|body|\?xml[^>]{0,200}>\s*<!doctype\s+html)",
    re.I | re.S,
)
_SCRIPT = re.compile(r"<(script|style)\b[^>]*>.*?</\1\s*>", re.I | re.S)
# Gutters: numbers of lines, and what readers click on.
_GUTTER = re.compile(
    r"<(?P<tag>span|a|td|div)\b[^>]*\bclass\s*=\s*[\"']?[^\"'>]*\b(?:linenos?|lnr|line-numbers?|src-line-numbers|line-count|"
    r"viewcode-back|n|cline-\w+|headerlink|source-line-no)\b[^\"'>]*[\"']?[^>]*>(?:\s|\d|&nbsp;|<a\b[^>]*>|</a>|\[docs\]|¶|#)*</(?P=tag)\s*>",
    re.I,
)
# Coverage's report: one paragraph a line, and behind its code the contexts and marks.
_MARGIN = re.compile(r"<span class=\"(?:r|annotate[^\"]*|ctxs?)\"[^>]*>.*?</span>(?=\s*</p>|<)", re.I | re.S)
_BREAK = re.compile(r"<(?:br|/p|/div|/tr|/li|/h\d|/dt|/dd|/pre|/table|/section|hr)\b[^>]*>", re.I)
_TAG = re.compile(r"<!--.*?-->|</?[A-Za-z!?][^>]*>", re.S)


def matches(head: bytes, name: str) -> bool:
    """A doctype or one of the first elements at the very beginning."""
    start = head.lstrip()[:1]
    return start in b"<\xef" and _BEGIN.match(head) is not None


def decode(blob: Blob) -> Iterator[Blob]:
    """One text, of the whole page."""
    text = blob.read().decode("utf-8", "replace")
    blob.budget.check_time()
    text = _SCRIPT.sub("", text) if "</script" in text or "</style" in text else text
    text = _GUTTER.sub("", text)
    if 'class="annotate' in text or 'class="r"' in text:
        text = _MARGIN.sub("", text)
    # Between two lines of a listing a report often has markup alone.
    text = _BREAK.sub("\n", text)
    text = html.unescape(_TAG.sub("", text)).replace("\xa0", " ").replace("\u200b", "")
    yield blob.child("(text).txt", text.encode("utf-8", "replace"))
