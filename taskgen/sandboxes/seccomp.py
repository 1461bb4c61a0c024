"""The filter of system calls: one profile (``sandbox/seccomp.json``, in Docker's format) for every kind of sandbox."""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

from taskgen.config import find_data


@cache
def profile() -> str:
    """The profile's text, as Docker takes it."""
    return (find_data("sandbox") / "seccomp.json").read_text("utf-8")


@cache
def program() -> bytes | None:
    """The profile as a program for the kernel of this machine; None where libseccomp is not installed."""
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError):
        return None
    value = json.loads(profile())
    if value["defaultAction"] != "SCMP_ACT_ALLOW":
        raise ValueError(f"seccomp.json: defaultAction {value['defaultAction']!r} is not understood here")
    made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for rule in value["syscalls"]:
        arguments = [_argument(pyseccomp, argument) for argument in rule.get("args", ())]
        for name in rule["names"]:
            # Names of other architectures or newer kernels have no number here, and nothing to be refused.
            if _is_known(pyseccomp, name):
                made.add_rule(pyseccomp.ERRNO(rule["errnoRet"]), name, *arguments)
    return _exported(made)


def _is_known(pyseccomp: Any, name: str) -> bool:  # noqa: ANN401 - a module without types
    try:
        return int(pyseccomp.resolve_syscall(pyseccomp.system_arch(), name)) != -1
    except (ValueError, OSError):
        return False


def _argument(pyseccomp: Any, argument: dict[str, Any]) -> Any:  # noqa: ANN401
    match argument["op"]:
        case "SCMP_CMP_MASKED_EQ":
            return pyseccomp.Arg(argument["index"], pyseccomp.MASKED_EQ, argument["value"], argument["valueTwo"])
        case "SCMP_CMP_GT":
            return pyseccomp.Arg(argument["index"], pyseccomp.GT, argument["value"])
        case other:
            raise ValueError(f"seccomp.json: op {other!r} is not understood here")


def _exported(made: Any) -> bytes:  # noqa: ANN401
    handle = os.memfd_create("seccomp")
    with open(handle, "r+b") as file:
        made.export_bpf(file)
        os.lseek(handle, 0, os.SEEK_SET)
        return os.read(handle, 1 << 20)
