"""Text in unknown bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskgen.leaks.decoders.printable import MIN_CHARS, strings


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"\0\1frobnicate\0ab\0\xff\xfe\tdef f():\n    return x\0", [b"frobnicate", b"\tdef f():", b"    return x"]),
        ("\0caf\u00e9 \u20ac 5 \U0001f600!\0".encode(), ["caf\u00e9 \u20ac 5 \U0001f600!".encode()]),
        (b"\x80\x81broken\xc2 start\x80", [b"broken", b" start"]),
        (b"\xff\xff" + "wide text".encode("utf-16-le") + b"\xff", [b"wide text"]),
        (b"\0\0\1\2ab\0cd\0", []),
        (b"", []),
    ],
)  # fmt: skip
def test_runs(data: bytes, lines: list[bytes]) -> None:
    assert [line for line in strings(data).split(b"\n") if line] == lines


@given(st.binary(max_size=200), st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=MIN_CHARS))
def test_every_text_between_nuls_is_found(noise: bytes, text: str) -> None:
    assert text.encode() in strings(noise + b"\0\0" + text.encode() + b"\0" + noise)
    assert text.encode() in strings(noise + b"\0\0\0\0" + text.encode("utf-16-le") + b"\n\n" + noise)


@given(st.binary(max_size=2000))
def test_all_that_is_given_is_text_of_the_data(data: bytes) -> None:
    for line in strings(data).split(b"\n"):
        assert not line or line in data or line in data.replace(b"\0", b"")
        line.decode()
