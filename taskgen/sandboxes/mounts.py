"""What of the host a bubblewrap sandbox sees, as options of bwrap. Everything else is not there.

When taskgen runs as root, the sandbox's uid owns root's files: whatever is bound can be read. So /etc is
a short list of names, and the home directories are not bound at all.
"""

from __future__ import annotations

import configparser
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from taskgen.sandbox import HOME_DIR, UID

ETC = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "ssl/certs",
    "ssl/openssl.cnf",
)
ETC_NETWORK = ("gai.conf", "hosts", "pip.conf", "resolv.conf", "xdg/pip")
SYNTHETIC_ETC = {
    "group": f"root:x:0:\nagent:x:{UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "passwd": (
        "root:x:0:0:root:/root:/usr/sbin/nologin\n"
        f"agent:x:{UID}:{UID}:agent:{HOME_DIR}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
}
# What an installer needs to find its index. Settings that change where or how pip installs stay out.
NETWORK_VARIABLES = (
    "PIP_CERT",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_DISABLE_PIP_VERSION_CHECK",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "PIP_NO_INDEX",
    "PIP_PROXY",
    "PIP_RETRIES",
    "PIP_TIMEOUT",
    "PIP_TRUSTED_HOST",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "ALL_PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
CERTIFICATE_VARIABLES = tuple(name for name in NETWORK_VARIABLES if "CERT" in name or "_CA" in name)


# Of /usr, what programs, compilers and interpreters need. Whatever else a machine has there (cloud tools, editors) may
# bring copies of anybody's library.
USR = ("bin", "sbin", "include", "lib32", "lib64", "libexec", "libx32", "local")
USR_LIB = (
    "*-linux-*", "*.so*", "bfd-plugins", "binutils", "compat-ld", "cpp", "file", "gcc*", "git-core", "gold-ld", "jvm",
    "locale", "lsb", "mime", "openssh", "os-release", "perl*", "pkgconfig", "python3*", "ssl", "tcltk", "tcl8*",
    "terminfo", "tk8*",
)  # fmt: skip
USR_SHARE = (
    "ca-certificates", "dpkg", "file", "git-core", "i18n", "locale", "mime", "misc", "perl*", "pkgconfig", "python3",
    "python-wheels", "tabset", "tcltk", "terminfo", "zoneinfo*",
)  # fmt: skip
# Packages of the machine's own interpreters: environments do not use them, and any of them may be a twin.
PACKAGES = ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages")


def write_etc(directory: Path) -> None:
    """Write the made-up files of /etc (users, host names) into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in SYNTHETIC_ETC.items():
        (directory / name).write_text(text)


def system(etc: Path) -> list[str]:
    """The read-only system: /usr, a little of /etc, and the interpreter that runs taskgen."""
    options = []
    for place in _usr():
        options += ["--ro-bind", str(place), str(place)]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    for name in ETC:
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in SYNTHETIC_ETC:
        options += ["--ro-bind", str(etc / name), f"/etc/{name}"]
    base = Path(sys.base_prefix).resolve()
    if not base.is_relative_to("/usr"):
        options += ["--ro-bind", str(base), str(base)]
    for place in hidden():
        options += ["--perms", "0555", "--size", "4096", "--tmpfs", str(place), "--remount-ro", str(place)]
    return options


def _usr() -> list[Path]:
    places = [Path("/usr", name) for name in USR]
    for folder, patterns in (("lib", USR_LIB), ("share", USR_SHARE)):
        places += sorted({place for pattern in patterns for place in Path("/usr", folder).glob(pattern)})
    return [place for place in places if place.exists()]


def hidden() -> list[Path]:
    """Folders of the system that are empty in a sandbox: the packages of this machine's interpreters."""
    roots = dict.fromkeys((Path("/usr"), Path("/usr/local"), Path(sys.base_prefix).resolve()))
    found = {place for root in roots for pattern in PACKAGES for place in root.glob(pattern) if place.is_dir()}
    return sorted(place for place in found if not place.is_symlink())


def is_shared(path: Path) -> bool:
    """Whether a path is the same file in the sandbox and on this machine, ``/etc`` and ``hidden`` folders apart."""
    roots = [*_usr(), Path(sys.base_prefix).resolve()]
    return any(path.resolve().is_relative_to(root.resolve()) for root in roots)


def network() -> list[str]:
    """What an installing sandbox sees besides: names, pip's settings, certificates, local indexes."""
    options = ["--share-net"]
    for name in ETC_NETWORK:
        options += ["--ro-bind-try", os.path.realpath(f"/etc/{name}"), f"/etc/{name}"]
    certificates = [os.environ[name] for name in CERTIFICATE_VARIABLES if name in os.environ]
    for path in [*certificates, *map(str, local_indexes())]:
        if Path(path).is_absolute() and not Path(path).is_relative_to("/etc"):
            options += ["--ro-bind-try", path, path]
    return options


def network_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of the host that an installing sandbox gets."""
    return {name: environ[name] for name in NETWORK_VARIABLES if environ.get(name)}


def local_indexes() -> list[Path]:
    """The directories that the machine's pip configuration and variables name as package indexes."""
    directories: dict[Path, None] = {}
    for value in _index_values():
        for word in shlex.split(value):
            path = Path(unquote(urlsplit(word).path)) if word.startswith("file://") else Path(word)
            # The pages of a simple index link to files beside it.
            path = path.parent if path.name == "simple" else path
            if path.is_absolute() and path.is_dir() and path != Path("/"):
                directories[path] = None
    return list(directories)


def _index_values() -> Iterator[str]:
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        yield os.environ.get(name, "")
    for file in ("/etc/pip.conf", "/etc/xdg/pip/pip.conf"):
        parser = configparser.RawConfigParser()
        parser.read(file)
        for section in parser.sections():
            for option in ("find-links", "index-url", "extra-index-url"):
                yield parser.get(section, option, fallback="")
