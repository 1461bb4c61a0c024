"""What a commit says of itself: its version and its licence. Read as text, never run."""

from __future__ import annotations

import re
import tomllib
from email.parser import BytesHeaderParser
from pathlib import Path

from packaging.version import InvalidVersion, Version

from taskgen.git import describe_tag, read_tree

_MAX_BYTES = 1 << 20
_TAG = re.compile(r"\d+(?:[._]\d+)*(?:[._-]?(?:a|b|rc|alpha|beta|post|dev)[._-]?\d*)*", re.IGNORECASE)
_LICENCE_FILE = re.compile(r"(?:LICEN[CS]E|COPYING|UNLICENSE)(?:[.-][\w.-]+)?", re.IGNORECASE)

# The first whose words are all in the text; the narrower ones come first.
_TEXTS = (
    ("Apache-2.0", ("apache license", "version 2.0")),
    ("AGPL-3.0-only", ("gnu affero general public license", "version 3")),
    ("LGPL-3.0-only", ("gnu lesser general public license", "version 3")),
    ("LGPL-2.1-only", ("gnu lesser general public license", "version 2.1")),
    ("GPL-3.0-only", ("gnu general public license", "version 3")),
    ("GPL-2.0-only", ("gnu general public license", "version 2")),
    ("MPL-2.0", ("mozilla public license", "2.0")),
    ("BSD-3-Clause", ("redistribution and use in source and binary forms", "neither the name")),
    ("BSD-3-Clause", ("redistribution and use in source and binary forms", "may not be used to endorse")),
    ("BSD-2-Clause", ("redistribution and use in source and binary forms",)),
    ("MIT", ("permission is hereby granted, free of charge", "the above copyright notice")),
    ("ISC", ("permission to use, copy, modify, and/or distribute", "copyright notice")),
    ("PSF-2.0", ("python software foundation license",)),
    ("Unlicense", ("this is free and unencumbered software",)),
    ("Zlib", ("this software is provided 'as-is'", "must not be misrepresented")),
)


def tag_version(bare: Path, commit: str) -> str:
    """The version in the name of the nearest tag (``v1.2``, ``release-1_2``), or "0"."""
    tag = describe_tag(bare, commit)
    match = _TAG.search(tag) if tag else None
    if match is None:
        return "0"
    try:
        return str(Version(match[0].replace("_", ".")))
    except InvalidVersion:
        return "0"


def licence_of(bare: Path, commit: str) -> str:
    """The licence by the package's metadata, else by its licence file; empty if neither tells."""
    contents = {
        item.path: content
        for item, content in read_tree(
            bare,
            commit,
            lambda item: (
                "/" not in item.path
                and not item.is_link
                and item.size_bytes <= _MAX_BYTES
                and (item.path in ("PKG-INFO", "pyproject.toml") or bool(_LICENCE_FILE.fullmatch(item.path)))
            ),
        )
    }
    for path, reader in (("PKG-INFO", _from_metadata), ("pyproject.toml", _from_pyproject)):
        if path in contents and (found := reader(contents[path])):
            return found
    texts = [contents[path] for path in sorted(contents) if _LICENCE_FILE.fullmatch(path)]
    return next((found for text in texts if (found := _from_text(text))), "")


def _from_metadata(raw: bytes) -> str:
    headers = BytesHeaderParser().parsebytes(raw)
    for key in ("License-Expression", "License"):
        value = str(headers.get(key, "")).strip()
        # Some packages put the whole text of the licence there.
        if value and value.upper() != "UNKNOWN":
            return value if "\n" not in value and len(value) <= 80 else _from_text(value.encode())
    return ""


def _from_pyproject(raw: bytes) -> str:
    try:
        project = tomllib.loads(raw.decode("utf-8")).get("project")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        # A file that Python's packaging tools would refuse too says nothing about the licence.
        return ""
    value = project.get("license") if isinstance(project, dict) else None
    if isinstance(value, dict):
        value = value.get("text")
    return value.strip() if isinstance(value, str) and len(value) <= 80 else ""


def _from_text(raw: bytes) -> str:
    text = " ".join(raw.decode("utf-8", "replace").lower().split())
    return next((name for name, words in _TEXTS if all(word in text for word in words)), "")
