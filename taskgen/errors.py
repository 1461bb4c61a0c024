"""The exceptions of taskgen.

    TaskgenError                what a user can act on; the command line exits with 1
    ├── ConfigError             repos.yaml, a recipe or an option is wrong
    ├── PrerequisiteError       a program or service is missing; says how to install it
    ├── SourceError             a repository cannot be fetched, verified or read
    ├── CommandError            a process failed; carries the command, its code and both streams
    ├── SandboxUnavailable      a sandbox could not be started or broke (never a task verdict)
    ├── StoreError              cache or output folder: locked, full, or not ours
    ├── FormatError             a task set, a patch or a file of rollouts does not follow the format
    ├── JudgeFault              a judge model could not be asked, or gave no usable answer (never a verdict)
    └── PolicyFault             a policy could not be asked, or died (never a failed attempt)

A candidate that does not become a task is not an error: see ``types.Rejection``.
"""

from __future__ import annotations

from collections.abc import Sequence


class TaskgenError(Exception):
    """What failed, where, the offending value, and (``hint``) what to do next."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n  hint: {self.hint}" if self.hint else message


class ConfigError(TaskgenError):
    """A configuration file or an option has an unknown key, a wrong type or a bad value."""


class PrerequisiteError(TaskgenError):
    """Something that must be installed on this machine is missing."""


class SourceError(TaskgenError):
    """A repository cannot be fetched, does not match its checksum, or is not usable."""


class SandboxUnavailable(TaskgenError):
    """The sandbox itself failed: an infrastructure fault, never the result of a run in it."""


class StoreError(TaskgenError):
    """The cache or the output folder cannot be used (locked, full, or written by something else)."""


class FormatError(TaskgenError):
    """A file of a task set, a patch, or a file of rollouts does not follow its format."""


class JudgeFault(TaskgenError):
    """A judge model could not be asked, or its answers had no usable form: an infrastructure fault, never a verdict."""


class PolicyFault(TaskgenError):
    """A policy could not be asked or died while it answered: an infrastructure fault, never a failed attempt."""


class CommandError(TaskgenError):
    """A process ended with a non-zero code or ran past its time limit."""

    def __init__(
        self,
        argv: Sequence[str],
        returncode: int,
        stdout: str,
        stderr: str,
        *,
        timed_out: bool = False,
        hint: str | None = None,
    ) -> None:
        self.argv = tuple(argv)
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
        self.timed_out = timed_out
        ended = "ran past its time limit" if timed_out else f"ended with code {returncode}"
        parts = [f"command {ended}: {' '.join(argv)}"]
        parts += [
            f"  {name}: {text.strip()}" for name, text in (("stdout", stdout), ("stderr", stderr)) if text.strip()
        ]
        super().__init__("\n".join(parts), hint=hint)
