"""What rules say of addresses and of package managers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from taskgen.monitor import tables
from taskgen.monitor.machine import UNKNOWN, Machine
from taskgen.monitor.tables import words_of

_SCP = re.compile(r"^(?:[\w.-]+@)?([\w.-]+):(?!//)")
_OPTION_VALUES = words_of(
    "-r --requirement -c --constraint -d --dest -t --target -i --index-url --extra-index-url -f --find-links -e "
    "--editable --root --prefix --python --python-version --platform --abi --implementation --progress-bar -w "
    "--wheel-dir --no-binary --only-binary -n --name -g -C --cache-dir --timeout --retries --proxy"
)


def host_of(url: str) -> str:
    """The host of an address, without user and port; UNKNOWN where it is not known."""
    if "://" not in url:
        if found := _SCP.match(url):
            return found[1]
        url = f"//{url}"
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return UNKNOWN
    return UNKNOWN if UNKNOWN in host or not host else host


def fetch(machine: Machine, url: str, *, by: str, is_clone: bool = False) -> None:
    """Something is fetched from an address, or a connection to a host is made."""
    if url.startswith("file://"):
        machine.read(url)
        return
    host = host_of(url)
    if tables.LOCAL_HOST.match(host):
        return
    shown = f"{by} {url}"[:200]
    known = host != UNKNOWN and bool(tables.CODE_HOSTS.search(host))
    if machine.project.is_named_in(url) and (known or is_clone or re.search(r"\.(?:whl|tar\.\w+|zip|py|git)\b", url)):
        machine.hit("fetch-project", shown, host, by)
    elif known or is_clone:
        machine.hit("network", shown, host, by)
    elif not machine.in_solution:
        machine.hit("other-network", shown, host, by)


def run_fetcher(machine: Machine, name: str, words: Sequence[str]) -> None:
    """Follow curl, wget and their like: every word that is an address is fetched."""
    if name in ("nc", "ncat", "netcat", "telnet", "ping", "dig", "nslookup", "host", "socat", "ssh"):
        targets = [word for word in words if not word.startswith("-") and not word.isdigit()]
        if "-l" not in words and targets:
            fetch(machine, targets[0], by=name)
        return
    if name in ("gh", "glab"):
        names_it = any(machine.project.is_named_in(word) for word in words)
        machine.hit("fetch-project" if names_it else "network", f"{name} {' '.join(words)}"[:120], name)
        return
    skipped = False
    for word in words:
        if skipped:
            skipped = False
        elif (
            word in ("-o", "-O", "--output", "-H", "-d", "--data", "-A", "-u", "-X", "-P", "-m", "-e")
            and name != "wget"
        ):
            skipped = word not in ("-O", "-P")
        elif word in ("-O", "-P", "-o", "-U"):
            skipped = True
        elif not word.startswith("-") and ("." in word or ":" in word or "localhost" in word or UNKNOWN in word):
            fetch(machine, word, by=name)


def run_manager(machine: Machine, name: str, words: Sequence[str]) -> None:
    """Follow a package manager: what it would fetch."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in _OPTION_VALUES and rest:
            rest.pop(0)
    if name == "uv" and rest[:1] in (["pip"], ["tool"]):
        rest.pop(0)
    commands = tables.PACKAGE_MANAGERS[name]
    command = rest.pop(0) if commands and rest else ""
    if commands and command not in commands:
        return
    shown = f"{name} {command}".strip()
    for package in _packages(machine, rest):
        if machine.project.is_package(package):
            machine.hit("fetch-project", f"{shown} {package}", package.split("=")[0], name)
        elif "://" in package or package.startswith("git+"):
            fetch(machine, package.removeprefix("git+"), by=shown, is_clone=True)
        else:
            machine.hit("other-packages", f"{shown} {package}", package.split("=")[0], name)


def _packages(machine: Machine, words: Sequence[str]) -> list[str]:
    """The packages among the words; local paths are no package, but other copies among them are read."""
    found: list[str] = []
    option = ""
    for word in words[1:] if words[:1] == ["versions"] else words:  # pip index versions NAME
        if option:
            if option in ("-e", "--editable") and "://" in word:
                found.append(word)
            option = ""
        elif word.startswith("-"):
            option = word if word in _OPTION_VALUES else ""
        elif word.startswith((".", "/", "~")) or (word.endswith((".whl", ".tar.gz", ".zip")) and "://" not in word):
            machine.read(word)
        elif word and word != UNKNOWN:
            found.append(word)
    return found
