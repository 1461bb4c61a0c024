"""Attacks in the test process on the way of its results: forged events, descriptors, parents, the reporter itself."""

from __future__ import annotations

from taskgen.attacks.adapt import add_code, with_bodies
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
    """a timer's signal interrupts whatever runs, the test runner included, and changes what it finds there"""
    return _forging(
        target,
        """

def _tick(number, frame):
    while frame is not None:
        for value in list(frame.f_locals.values()):
            kind = type(value)
            if kind.__name__ == "Function" and hasattr(kind, "runtest"):
                kind.runtest = lambda self: None
                _signal.setitimer(_signal.ITIMER_REAL, 0)
                return
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
    """the process forks: one half reports in the name of the other, which ends with status 0"""
    return _forging(
        target,
        """

def _fork():
    import gc
    import os

    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)
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


add_code(
    GROUP,
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
add_code(
    GROUP,
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


_patch()
""",
)
add_code(
    GROUP,
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
