"""JSON lines over stdin and stdout, and nothing else between them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

Say = Callable[[Mapping[str, Any]], None]


def take_stdout() -> Say:
    """What says a value as one line on the stdout of now; what libraries print from here on goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(value: Mapping[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    return say


def hear() -> dict[str, Any] | None:
    """The next line's value, or None at the end. Raises ValueError for what is no object."""
    line = sys.stdin.readline()
    if not line:
        return None
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError(f"not an object: {line[:100]!r}")
    return value
