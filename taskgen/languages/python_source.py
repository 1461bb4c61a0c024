"""Parse Python that somebody hostile wrote, in this process: bounded in size and time."""

from __future__ import annotations

import ast
import re
import threading
import warnings

#: Larger files are not parsed; nobody writes them by hand.
MAX_BYTES = 1_000_000
PYTHON_SUFFIXES = (".py", ".pyi", ".pyw")

# CPython's parser takes quadratic time for dotted names of many parts, and for fields of f-strings in long literals.
_MAX_DOTS = 5_000
_MAX_FIELD_BYTES = 3_000_000_000
_DOTTED = re.compile(rb"[\w.\s\\\x80-\xff]+")


# CPython 3.11 counts the depth of recursion once for all threads: two that parse at a time can end in a SystemError.
# warnings.catch_warnings is no thread's own, either.
_parsing = threading.Lock()


def parse(source: bytes) -> ast.Module:
    """The syntax tree of a file.

    Raises:
        SyntaxError: it is no Python that this Python knows, or too large, too deep or too costly to look at.
    """
    if len(source) > MAX_BYTES or _is_costly(source):
        raise SyntaxError("too large to be parsed")
    try:
        with _parsing, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes
            return ast.parse(source)
    except (ValueError, RecursionError, MemoryError, SystemError) as error:
        raise SyntaxError(f"cannot be parsed: {type(error).__name__}") from error


def _is_costly(source: bytes) -> bool:
    """Whether parsing may take longer than for any honest file."""
    return source.count(b"{") * len(source) > _MAX_FIELD_BYTES or any(
        found.group().count(b".") > _MAX_DOTS for found in _DOTTED.finditer(source)
    )
