"""Jupyter notebooks, in each version of their format."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from compiled_helpers import blob, is_told, lengths, mutations
from hypothesis import given, settings
from hypothesis import strategies as st

from taskgen.leaks.blob import Blob, Unreadable
from taskgen.leaks.decoders import notebook

SOURCE = 'def rare_function(text):\n    """A \\"quoted\\" word: \u20ac."""\n    return text.partition("\\n")\n'
LINES = SOURCE.splitlines(keepends=True)


def cell(**more: object) -> dict[str, Any]:
    return {"cell_type": "code", "metadata": {"tags": ["one tag", "another"]}, "outputs": [], **more}


def sheet(*cells: dict[str, Any]) -> dict[str, Any]:
    return {"cells": list(cells), "metadata": {"author": "a rare author"}, "nbformat": 4, "nbformat_minor": 5}


VERSION_4 = sheet(
    {"cell_type": "markdown", "source": ["# A heading"], "metadata": {}},
    cell(
        source=LINES,
        outputs=[
            {"output_type": "stream", "name": "stdout", "text": ["a printed line\n", "and another\n"]},
            {"output_type": "display_data", "data": {"text/html": "<pre>" + "a row<br>" * 40 + "</pre>"}},
            {"output_type": "error", "ename": "E", "evalue": "a rare error", "traceback": ["first", "second"]},
        ],
    ),
)


def texts(document: object, name: str = "a.ipynb", **how: Any) -> dict[str, str]:  # noqa: ANN401
    root = blob(json.dumps(document, **how).encode(), name)
    assert notebook.matches(root.head, root.name)
    return {found.trail[-1]: found.read().decode() for found in notebook.decode(root) if isinstance(found, Blob)}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_sources_outputs_and_the_rest(indent: int | None, is_ascii: bool) -> None:
    found = texts(VERSION_4, indent=indent, ensure_ascii=is_ascii)
    assert found["(sources).py"] == f"# A heading\n\n{SOURCE}"
    assert found["(text/html)"].startswith("<pre>a row<br>")
    rest = found["(texts)"]
    assert "a printed line\nand another\n" in rest and "first\nsecond" in rest and "one tag\nanother" in rest
    assert "a rare error" in rest and "a rare author" in rest


def test_a_source_that_is_one_text() -> None:
    assert texts(sheet(cell(source=SOURCE)))["(sources).py"] == SOURCE


def test_version_3() -> None:
    document = {"worksheets": [{"cells": [cell(input=LINES, prompt_number=1)]}], "nbformat": 3}
    assert texts(document)["(sources).py"] == SOURCE


def test_a_checkpoint_is_known_by_its_content() -> None:
    assert texts(sheet(cell(source=LINES)), name="a-checkpoint")["(sources).py"] == SOURCE


@pytest.mark.parametrize("document", [None, {}, {"cells": None}, {"cells": [None, 1, {}]}, {"cells": {"source": 3}}])
def test_odd_documents(document: object) -> None:
    list(notebook.decode(blob(json.dumps(document).encode())))


def test_bytes_that_are_no_text_do_not_hide_the_rest() -> None:
    data = json.dumps(sheet(cell(source=["bad \u20ac text\n", *LINES])), ensure_ascii=False).encode()
    damaged = data.replace("\u20ac text".encode(), b"\xff text")
    (found, *_) = (f.read() for f in notebook.decode(blob(damaged)) if isinstance(f, Blob))
    assert SOURCE.encode() in found


@pytest.mark.parametrize(("name", "head"), [("a", b'{"a": 1}'), ("a.ipynb", b""), ("a.ipynb", b"cells"), ("a", b"[]")])
def test_other_bytes_are_no_notebook(name: str, head: bytes) -> None:
    assert not notebook.matches(head, name)


def test_a_cut_notebook_is_told() -> None:
    data = json.dumps(VERSION_4).encode()
    assert not is_told(data, notebook)
    for length in lengths(data):
        with pytest.raises(Unreadable):
            list(notebook.decode(blob(data[:length])))


@pytest.mark.parametrize("part", [b'{"a":', b"[", b'{"cells":['], ids=repr)
def test_deep_nesting_is_told(part: bytes) -> None:
    with pytest.raises(Unreadable):
        list(notebook.decode(blob(b'{"cell_type":' + part * 200_000)))


def test_more_values_than_fit_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MAX_NODES", 1000)
    with pytest.raises(Unreadable, match="more than 1,000 values"):
        list(notebook.decode(blob(b'{"cells":[' + b"[]," * 2000 + b"[]]}")))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_bytes_end_well(data: st.DataObject) -> None:
    is_told(data.draw(mutations(json.dumps(VERSION_4).encode())), notebook)


def test_many_random_faults_end_well() -> None:
    rng, whole = random.Random(1), json.dumps(VERSION_4).encode()
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.choice(b'{}[]":,\\u0e\xff')
        is_told(bytes(data), notebook)
