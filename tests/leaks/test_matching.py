"""What counts as recognised, and what is mere style."""

from __future__ import annotations

import difflib

from taskgen.leaks.blob import Blob
from taskgen.leaks.findings import Finding
from taskgen.leaks.judging import fails, judge
from taskgen.leaks.query import make_query
from taskgen.leaks.records import CodeForm, Level, Symbol
from taskgen.leaks.scanner import Scanner
from taskgen.leaks.subject import make_subject

BODY = """\
    first_words = [word.strip() for word in text.split(",")]
    second = sorted(first_words, key=str.casefold)
    third = [word for word in second if word.isalpha()]
    fourth = {word: word.count("e") for word in third}
    if limit_of_words and len(fourth) > limit_of_words:
        raise ValueError("there are too many different words here")
    return list(fourth.items())
"""
HEADER = "def count_letters(text, limit_of_words=None):\n"
DOC = '''\
    """Count how often the letter e stands in each word of a text.

    Words are separated by commas, and compared without case.
    """
'''
SOLVED = f"import re\n\n\n{HEADER}{DOC}{BODY}\n\ndef other(x):\n    return x\n"
WORKSPACE = "import re\n\n\ndef other(x):\n    return x\n"
PATCH = "".join(
    difflib.unified_diff(WORKSPACE.splitlines(True), SOLVED.splitlines(True), "a/pkg/text.py", "b/pkg/text.py")
)


def findings(path: str, data: str | bytes, *, environment: bool = False, stated: str = "") -> list[Finding]:
    files = {"pkg/text.py": WORKSPACE.encode()}
    subject = make_subject("t", PATCH, files.get, files.values(), stated=stated)
    blob = Blob.of_bytes(path, data.encode() if isinstance(data, str) else data)
    scan = Scanner(make_query([subject], thorough=True)).scan([blob])
    return judge(scan, [subject], in_environment=environment)["t"]


def levels(path: str, data: str, **options: bool) -> list[tuple[str, str]]:
    return [(f.level, f.action) for f in findings(path, data, **options) if f.definition == "count_letters"]


def test_a_body_under_another_name_and_indentation_is_found() -> None:
    twin = "class Legacy:\n    def split(self, text):\n" + "".join(f"    {line}\n" for line in BODY.splitlines())
    assert levels("pkg/legacy.py", twin) == [("body", "reject")]
    assert levels("build/lib/legacy.py", twin) == [("body", "scrub")]
    assert levels("lib/legacy.py", twin, environment=True) == [("body", "reject")]


def test_lines_in_another_order_or_with_marks_before_them_are_found() -> None:
    assert levels("notes.orig", "\n".join(reversed(BODY.splitlines()))) == [("body", "scrub")]
    assert levels("log.rej", "\n".join(f"  12 | {line}" for line in BODY.splitlines())) == [("body", "scrub")]


def test_renamed_and_reformatted_code_is_found() -> None:
    text = HEADER + BODY
    for old, new in (
        ("first_words", "a"),
        ("second", "b"),
        ("third", "c"),
        ("fourth", "d"),
        ("text", "e"),
        ("word", "w"),
    ):
        text = text.replace(old, new)
    text = text.replace("count_letters", "helper").replace("limit_of_words", "n").replace(", key", ",\n        key")
    assert levels("scratch/x.py", text) == [("body", "reject")]


def test_unlike_code_is_not_found() -> None:
    assert levels("pkg/other.py", "def words(text):\n    return [word.strip() for word in text.split()]\n") == []


def test_a_header_is_a_signature_and_a_call_is_a_name() -> None:
    assert levels("api.pyi", f"{HEADER[:-1]} ...\n") == [("signature", "specification")]
    assert levels("build/api.pyi", f"{HEADER[:-1]} ...\n") == [("signature", "scrub")]
    assert levels("pkg/use.py", "print(count_letters(text, limit_of_words))\n") == [("name", "specification")]
    page = "<html><body><dt>count_letters(text, limit_of_words=None)</dt></body>"
    assert set(levels("build/x.html", page)) == {("signature", "scrub")}


def test_what_the_statement_says_is_no_leak() -> None:
    found = findings("build/api.pyi", f"{HEADER[:-1]} ...\n", stated=f"Write `{HEADER.strip()}`")
    assert [(f.level, f.action) for f in found] == [("signature", "report")]


def test_a_docstring_alone_is_a_docstring() -> None:
    assert levels("build/page.txt", DOC) == [("docstring", "scrub")]
    assert levels("docs/guide.rst", DOC) == [("docstring", "specification")]


def test_compiled_code_of_the_name_is_the_body() -> None:
    files = {"pkg/text.py": WORKSPACE.encode()}
    subject = make_subject("t", PATCH, files.get, files.values())
    scanner = Scanner(make_query([subject], thorough=True))
    used = frozenset({"split", "strip", "casefold", "isalpha", "count", "items", "ValueError", "len", "sorted", "list"})
    same = Symbol(name="count_letters", parameters=("text", "limit_of_words"), identifiers=used, code=CodeForm.BYTECODE)
    other = Symbol(name="count_letters", parameters=("a",), identifiers=frozenset({"x"}), code=CodeForm.BYTECODE)
    assert [m.level for m in scanner.matcher.match_symbol(same)] == [Level.BODY]
    assert [m.level for m in scanner.matcher.match_symbol(other)] == [Level.NAME]


def test_everyday_methods_of_other_programs_are_no_leak() -> None:
    added = "+    def __iter__(self):\n+        return iter(self.data)\n"
    patch = f"--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,4 @@\n class A:\n     x = 1\n{added}"
    files = {"a.py": b"class A:\n    x = 1\n"}
    subject = make_subject("t", patch, files.get, files.values())
    twin = b"class B:\n    def __iter__(self):\n        return iter(self.data)\n"

    def scan(path: str) -> list[Finding]:
        return judge(Scanner(make_query([subject], thorough=True)).scan([Blob.of_bytes(path, twin)]), [subject])["t"]

    assert fails(scan("build/lib/b.py")) == []
    # In the workspace itself the very same method stands beside its class: whoever looks finds it.
    assert [(f.level, f.action) for f in scan("b.py")] == [("body", "reject")]


def test_a_short_function_of_a_rare_name_is_found_in_a_build_too() -> None:
    added = (
        "+def folder_of_path(path):\n+    place = os.path.dirname(path)\n+    return place + '/' if place else '.'\n"
    )
    patch = f"--- a/a.py\n+++ b/a.py\n@@ -1 +1,4 @@\n import os\n{added}"
    files = {"a.py": b"import os\n"}
    subject = make_subject("t", patch, files.get, files.values())
    copy = b"import os\n" + added.replace("\n+", "\n")[1:].encode()
    scan = Scanner(make_query([subject], thorough=True)).scan([Blob.of_bytes("build/lib/a.py", copy)])
    assert [(f.level, f.action) for f in judge(scan, [subject])["t"]] == [("body", "scrub")]
