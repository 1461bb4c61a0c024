"""Copies of the project that are installed beside it, what editable installs leave, and where it could be fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator

from taskgen.leaks.findings import Finding, without_credentials
from taskgen.leaks.policy import Action

_METADATA = re.compile(r"(?:^|/)([^/]+)\.(?:dist-info/METADATA|egg-info/PKG-INFO|egg-info)$")
_EDITABLE = re.compile(r"(?:^|/)(?:__editable__[^/]*\.(?:pth|py)|[^/]+\.egg-link)$")
_INDEX_FILES = re.compile(r"(?:^|/)(?:pip\.conf|pip\.ini|\.pypirc|uv\.toml|\.npmrc|\.yarnrc(?:\.yml)?|settings\.xml)$")
_INDEX = re.compile(rb"(?:index[-_]url|find-links|registry|npmRegistryServer|repository|<url>)\s*[=:]?\s*[\"']?(\S+)")
_VENDOR = re.compile(
    r"(?:^|/)(?:_vendor|vendor|vendored|_vendored|third_party|extern|externals|node_modules)/(?:[^/]+/)*?"
)
_NAME = re.compile(rb"^Name:\s*(\S+)", re.M)


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def examine(
    paths: Iterable[str], read: Callable[[str], bytes | None], distribution: str, modules: Iterable[str] = ()
) -> Iterator[Finding]:
    """Findings about a project's distribution among the files of an environment or a tree.

    Args:
        distribution: the project's name on its index.
        modules: its top-level packages.
    """
    wanted = normalised(distribution)
    tops = {module.split(".")[0] for module in modules}
    for path in paths:
        if found := _METADATA.search(path):
            yield from _distribution(path, found.group(1), wanted, read)
        elif _EDITABLE.search(path) and wanted.replace("-", "_") in normalised(path).replace("-", "_"):
            shown = without_credentials((read(path) or b"").decode("utf-8", "replace"))[:200]
            yield _finding(
                path, "what an editable install leaves: it must point to the workspace", shown, Action.REPORT
            )
        elif _INDEX_FILES.search(path) and (index := _INDEX.search(read(path) or b"")):
            # Redacted before it is cut, so that half a password is not taken for a host.
            shown = without_credentials(index.group().decode("utf-8", "replace"))[:200]
            yield _finding(path, "an index from which the project could be downloaded", shown, Action.REPORT)
        elif (
            tops and (vendor := _VENDOR.search(path)) and path[vendor.end() :].split("/")[0].removesuffix(".py") in tops
        ):
            yield _finding(path, f"a vendored copy of {distribution}, by its name", "", Action.REPORT)


def _distribution(path: str, stem: str, wanted: str, read: Callable[[str], bytes | None]) -> Iterator[Finding]:
    if normalised(stem.split("-")[0]) != wanted:
        return
    metadata = read(path) or b""
    name = _NAME.search(metadata)
    if name is not None and normalised(name.group(1).decode("utf-8", "replace")) != wanted:
        return
    folder = path.rpartition("/")[0]
    record = (read(f"{folder}/RECORD") or b"").decode("utf-8", "replace")
    sources = [line.split(",")[0] for line in record.splitlines() if line.split(",")[0].endswith(".py")]
    copied = [source for source in sources if not source.rpartition("/")[2].startswith("__editable__")]
    if copied:
        yield _finding(path, f"{stem} is installed here as a copy", ", ".join(copied[:5]), Action.SCRUB)
    elif direct := read(f"{folder}/direct_url.json"):
        try:
            url = without_credentials(str(json.loads(direct).get("url")))
        except (ValueError, AttributeError):
            url = "(broken)"
        yield _finding(path, f"{stem} is installed as editable; it must point to the workspace", url, Action.REPORT)


def _finding(path: str, message: str, excerpt: str, action: Action) -> Finding:
    return Finding(
        detector="installed", path=path, level="", definition="", action=action.value, excerpt=excerpt,
        severity="error" if action is Action.SCRUB else "note", message=message,
    )  # fmt: skip
