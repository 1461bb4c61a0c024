"""Verbatim copies of deleted code: what counts as one, and what does not."""

from __future__ import annotations

from taskgen.languages.python_surgery import Surgery
from taskgen.leaks import copies
from tests.project_helpers import find, project_of

BODY = """\
    first = [word.strip() for word in text.split(",")]
    second = sorted(first, key=str.casefold)
    third = [word for word in second if word]
    fourth = {word: len(word) for word in third}
    return list(fourth.items())
"""
OTHER = """\
    answer = sum(ord(letter) for letter in text if letter.isalpha())
    for position, letter in enumerate(text):
        answer += position * ord(letter)
    while answer > 1000:
        answer = answer // 2 + 17
    scaled = answer * 31 % 97
    mapped = {letter: scaled for letter in text}
    chosen = max(mapped, key=mapped.get)
    return chosen, scaled
"""
SOURCE = f"def words(text):\n{BODY}\n\ndef checksum(text):\n{OTHER}"


def leaks(workspace: dict[str, str], *names: str) -> list[tuple[str, str]]:
    project = project_of({"pkg/text.py": SOURCE})
    surgery = Surgery(project, lambda *_: True)
    for name in names:
        surgery.remove_body(find(project, "pkg/text.py", name), keep_docstring=True)
    return copies.find(project, surgery.deletion(), {p: t.encode() for p, t in workspace.items()})


def test_a_body_under_another_name_and_indentation_is_found() -> None:
    twin = "class Legacy:\n    def split(self, text):\n" + "".join(f"    {line}\n" for line in BODY.splitlines())
    assert leaks({"pkg/legacy.py": twin}, "words", "checksum") == [("pkg/legacy.py", "words")]


def test_the_same_lines_in_another_order_are_found_if_they_are_much_of_what_went() -> None:
    shuffled = "\n".join(reversed(OTHER.splitlines()))
    assert leaks({"notes.txt": shuffled}, "checksum") == [("notes.txt", "checksum")]
    assert leaks({"notes.txt": shuffled}, "words") == []


def test_unlike_code_is_no_copy() -> None:
    assert leaks({"pkg/other.py": "def words(text):\n    return text.split()\n"}, "words", "checksum") == []
