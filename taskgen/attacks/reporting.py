"""Attacks in the test process on the way of its results: forged events, descriptors, parents, the reporter itself."""

from __future__ import annotations

from taskgen.attacks.adapt import cheat, with_bodies
from taskgen.attacks.attack import Group, Submission, Target
from taskgen.attacks.payloads import forger

GROUP = Group("in_process")


def _forging(target: Target, prelude: str, *body: str) -> Submission:
    """Bodies and a prelude that may use ``_forge`` and ``_events``."""
    return Submission(items=with_bodies(target, body or ["return None"], forger(target) + prelude))


@GROUP.attack(97)
def finalizer_forges(target: Target) -> Submission | None:
    """finalizers and exit handlers run when pytest has had its say: they have the last word, and status 0"""
    return _forging(
        target,
        """

def _last():
    import os

    _forge()
    os._exit(0)


import atexit as _atexit
import weakref as _weakref

_atexit.register(_last)
_weakref.finalize(_events, _last)
""",
    )


@GROUP.attack(98)
def signal_handler(target: Target) -> Submission | None:
    """a timer's signal interrupts whatever runs, the test runner included, and mends its state"""
    return _forging(
        target,
        """

def _tick(number, frame):
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if type(value).__name__ == "CallInfo":
                value.excinfo = None
            elif type(value).__name__ == "TestReport":
                value.outcome, value.longrepr = "passed", None
        frame = frame.f_back


import signal as _signal

try:
    _signal.signal(_signal.SIGALRM, _tick)
    _signal.setitimer(_signal.ITIMER_REAL, 0.001, 0.001)
    _signal.signal(_signal.SIGTERM, _signal.SIG_IGN)
except ValueError:
    pass
""",
    )


@GROUP.attack(99)
def replaced_by_another_program(target: Target) -> Submission | None:
    """exec keeps process and descriptors, and replaces all code: by a program that prints what is expected"""
    return _forging(
        target,
        """

def _replace():
    import os
    import sys

    path = "/tmp/zz_events"
    with open(path, "wb") as out:
        out.write(_events())
    for name in os.listdir("/proc/self/fd"):
        try:
            os.set_inheritable(int(name), True)
        except OSError:
            continue
    code = "import os\\nfor n in os.listdir('/proc/self/fd'):\\n try: os.write(int(n), open(%r, 'rb').read())\\n"
    code += " except OSError: pass\\nprint('passed')"
    os.execv(sys.executable, [sys.executable, "-I", "-c", code % path])
""",
        "_replace()",
    )


@GROUP.attack(100)
def forked_child_reports(target: Target) -> Submission | None:
    """the process forks: one half fails as it must, the other reports in its name"""
    return _forging(
        target,
        """

def _fork():
    import gc
    import os
    import time

    if os.fork():
        time.sleep(5)
        return
    for found in gc.get_objects():
        if type(found).__name__ == "Reporter":
            found.pid = os.getpid()
    os.setsid()
    _forge()
    os._exit(0)
""",
        "_fork()",
        "return None",
    )


@GROUP.attack(101)
def descriptors_replaced(target: Target) -> Submission | None:
    """once the forged results are out, every descriptor points to nowhere: the true ones are lost"""
    return _forging(
        target,
        """

def _silence():
    import os

    _forge()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        if int(name) != nowhere:
            try:
                os.dup2(nowhere, int(name))
            except OSError:
                continue
""",
        "_silence()",
        "return None",
    )


@GROUP.attack(102)
def forged_events_everywhere(target: Target) -> Submission | None:
    """the whole protocol of a good run is written to every descriptor, the supervisor's closing line included"""
    return _forging(target, "\n\n_forge(done=True)\n", "import os", "_forge(done=True)", "os._exit(0)")


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


def _patch(number: int, name: str, why: str, prelude: str, *body: str) -> None:
    """An attack by code that runs at import, beside bodies that do nothing."""
    GROUP.add(number, name, why, cheat(body or ["return None"], prelude))


_patch(
    105,
    "supervisor-traced",
    "a process of the same user may be traced and its memory written: 'failed' becomes 'passed' in the supervisor's",
    """
def _trace():
    import ctypes
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getppid()
    libc.ptrace(16, parent, 0, 0)  # PTRACE_ATTACH
    try:
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
_patch(
    106,
    "reporter-patched",
    "the plugin that reports is an object of this process: every outcome that it sends becomes a pass",
    """
def _patch():
    import gc
    import sys

    def calm(real):
        def emit(self, kind, **fields):
            if kind == "collect_error":
                return None
            if "o" in fields:
                fields.update(o="passed", m="")
            return real(self, kind, **fields)

        return emit

    for found in list(gc.get_objects()):
        kind = type(found)
        if kind.__name__ == "Reporter" and hasattr(kind, "emit") and not hasattr(kind, "zz"):
            kind.emit, kind.zz = calm(kind.emit), True
    for module in list(sys.modules.values()):
        if hasattr(module, "classify") and hasattr(module, "RANK"):
            module.classify = lambda report: "passed" if report.when == "call" else ""


_patch()
""",
)
_patch(
    107,
    "json-patched",
    "results travel as JSON: the function that writes it turns failures into passes",
    """
def _patch():
    import json

    real = json.dumps

    def lie(value, *args, **kwargs):
        if isinstance(value, dict) and value.get("o") not in (None, "passed"):
            value = {**value, "o": "passed", "m": ""}
        text = real(value, *args, **kwargs)
        return text.replace('"failed"', '"passed"') if isinstance(value, dict) else text

    json.dumps = lie
    json.dump = lambda value, out, *args, **kwargs: out.write(lie(value, *args, **kwargs))
    json.JSONEncoder.encode = lambda self, value: lie(value)


_patch()
""",
)
_patch(
    108,
    "writes-patched",
    "whatever writes a result calls os.write or a file's write: both are told what to say",
    """
def _patch():
    import gc
    import io
    import os

    real = os.write

    def write(descriptor, data):
        data = bytes(data)
        lie = data.replace(b'"failed"', b'"passed"').replace(b'"error"', b'"passed"').replace(b"FAILED", b"PASSED")
        real(descriptor, lie)
        return len(data)

    class Lies:
        def __init__(self, file):
            self.file = file

        def write(self, text):
            return self.file.write(text.replace('"failed"', '"passed"').replace('"error"', '"passed"'))

        def __getattr__(self, name):
            return getattr(self.file, name)

    os.write = write
    for found in list(gc.get_objects()):
        held = getattr(found, "__dict__", None)
        if type(found).__module__ in ("child", "__main__", "serve") and isinstance(held, dict):
            for name, value in list(held.items()):
                if isinstance(value, io.TextIOBase):
                    held[name] = Lies(value)


_patch()
""",
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
