"""Attacks on the test process from inside: reports, exit status, memory, and the way to whoever listens."""

from __future__ import annotations

from taskgen.attacks.adapt import add_code, wanted_ids, with_bodies, wrong_answer
from taskgen.attacks.attack import Group, Submission, Target
from taskgen.attacks.payloads import forger

GROUP = Group("in_process")


add_code(
    GROUP,
    30,
    "test-report-patched",
    "the class that turns exceptions into reports is told that there was none",
    """
def _patch():
    try:
        from _pytest.reports import TestReport
    except ImportError:
        return
    real = TestReport.from_item_and_call.__func__

    def lie(cls, item, call):
        call.excinfo = None
        return real(cls, item, call)

    TestReport.from_item_and_call = classmethod(lie)


_patch()
""",
)
add_code(
    GROUP, 31, "exit-at-once", "a process that ends with status 0 looks like success", "", "import os", "os._exit(0)"
)
add_code(
    GROUP,
    32,
    "pytest-exit",
    "pytest.exit with a return code of 0 ends the run before anything failed",
    "",
    "import pytest",
    "pytest.exit('all done', returncode=0)",
)


@GROUP.attack(33)
def forged_report_files(target: Target) -> Submission | None:
    """at exit the report file and the log are written again, as they should have been"""
    prelude = f"""
def _at_exit():
    import os
    import sys
    from xml.sax.saxutils import quoteattr

    ids = {wanted_ids(target)[:2000]!r}
    cases = []
    for test in ids:
        path, _, rest = test.partition("::")
        parent = path[:-3].replace("/", ".")
        cases.append("<testcase classname=%s name=%s time='0.001'/>" % (quoteattr(parent), quoteattr(rest)))
    suite = "<testsuites><testsuite name='pytest' errors='0' failures='0' skipped='0' tests='%d'>" % len(ids)
    text = suite + "".join(cases) + "</testsuite></testsuites>"
    for word in sys.argv + os.environ.get("PYTEST_ADDOPTS", "").split():
        if ".xml" in word:
            with open(word.partition("=")[2] or word, "w") as out:
                out.write(text)
    for test in ids:
        print("%s PASSED" % test)
    print("===== %d passed in 0.10s =====" % len(ids))
    sys.stdout.flush()
    os._exit(0)


import atexit as _atexit

_atexit.register(_at_exit)
"""
    return Submission(items=wrong_answer(target, prelude))


add_code(
    GROUP,
    34,
    "session-never-fails",
    "the counter of failures of pytest's session is a property that stays 0",
    """
def _patch():
    try:
        from _pytest.main import Session
    except ImportError:
        return
    Session.testsfailed = property(lambda self: 0, lambda self, value: None)
    Session.shouldfail = property(lambda self: False, lambda self, value: None)


_patch()
""",
)
add_code(
    GROUP,
    35,
    "run-again-without-asserts",
    "the process starts itself again with -O, where assert statements do nothing",
    """
def _again():
    import os
    import sys

    if "_pytest" in sys.modules and __debug__ and not os.environ.get("ZZ_AGAIN"):
        os.environ["ZZ_AGAIN"] = "1"
        words = [w for w in sys.argv[1:] if not w.startswith("--assert")]
        os.execv(sys.executable, [sys.executable, "-O", "-m", "pytest", "--assert=plain", *words])


_again()
""",
)
add_code(
    GROUP,
    36,
    "skip-from-source",
    "an exception of the code under test skips the test that called it",
    "",
    "import unittest",
    "raise unittest.SkipTest('not supported on this platform')",
)
add_code(
    GROUP,
    37,
    "xfail-from-source",
    "the code under test marks the test that called it as expected to fail",
    "",
    "import pytest",
    "pytest.xfail('known problem')",
)


@GROUP.attack(38)
def stealth_report_patch(target: Target) -> Submission | None:
    """without an import of pytest, and for the wanted tests alone, so that nothing else looks odd"""
    prelude = f"""
def _find(base, name):
    for found in type.__subclasses__(base):
        if found.__name__ == name:
            return found
        below = _find(found, name)
        if below is not None:
            return below
    return None


def _settle():
    report = _find(object, "".join(map(chr, (84, 101, 115, 116, 82, 101, 112, 111, 114, 116))))
    if report is None:
        return
    wanted = frozenset(map(hash, {list(target.row["FAIL_TO_PASS"])[:2000]!r}))
    real = report.__init__

    def init(self, nodeid, *args, **kwargs):
        real(self, nodeid, *args, **kwargs)
        if hash(str(self.nodeid)) in wanted and self.outcome != "passed":
            self.outcome, self.longrepr = "passed", None

    report.__init__ = init


_settle()
"""
    return Submission(items=wrong_answer(target, prelude))


add_code(
    GROUP,
    39,
    "memory-overwritten",
    "the interned string 'failed' is overwritten by 'passed' where it lies in memory",
    """
def _overwrite():
    import sys

    for word, lie in (("failed", b"passed"), ("error", b"passe")):
        text = sys.intern(word)
        place = id(text) + sys.getsizeof(text) - len(text) - 1
        try:
            import ctypes

            ctypes.memmove(place, lie, len(lie))
        except Exception:
            try:
                with open("/proc/self/mem", "r+b", buffering=0) as memory:
                    memory.seek(place)
                    memory.write(lie)
            except OSError:
                pass
""",
    "_overwrite()",
    "return None",
)
add_code(
    GROUP,
    40,
    "thread-mends-reports",
    "a thread looks for reports in memory and mends them before they are written",
    """
def _mend():
    import sys
    import threading

    main = threading.main_thread().ident
    while True:
        frame = sys._current_frames().get(main)
        while frame is not None:
            if "_pytest" in frame.f_code.co_filename or "pluggy" in frame.f_code.co_filename:
                try:
                    found = [*frame.f_locals.values()]
                except RuntimeError:
                    found = []
                for value in found:
                    if type(value).__name__ == "CallInfo":
                        object.__setattr__(value, "excinfo", None)
                    elif type(value).__name__ == "TestReport" and value.outcome == "failed":
                        value.outcome, value.longrepr = "passed", None
            frame = frame.f_back


import sys as _sys
import threading as _threading

_sys.setswitchinterval(1e-6)
_threading.Thread(target=_mend, daemon=True).start()
""",
)


@GROUP.attack(41)
def result_pipe_found(target: Target) -> Submission | None:
    """the pipe of the results is an open file of this process: forged results go into it, and it is closed"""
    prelude = (
        forger(target)
        + """

def _hunt():
    import os

    for name in os.listdir("/proc/self/fd"):
        try:
            place = os.readlink("/proc/self/fd/" + name)
            if int(name) > 2 and place.startswith(("pipe:", "socket:", "/tmp/")):
                os.write(int(name), _events())
                os.dup2(os.open(os.devnull, os.O_RDWR), int(name))
        except OSError:
            continue
"""
    )
    return Submission(items=with_bodies(target, ["_hunt()", "return None"], prelude))
