"""Calls of the ``git`` program in an isolated environment: no user configuration, hooks or prompts."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from taskgen import process
from taskgen.errors import CommandError, PrerequisiteError, SourceError, StoreError

NO_LIMIT_BYTES = 1 << 40
DEFAULT_TIMEOUT_S = 600.0

# What a git that talks to the network needs of the caller's environment. The rest stays out.
_KEPT = (
    "ALL_PROXY",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "PATH",
    "SSH_AUTH_SOCK",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TMPDIR",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)

_CONFIG = (
    ("core.hooksPath", "/dev/null"),
    ("core.compression", "1"),
    ("core.fsmonitor", "false"),
    ("core.fileMode", "true"),
    ("core.symlinks", "true"),
    ("core.autocrlf", "false"),
    ("core.attributesFile", "/dev/null"),
    ("core.quotePath", "true"),
    ("protocol.ext.allow", "never"),
    ("safe.directory", "*"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("credential.helper", ""),
    ("http.lowSpeedLimit", "1000"),
    ("http.lowSpeedTime", "60"),
    ("init.defaultBranch", "main"),
)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of every git process.

    A configuration of the user's own (mirrors by ``url.*.insteadOf``, say) counts only where
    ``TASKGEN_GIT_CONFIG`` names its file, so that two machines make the same bytes by default.
    """
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}
    env |= {
        "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
        "GIT_ASKPASS": "/bin/true",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.environ.get("TASKGEN_GIT_CONFIG") or os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    env["GIT_CONFIG_COUNT"] = str(len(_CONFIG))
    for number, (key, value) in enumerate(_CONFIG):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env | dict(extra or {})


def _missing() -> PrerequisiteError:
    return PrerequisiteError("the program git is not installed", hint="install it, for example: apt-get install git")


def git(
    arguments: Iterable[str],
    *,
    bare: Path | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
    extra_env: Mapping[str, str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> bytes:
    """Run git and return its whole stdout. ``bare`` is the repository (``--git-dir``), if it needs one.

    Raises:
        CommandError: git ended with a non-zero code or ran past ``timeout_s``.
        StoreError: the disk is full.
        PrerequisiteError: there is no git.
    """
    where = [] if bare is None else [f"--git-dir={bare}"]
    argv = ["git", *where, *arguments]
    try:
        return process.check(
            argv,
            stdin=stdin,
            env=environment(extra_env),
            cwd=cwd,
            timeout_s=timeout_s,
            output_bytes=NO_LIMIT_BYTES,
        )
    except FileNotFoundError as error:
        if cwd is not None and not cwd.is_dir():
            raise
        raise _missing() from error
    except CommandError as error:
        if "No space left on device" in error.stderr:
            raise StoreError(
                f"no space is left on the disk of {bare or cwd or 'the cache'}",
                hint="free some space there, or choose another folder for the cache",
            ) from error
        raise


def init_bare(folder: Path) -> None:
    """Make an empty bare repository, the same on each machine (SHA-1, no template, no hooks)."""
    git(["init", "--quiet", "--bare", "--template=", "--object-format=sha1", str(folder)])


class _Session:
    """A git process that is fed and read while it runs; killed when the block ends."""

    def __init__(self, bare: Path, arguments: list[str], timeout_s: float) -> None:
        argv = ["git", f"--git-dir={bare}", *arguments]
        try:
            self._process = process.start(argv, env=environment())
        except FileNotFoundError as error:
            raise _missing() from error
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self.argv = argv
        self.stdin, self.stdout = self._process.stdin, self._process.stdout
        self._errors = process.BoundedReader(self._process.stderr, 1 << 16)
        self._timed_out = False
        self._timer = threading.Timer(timeout_s, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        self._timed_out = True
        process.kill_tree(self._process)

    def fail(self) -> CommandError:
        """The error to raise when the process broke off."""
        self._timer.cancel()
        process.kill_tree(self._process)
        self._errors.finish()
        text = self._errors.value().decode(errors="replace")
        return CommandError(self.argv, self._process.returncode, "", text, timed_out=self._timed_out)

    def finish(self) -> None:
        """Close the input and wait for a good end."""
        self.stdin.close()
        if self._process.wait() != 0:
            raise self.fail()

    def close(self) -> None:
        self._timer.cancel()
        process.kill_tree(self._process)
        for stream in (self.stdin, self.stdout, self._process.stderr):
            if stream is not None:
                _close_quietly(stream)


def _close_quietly(stream: object) -> None:
    # A pipe whose reader is gone raises on the flush that close does; there is nobody to tell.
    try:
        stream.close()  # type: ignore[attr-defined]
    except (BrokenPipeError, OSError):
        return


@contextmanager
def _session(bare: Path, arguments: list[str], timeout_s: float) -> Iterator[_Session]:
    session = _Session(bare, arguments, timeout_s)
    try:
        yield session
    finally:
        session.close()


def read_blobs(bare: Path, oids: Iterable[str], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Iterator[bytes]:
    """The contents of objects, in the order asked for, raw: no filter and no attribute applies.

    Raises:
        CommandError: git broke off or ran past ``timeout_s`` (for all of them together).
        SourceError: an object is missing.
    """
    with _session(bare, ["cat-file", "--batch"], timeout_s) as session:
        for oid in oids:
            try:
                session.stdin.write(oid.encode() + b"\n")
                session.stdin.flush()
            except BrokenPipeError:
                raise session.fail() from None
            header = session.stdout.readline()
            if not header:
                raise session.fail()
            fields = header.split()
            if len(fields) != 3:
                raise SourceError(f"object {oid} is missing in {bare}", hint=f"delete {bare} and try again")
            size = int(fields[2])
            content = session.stdout.read(size + 1)
            if len(content) != size + 1:
                raise session.fail()
            yield content[:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportEntry:
    """A file to put into a commit. ``path`` may hold surrogate escapes; a link's content is its target."""

    path: str
    content: bytes
    mode: str = "100644"


def _quoted(path: str) -> bytes:
    r"""A path as fast-import reads it: in quotes, every byte outside plain ASCII as \ooo."""
    raw = os.fsencode(path)
    plain = (chr(b) if 0x20 <= b < 0x7F and b not in b'"\\' else f"\\{b:03o}" for b in raw)
    return b'"' + "".join(plain).encode() + b'"'


def fast_import(
    bare: Path,
    entries: Iterable[ImportEntry],
    *,
    ref: str,
    message: str,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> str:
    """Write ``entries`` as a commit without a parent at ``ref``, and return its hash.

    Author, committer and date are fixed: the hash depends on the entries and the message alone. Of
    several entries with one path the last counts. Contents are streamed, one in memory at a time.
    """
    person = b"taskgen <taskgen@localhost> 0 +0000"
    text = message.encode()
    with _session(bare, ["fast-import", "--quiet", "--force"], timeout_s) as session:
        lines: dict[str, bytes] = {}
        try:
            for number, entry in enumerate(entries, 1):
                head = b"blob\nmark :%d\ndata %d\n" % (number, len(entry.content))
                session.stdin.write(head + entry.content + b"\n")
                lines[entry.path] = b"M %s :%d %s\n" % (entry.mode.encode(), number, _quoted(entry.path))
            session.stdin.write(b"commit %s\nauthor %s\ncommitter %s\n" % (ref.encode(), person, person))
            session.stdin.write(b"data %d\n%s\n" % (len(text), text))
            session.stdin.writelines(lines[path] for path in sorted(lines))
            session.stdin.write(b"\n")
            session.finish()
        except BrokenPipeError:
            raise session.fail() from None
    return git(["rev-parse", "--verify", ref], bare=bare).decode().strip()
