"""Deleting from real code: what is left is code, and the gold patch brings back every byte.

The corpus is the standard library of the interpreter that runs the tests. Which lines only the feature's tests run is
made up by a rule that looks random and never changes.
"""

from __future__ import annotations

import ast
import random
import sysconfig
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskgen import lint, syntax
from taskgen.archive import ArchiveEntry
from taskgen.languages.python_project import PythonProject
from taskgen.languages.python_surgery import Irreparable, Surgery
from taskgen.languages.python_syntax import PYTHON, parse_python
from taskgen.syntax import Edit, apply_edits
from taskgen.taskset import Changes, make_patches
from taskgen.types import Definition, Deletion
from tests.project_helpers import MemoryTree

LIBRARY = Path(sysconfig.get_path("stdlib"))
LEFT_OUT = {"site-packages", "dist-packages", "idlelib", "__pycache__", "bad", "data"}
N_FILES, MAX_BYTES, SEED = 60, 60_000, 20
SLOW = settings(
    max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)


def is_valid(source: bytes) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(source)
        except (SyntaxError, ValueError):
            return False
    return True


@cache
def library() -> PythonProject:
    paths = sorted(p.relative_to(LIBRARY).as_posix() for p in LIBRARY.rglob("*.py") if not LEFT_OUT & set(p.parts))
    chosen = random.Random(SEED).sample([p for p in paths if (LIBRARY / p).stat().st_size < MAX_BYTES], N_FILES)
    files = {path: data for path in chosen if is_valid(data := (LIBRARY / path).read_bytes())}
    modules = {path: path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in files}
    return PythonProject(MemoryTree(files), modules, ())


def exclusive(path: str, first: int, last: int) -> bool:
    return zlib.crc32(f"{path}:{first}:{last}".encode()) % 3 != 0


def restored(deletion: Deletion) -> None:
    """The patches of the deletion bring the pristine bytes back; ``make_patches`` compares them."""

    def entries(files: Iterable[tuple[str, bytes | None]]) -> dict[str, ArchiveEntry | None]:
        return {p: None if d is None else ArchiveEntry(path=p, content=d, executable=False) for p, d in files}

    pristine = entries((path, library().sources[path].source) for path in deletion.files)
    sources = Changes(pristine=pristine, workspace=entries(deletion.files.items()))
    made = make_patches(sources, Changes(pristine={}, workspace={}))
    assert made.gold
    assert not made.tests


def is_still_code(deletion: Deletion) -> None:
    assert deletion.files
    for path, data in deletion.files.items():
        pristine = library().sources[path].source
        assert data != pristine
        assert deletion.removed_lines[path] <= set(range(1, pristine.count(b"\n") + 2))
        if data is not None:
            assert not syntax.has_errors(syntax.parse(PYTHON, data)), path
            assert is_valid(data), path


def all_definitions() -> list[Definition]:
    return list(library().definitions.values())


def functions() -> list[Definition]:
    times = Counter((d.path, d.qualified_name) for f in library().sources.values() for d in f.definitions)
    once = [d for d in all_definitions() if d.kind != "class" and times[d.path, d.qualified_name] == 1]
    # A name that only `global` in a body defines goes with the body.
    return [d for d in once if b"global " not in library().sources[d.path].source[d.body_byte : d.end_byte]]


def test_the_corpus_is_what_it_should_be() -> None:
    assert len(library().sources) >= 50
    assert len(functions()) >= 300


@SLOW
@given(st.data())
def test_removed_bodies_keep_signatures_and_leave_no_undefined_name(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted({d.path for d in functions()})))
    chosen = data.draw(st.lists(st.sampled_from([d for d in functions() if d.path == path]), min_size=1, unique=True))
    keep = data.draw(st.booleans())
    surgery = Surgery(library(), exclusive)
    for definition in chosen:
        surgery.remove_body(definition, keep_docstring=keep)
    surgery.remove_dead_imports()
    deletion = surgery.deletion()
    is_still_code(deletion)
    restored(deletion)
    edited = deletion.files[path]
    assert edited is not None
    after = {d.qualified_name: d for d in parse_python(path, "", edited).definitions}
    for definition in chosen:
        left = after[definition.qualified_name]
        assert left.signature == definition.signature
        assert left.docstring == (definition.docstring if keep else "")
        assert edited[left.after_doc_byte if left.docstring else left.body_byte : left.end_byte].split() == [
            b"raise", b"NotImplementedError"
        ]  # fmt: skip
    found = lint.new_findings({path: library().sources[path].source}, {path: edited})
    assert not [line for line in found if " F82" in line or "syntax" in line]


@SLOW
@given(st.data())
def test_removed_definitions_take_every_reference_with_them(data: st.DataObject) -> None:
    surgery = Surgery(library(), exclusive)
    for definition in data.draw(st.lists(st.sampled_from(all_definitions()), min_size=1, max_size=3, unique=True)):
        trial = surgery.trial()
        try:
            trial.remove(definition)
            trial.remove_dead()
        except Irreparable:
            continue
        surgery = trial
    deletion = surgery.deletion()
    if not deletion.files:
        return
    is_still_code(deletion)
    restored(deletion)
    edited = {p: d for p, d in deletion.files.items() if d is not None}
    pristine = {p: library().sources[p].source for p in edited}
    assert not [line for line in lint.new_findings(pristine, edited) if " F82" in line or "syntax" in line]
    for deleted in deletion.deleted:
        path, name = deleted.definition.path, deleted.definition.qualified_name
        left = deletion.files[path]
        assert left is None or name not in {d.qualified_name for d in parse_python(path, "", left).definitions}


def test_removed_files_take_every_import_with_them() -> None:
    n_removed = 0
    for path in sorted(library().sources):
        surgery = Surgery(library(), exclusive)
        try:
            surgery.remove_file(path)
            surgery.remove_dead()
        except Irreparable:
            continue
        deletion = surgery.deletion()
        assert deletion.files[path] is None
        is_still_code(deletion)
        n_removed += 1
    assert n_removed >= 30


@given(st.binary(max_size=60), st.data())
def test_edits_never_lose_what_they_do_not_cover(source: bytes, data: st.DataObject) -> None:
    spans = st.tuples(st.integers(0, len(source)), st.integers(0, len(source))).map(sorted)
    cuts = [Edit(start=a, end=b) for a, b in data.draw(st.lists(spans))]
    gone = {n for cut in cuts for n in range(cut.start, cut.end)}
    assert apply_edits(source, cuts) == bytes(byte for n, byte in enumerate(source) if n not in gone)
