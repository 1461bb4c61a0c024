"""Each decoder: what it finds in real bytes, and that broken bytes end as a reason and as nothing else."""

from __future__ import annotations

import ast
import bz2
import gzip
import io
import json
import lzma
import marshal
import pickle
import py_compile
import random
import sqlite3
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from taskgen.leaks.blob import Blob, Limits, Unreadable
from taskgen.leaks.decoders.table import DECODERS
from taskgen.leaks.decoding import DECODER_FAULT, Text, decoder_for, unfold
from taskgen.leaks.records import Problem, Symbol

SOURCE = '''\
def parse_wheel_filename(filename, strict=False, *parts, **options):
    """Split the name of a wheel into its parts."""
    if not filename.endswith(".whl"):
        raise ValueError("the extension must be .whl")
    pieces = filename.split("-")
    return pieces[0].casefold(), tuple(pieces[1:])
'''
LINE = b'raise ValueError("the extension must be .whl")'


def made_zip(data: bytes = SOURCE.encode(), name: str = "pkg/names.py") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return buffer.getvalue()


def made_tar(data: bytes = SOURCE.encode(), name: str = "pkg/names.py") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def made_ar() -> bytes:
    data = SOURCE.encode()
    header = b"names.py/       0           0     0     644     %-10d`\n" % len(data)
    return b"!<arch>\n" + header + data + b"\n" * (len(data) % 2)


def made_sqlite(path: Path) -> bytes:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE files (path TEXT, body BLOB)")
        database.execute("INSERT INTO files VALUES ('names.py', ?)", (zlib.compress(SOURCE.encode()),))
    database.close()
    return path.read_bytes()


def made_pack(folder: Path) -> bytes:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.invalid"]
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)

    git("init", "-q")
    for number in range(4):  # similar versions, so that there are deltas
        (folder / "names.py").write_text(SOURCE + f"\n# version {number}\n" * 40)
        git("add", "-A")
        git("commit", "-q", "-m", f"version {number}")
    git("gc", "-q", "--aggressive")
    return next(folder.glob(".git/objects/pack/*.pack")).read_bytes()


def made_pyc(folder: Path) -> bytes:
    (folder / "names.py").write_text(SOURCE)
    return Path(py_compile.compile(str(folder / "names.py"), cfile=str(folder / "names.pyc"))).read_bytes()


def made_notebook() -> bytes:
    cell = {"cell_type": "code", "source": SOURCE.splitlines(keepends=True), "outputs": [], "metadata": {}}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


def made_html() -> bytes:
    import html

    rows = [
        f'<p class="run"><span class="n"><a href="#t{n}">{n}</a></span><span class="t">{html.escape(line)}</span></p>'
        for n, line in enumerate(SOURCE.splitlines(), 1)
    ]
    return f"<!DOCTYPE html>\n<html><body>{''.join(rows)}</body></html>".encode()


def made_map() -> bytes:
    return json.dumps({"version": 3, "sources": ["names.py"], "sourcesContent": [SOURCE], "mappings": ""}).encode()


def made_inline_map() -> bytes:
    import base64

    return b"x();\n//# sourceMappingURL=data:application/json;base64," + base64.b64encode(made_map()) + b"\n"


def made_swap() -> bytes:
    page, lines = 4096, SOURCE.encode().splitlines()
    block, index, end = bytearray(page), b"", page
    for line in lines:
        end -= len(line) + 1
        block[end : end + len(line) + 1] = line + b"\0"
        index += end.to_bytes(4, "little")
    numbers = (0, end, page, len(lines))
    header = b"ad\0\0" + b"".join(n.to_bytes(4, "little") for n in numbers)
    block[: len(header)] = header
    block[24 : 24 + len(index)] = index
    head = b"b0VIM 9.0\0\0\0"[:12] + page.to_bytes(4, "little")
    return head.ljust(page, b"\0") + bytes(block)


def made_diff() -> bytes:
    lines = "".join(f"+{line}\n" for line in SOURCE.splitlines())
    return f"diff --git a/names.py b/names.py\n--- a/names.py\n+++ b/names.py\n@@ -0,0 +1,6 @@\n{lines}".encode()


def made_object() -> bytes:
    return zlib.compress(b"blob %d\0" % len(SOURCE) + SOURCE.encode())


TEXTS: dict[str, tuple[str, Callable[[Path], bytes]]] = {
    "zip": ("a.whl", lambda _: made_zip()),
    "tar": ("a.tar", lambda _: made_tar()),
    "ar": ("a.a", lambda _: made_ar()),
    "gzip": ("a.gz", lambda _: gzip.compress(SOURCE.encode())),
    "bzip2": ("a", lambda _: bz2.compress(SOURCE.encode())),
    "xz": ("a.png", lambda _: lzma.compress(SOURCE.encode())),
    "zstd": ("a", lambda _: zstandard.compress(SOURCE.encode())),
    "zlib": ("a", lambda _: zlib.compress(SOURCE.encode())),
    "two gzip members": ("a.gz", lambda _: gzip.compress(b"x") + gzip.compress(SOURCE.encode())),
    "two xz streams": ("a.xz", lambda _: lzma.compress(b"x") + b"\0" * 8 + lzma.compress(SOURCE.encode())),
    "git object": ("0123", lambda _: made_object()),
    "git pack": ("a.pack", made_pack),
    "sqlite": ("a.db", lambda folder: made_sqlite(folder / "a.db")),
    "pickle": ("a.pkl", lambda _: pickle.dumps({"lines": SOURCE.splitlines(keepends=True)}, 4)),
    "pickle of protocol 0": ("a.pkl", lambda _: pickle.dumps(SOURCE, 0)),
    "notebook": ("a.ipynb", lambda _: made_notebook()),
    "html": ("a.html", lambda _: made_html()),
    "source map": ("a.js.map", lambda _: made_map()),
    "inline map": ("a.js", lambda _: made_inline_map()),
    "vim swap": (".names.py.swp", lambda _: made_swap()),
    "diff": ("a.patch", lambda _: made_diff()),
    "utf-16": ("a.txt", lambda _: SOURCE.encode("utf-16")),
    "zip in tar in zstd": ("a", lambda _: zstandard.compress(made_tar(made_zip(), "a.zip"))),
}


def everything(blob: Blob) -> Iterator[Text | Symbol | Problem]:
    for item in unfold(blob, lambda _data: True):
        yield item.content


@pytest.mark.parametrize("kind", TEXTS)
def test_the_source_comes_out_line_by_line(kind: str, tmp_path: Path) -> None:
    name, make = TEXTS[kind]
    found = list(everything(Blob.of_bytes(name, make(tmp_path))))
    assert [f for f in found if isinstance(f, Problem)] == []
    texts = [f.data for f in found if isinstance(f, Text)]
    assert any(SOURCE.strip().encode() in text or (LINE in text and b"\n    pieces = " in text) for text in texts)


def test_bytecode_gives_names_parameters_docstring_and_constants(tmp_path: Path) -> None:
    symbols = [f for f in everything(Blob.of_bytes("names.pyc", made_pyc(tmp_path))) if isinstance(f, Symbol)]
    module, function = symbols[0], next(s for s in symbols if s.name == "parse_wheel_filename")
    assert module.name == "<module>" and module.payload == (tmp_path / "names.pyc").read_bytes()
    assert function.parameters == ("filename", "strict", "parts", "options")
    assert function.docstring == "Split the name of a wheel into its parts."
    assert "the extension must be .whl" in function.constants
    assert {"endswith", "casefold", "pieces"} <= function.identifiers


def test_bytecode_agrees_with_the_compiler_on_nested_code(tmp_path: Path) -> None:
    text = "class A:\n    def f(self, a, /, b, *, c):\n        def g(x):\n            return a + x\n        return g\n"
    (tmp_path / "m.py").write_text(text)
    data = Path(py_compile.compile(str(tmp_path / "m.py"), cfile=str(tmp_path / "m.pyc"))).read_bytes()
    found = {s.qualified_name: s for s in everything(Blob.of_bytes("m.pyc", data)) if isinstance(s, Symbol)}
    assert found["A.f"].parameters == ("self", "a", "b", "c")
    assert found["A.f.g"].parameters == ("x",)


def test_plain_text_is_nothing_but_text() -> None:
    for name, data in (
        ("a.py", SOURCE.encode()),
        ("x.txt", b"x = 1\n"),
        ("BZh", b"BZhello"),
        ("p", b"PKzip"),
        ("e", b""),
    ):
        blob = Blob.of_bytes(name, data)
        assert decoder_for(blob) is None, name


def broken(data: bytes, seed: int) -> Iterator[bytes]:
    """Cut short at many lengths, and with some bits turned."""
    rng = random.Random(seed)
    for _ in range(25):
        yield data[: rng.randrange(len(data))]
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 8)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        yield bytes(damaged)


ALL = {**TEXTS, "bytecode": ("names.pyc", made_pyc)}


@pytest.mark.parametrize("kind", ALL)
def test_broken_bytes_end_as_a_reason(kind: str, tmp_path: Path) -> None:
    name, make = ALL[kind]
    for damaged in broken(make(tmp_path), seed=len(kind)):
        found = list(everything(Blob.of_bytes(name, damaged, Limits(seconds=20))))
        assert not [f for f in found if isinstance(f, Problem) and DECODER_FAULT in f.reason]


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda d: d.NAME)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=600))
def test_any_bytes_behind_a_format_s_first_ones(decoder: object, data: bytes) -> None:
    heads = {
        "zip": b"PK\x03\x04", "tar": b"\0" * 257 + b"ustar\0", "ar": b"!<arch>\n", "git pack": b"PACK\0\0\0\2\0\0\0\5",
        "elf": b"\x7fELF\2\1\1" + b"\0" * 45, "elf symbols": b"\0ELS\2\1\1" + b"\0" * 45, "html": b"<html>",
        "java class": b"\xca\xfe\xba\xbe\0\0\0\x3d\0\x05", "python bytecode": b"\xa7\x0d\r\n" + b"\0" * 12 + b"\xe3",
        "vim swap": b"b0VIM ", "pickle": b"\x80\x04\x95", "ccache": b"\xcc\xac\0", "http cache": b"cc=4,",
        "utf-16": b"\xff\xfe", "json": b'{"a":"\\n', "tags": b"!_TAG_", "sqlite": b"SQLite format 3\0",
        "sphinx inventory": b"# Sphinx inventory version 2\n\n\n\n",
    }  # fmt: skip
    blob = Blob.of_bytes("x.data.ff", heads.get(decoder.NAME, b"") + data)  # type: ignore[attr-defined]
    try:
        list(decoder.decode(blob))  # type: ignore[attr-defined]
    except Unreadable as error:
        assert str(error)


def test_a_bomb_ends_as_a_reason_and_not_as_a_full_disk() -> None:
    limits = Limits(unpacked_bytes=8 << 20, free_bytes=1 << 20)
    bomb = zlib.compress(zlib.compress(b"\0" * (64 << 20), 9), 9)
    problems = [f for f in everything(Blob.of_bytes("bomb", bomb, limits)) if isinstance(f, Problem)]
    assert len(problems) == 1 and "unpacks to more than" in problems[0].reason


def test_files_nested_fifty_deep_end_as_a_reason() -> None:
    data = SOURCE.encode()
    for _ in range(50):
        data = gzip.compress(data)
    problems = [f for f in everything(Blob.of_bytes("deep.gz", data)) if isinstance(f, Problem)]
    assert "nested more than 12 deep" in problems[0].reason


def test_a_zip_member_without_a_name_is_a_file(tmp_path: Path) -> None:
    data = made_zip(name="x").replace(b"x", b"\0", 1)
    with zipfile.ZipFile(io.BytesIO(made_zip(name="xy"))) as archive:
        assert archive.namelist() == ["xy"]
    found = list(everything(Blob.of_bytes("a.zip", data)))
    assert not [f for f in found if isinstance(f, Problem) and DECODER_FAULT in f.reason]


def test_a_marshalled_loop_and_deep_nesting_do_not_crash() -> None:
    value: object = ()
    for _ in range(900):
        value = (value,)
    data = b"\xa7\x0d\r\n" + b"\0" * 12 + marshal.dumps(value)
    problems = [f for f in everything(Blob.of_bytes("a.pyc", data)) if isinstance(f, Problem)]
    assert "nested too deeply" in problems[0].reason


def test_the_source_of_these_tests_is_python() -> None:
    assert ast.parse(SOURCE).body[0].name == "parse_wheel_filename"  # type: ignore[attr-defined]
