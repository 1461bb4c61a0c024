"""Repositories that are source distributions (sdists) of a Python package index.

The file is found by the index's own page and fetched as a file. pip is not asked: ``pip download`` of an
sdist runs the package's build code on this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import requests
from packaging.version import InvalidVersion, Version
from pypi_simple import (
    DistributionPackage,
    NoSuchProjectError,
    PyPISimple,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from taskgen.atomic import disk_faults, locked, replacing_directory, replacing_file
from taskgen.errors import SourceError
from taskgen.git import has_revision, import_tree, redacted
from taskgen.sources.facts import licence_of
from taskgen.sources.sdist_files import SUFFIXES, sdist_entries
from taskgen.types import Checkout, RepoSpec, Source, SourceKind

DEFAULT_INDEX = "https://pypi.org/simple/"
MAX_SDIST_BYTES = 512 << 20
_TIMEOUT_S = (10.0, 60.0)
_ATTEMPTS = 3


def fetch(spec: RepoSpec, cache: Path) -> Checkout:
    """Fetch, verify and import the sdist of ``spec``. Raises as ``table.fetch``."""
    folder = cache / "sdists"
    named = folder / f"{spec.location}-{spec.revision}.json"
    sha256 = spec.sha256 or _known_digest(named)
    record = _cached(folder / sha256, spec) if sha256 else None
    if record is None:
        with _session() as session:
            package = _find(spec, session)
            sha256 = _digest(spec, package)
            record = _obtain(spec, package, sha256, folder / sha256, session)
    assert sha256
    if _known_digest(named) != sha256:
        with replacing_file(named) as scratch:
            scratch.write_text(json.dumps({"sha256": sha256}), "utf-8")
    bare = folder / sha256 / "repo.git"
    return Checkout(
        name=spec.name,
        source=Source(kind=SourceKind.SDIST, url=record["url"], revision=spec.revision, sha256=sha256),
        bare=bare,
        commit=record["commit"],
        version=spec.revision,
        licence=spec.licence or licence_of(bare, record["commit"]),
        warnings=tuple(record["warnings"]),
    )


# --- Cache ---------------------------------------------------------------------------------------


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        # Not there, or half of another program's: it is made again.
        return None
    return value if isinstance(value, dict) else None


def _known_digest(named: Path) -> str | None:
    record = _json(named)
    return str(record["sha256"]) if record and "sha256" in record else None


def _cached(entry: Path, spec: RepoSpec) -> dict[str, Any] | None:
    record = _json(entry / "record.json")
    if record is None or not has_revision(entry / "repo.git", str(record.get("commit"))):
        return None
    if (record.get("project"), record.get("version")) != (spec.location, spec.revision):
        raise SourceError(
            f"{spec.where}: {spec.name}: sha256 {entry.name} is that of "
            f"{record.get('project')} {record.get('version')}, not of {spec.location} {spec.revision}",
            hint="correct sha256:, or leave it out",
        )
    return record


def _obtain(
    spec: RepoSpec, package: DistributionPackage, sha256: str, entry: Path, session: requests.Session
) -> dict[str, Any]:
    with locked(entry):
        # Another process may have made it while this one waited.
        if record := _cached(entry, spec):
            return record
        with replacing_directory(entry) as fresh:
            archive = fresh / package.filename
            _download(spec, package, sha256, archive, session)
            warnings = [f"{spec.name}: version {spec.revision} is yanked"] if package.is_yanked else []
            # The label goes into the commit: the same archive gives the same commit anywhere.
            commit = import_tree(fresh / "repo.git", sdist_entries(archive, warnings), label=package.filename)
            record = {
                "project": spec.location,
                "version": spec.revision,
                "url": redacted(package.url.partition("#")[0]),
                "commit": commit,
                "warnings": warnings,
            }
            (fresh / "record.json").write_text(json.dumps(record, indent=1), "utf-8")
    return record


# --- Index ---------------------------------------------------------------------------------------


def _session() -> requests.Session:
    session = requests.Session()
    retry = Retry(
        total=4,
        connect=2,
        backoff_factor=0.5,
        status_forcelist=(429, 500, 502, 503, 504),
        allowed_methods=("GET", "HEAD"),
    )
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    return session


def _index() -> str:
    return os.environ.get("PIP_INDEX_URL") or DEFAULT_INDEX


def _same(version: str | None, wanted: str) -> bool:
    try:
        return version is not None and Version(version) == Version(wanted)
    except InvalidVersion:
        return version == wanted


def _order(version: str) -> tuple[bool, Version]:
    try:
        return True, Version(version)
    except InvalidVersion:
        return False, Version("0")


def _find(spec: RepoSpec, session: requests.Session) -> DistributionPackage:
    index = _index()
    where = f"{spec.where}: {spec.name}"
    try:
        page = PyPISimple(index, session=session).get_project_page(spec.location, timeout=_TIMEOUT_S)
    except NoSuchProjectError as error:
        raise SourceError(
            f"{where}: {redacted(index)} has no project {spec.location!r}", hint="check the name in pypi:"
        ) from error
    except (requests.RequestException, UnsupportedContentTypeError, UnsupportedRepoVersionError) as error:
        raise SourceError(
            f"{where}: cannot read the package index {redacted(index)}: {_reason(error)}",
            hint="check the network, or set PIP_INDEX_URL to an index that can be reached",
        ) from error
    sdists = [p for p in page.packages if p.package_type == "sdist" and p.filename.endswith(SUFFIXES)]
    found = [p for p in sdists if _same(p.version, spec.revision)]
    if not found:
        versions = sorted({p.version for p in sdists if p.version}, key=_order)
        other = any(_same(p.version, spec.revision) for p in page.packages)
        missing = "has no sdist, only built files" if other else "does not exist"
        near = ", ".join(_near(versions, spec.revision)) or "none"
        raise SourceError(
            f"{where}: version {spec.revision} of {spec.location} {missing} on {redacted(index)}",
            hint=f"versions with an sdist: {near}",
        )
    return min(found, key=lambda p: (SUFFIXES.index(_suffix(p.filename)), p.filename))


def _suffix(filename: str) -> str:
    return next(suffix for suffix in SUFFIXES if filename.endswith(suffix))


def _near(versions: list[str], wanted: str, count: int = 6) -> list[str]:
    """The versions around the wanted one, in order."""
    below = sum(_order(version) < _order(wanted) for version in versions)
    start = max(0, min(below - count // 2, len(versions) - count))
    return versions[start : start + count]


def _reason(error: Exception) -> str:
    text = redacted(str(error))
    return text if len(text) <= 300 else f"{text[:300]}..."


def _digest(spec: RepoSpec, package: DistributionPackage) -> str:
    listed = package.digests.get("sha256")
    if listed is None and spec.sha256 is None:
        raise SourceError(
            f"{spec.where}: {spec.name}: the index gives no sha256 for {package.filename}",
            hint="add sha256: to the entry",
        )
    if spec.sha256 and listed and listed != spec.sha256:
        raise _mismatch(spec, package, spec.sha256, listed)
    return spec.sha256 or str(listed)


def _mismatch(spec: RepoSpec, package: DistributionPackage, expected: str, found: str) -> SourceError:
    return SourceError(
        f"{spec.where}: {spec.name}: checksum mismatch of {package.filename}: "
        f"expected sha256 {expected}, found {found}",
        hint="correct sha256: if the expected one is wrong; else do not use the file",
    )


def _download(
    spec: RepoSpec, package: DistributionPackage, sha256: str, archive: Path, session: requests.Session
) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            found = _stream(spec, package.url, archive, session)
            break
        except requests.RequestException as error:
            # Retry does not cover a body that breaks off; an answer such as 404 will not change.
            if attempt < _ATTEMPTS and error.response is None:
                continue
            raise SourceError(
                f"{spec.where}: {spec.name}: cannot download {redacted(package.url)}: {_reason(error)}",
                hint="check the network and try again",
            ) from error
    if found != sha256:
        raise _mismatch(spec, package, sha256, found)


def _stream(spec: RepoSpec, url: str, archive: Path, session: requests.Session) -> str:
    digest = hashlib.sha256()
    total = 0
    with session.get(url, stream=True, timeout=_TIMEOUT_S) as response:
        response.raise_for_status()
        with disk_faults(archive.parent), archive.open("wb") as out:
            for chunk in response.iter_content(1 << 16):
                total += len(chunk)
                if total > MAX_SDIST_BYTES:
                    raise SourceError(f"{spec.where}: {spec.name}: the sdist is over {MAX_SDIST_BYTES} bytes")
                digest.update(chunk)
                out.write(chunk)
    return digest.hexdigest()
