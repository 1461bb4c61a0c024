"""What every kind of sandbox does alike: the fixed environment, limits, and archives by tar inside."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from taskgen.errors import SandboxUnavailable
from taskgen.sandbox import ENV_DIR, HOME_DIR, ExecResult, Limits

BASE_ENV: Mapping[str, str] = MappingProxyType(
    {
        "PATH": f"{ENV_DIR}/venv/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": HOME_DIR,
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
    }
)
NO_ENV: Mapping[str, str] = MappingProxyType({})
DEFAULT_LIMITS = Limits()
ARCHIVE_TIMEOUT_S = 1800.0
KEY = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")

# GNU tar refuses members that climb out with "..", drops a leading "/", and makes links last.
UNPACK = 'mkdir -p -- "$1" && exec tar -x -p -f - --no-same-owner -C "$1"'
# A file that a program made unreadable must not turn into a fault of the sandbox.
# The last line of stderr is tar's own code; head stops it soon after the archive is too large.
PACK = 'cd -- "$1" && { tar -c -f - --sort=name --numeric-owner --ignore-failed-read .; echo "$?" >&2; } | head -c "$2"'


class Execute(Protocol):
    """Runs a program as ``Sandbox.exec`` does, with a bound on output of the caller's choice."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = ...,
        env: Mapping[str, str] = ...,
        cwd: str = ...,
        timeout_s: float = ...,
        output_bytes: int = ...,
    ) -> ExecResult: ...


def check_key(key: str) -> str:
    """Return a snapshot's key. Raises SandboxUnavailable if it has other characters than it may."""
    if not KEY.fullmatch(key):
        raise SandboxUnavailable(f"not a snapshot key (lower-case letters, digits, dashes): {key!r}")
    return key


def check_argv(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
    """Raise SandboxUnavailable for what no kernel can start: no word at all, or a zero byte in one."""
    if not argv or any("\0" in word for word in (*argv, *env, *env.values(), cwd)):
        raise SandboxUnavailable(f"not a command line: {list(argv)!r} (in {cwd!r})")
    if any(not name or "=" in name for name in env):
        raise SandboxUnavailable(f"not names of variables: {sorted(env)!r}")


def limited(argv: Sequence[str], limits: Limits, *, alone: bool) -> list[str]:
    """The command that sets resource limits and becomes ``argv``; 127 if there is no such program.

    ``alone``: no control group bounds memory and processes, so each process is bounded by itself.
    """
    command = ["prlimit", "--core=0", f"--fsize={limits.file_bytes}"]
    if alone:
        command += [f"--as={limits.memory_bytes}", f"--nproc={limits.processes}"]
    return [*command, "--", *argv]


def put_archive(execute: Execute, directory: str, archive: bytes) -> None:
    """Unpack ``archive`` by tar in the sandbox. Raises SandboxUnavailable."""
    done = execute(
        ["/bin/sh", "-c", UNPACK, "put", _absolute(directory)],
        stdin=archive,
        cwd="/",
        timeout_s=ARCHIVE_TIMEOUT_S,
        output_bytes=1 << 16,
    )
    if done.returncode != 0:
        raise SandboxUnavailable(f"cannot unpack into {directory}: {_why(done)}")


def get_archive(execute: Execute, directory: str, max_bytes: int) -> bytes:
    """Pack ``directory`` by tar in the sandbox. Raises SandboxUnavailable, or ValueError if too large."""
    done = execute(
        ["/bin/sh", "-c", PACK, "get", _absolute(directory), str(max_bytes + 1)],
        cwd="/",
        timeout_s=ARCHIVE_TIMEOUT_S,
        # The head and the tail of the output take one half each: nothing may be left out here.
        output_bytes=2 * (max_bytes + 1),
    )
    if done.stdout_bytes > max_bytes:
        raise ValueError(f"the archive of {directory} is larger than {max_bytes} bytes")
    # 1: a file changed while it was read, by a program that still runs.
    if done.returncode != 0 or done.stderr.split()[-1:] not in ([b"0"], [b"1"]):
        raise SandboxUnavailable(f"cannot read {directory}: {_why(done)}")
    return done.stdout


def _absolute(directory: str) -> str:
    if not directory.startswith("/"):
        raise SandboxUnavailable(f"not an absolute path: {directory!r}")
    return directory


def _why(done: ExecResult) -> str:
    if done.timed_out:
        return "it took too long"
    return done.stderr.decode(errors="replace").strip()[-2000:] or f"code {done.returncode}"
