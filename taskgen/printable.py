"""Text from a hostile place, for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """One line without control characters and broken Unicode; they are shown as escapes."""
    return "".join(
        c if c.isprintable() else f"\\x{ord(c):02x}" for c in text.encode("utf-8", "backslashreplace").decode()
    )


def printable_lines(text: str) -> list[str]:
    """The lines of a text, each as ``printable`` shows it; tabs become four spaces."""
    return [printable(line.expandtabs(4)) for line in text.replace("\r\n", "\n").split("\n")]
