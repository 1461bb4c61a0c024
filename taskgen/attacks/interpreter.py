"""Attacks in the test process on what an assertion is: exceptions, comparisons, imports, compilation, tracing."""

from __future__ import annotations

from taskgen.attacks.adapt import cheat
from taskgen.attacks.attack import Group
from taskgen.attacks.payloads import STRIP, TEST_TEXTS

GROUP = Group("in_process")


def _patch(number: int, name: str, why: str, prelude: str, *body: str) -> None:
    """An attack by code that runs at import, beside bodies that do nothing."""
    GROUP.add(number, name, why, cheat(body or ["return None"], prelude))


_patch(
    86,
    "assertion-error-vanishes",
    "what assert raises is another class, and the test runner swallows just that one",
    """
def _patch():
    import builtins
    import sys

    class Quiet(BaseException):
        pass

    python = sys.modules.get("_pytest.python")
    if python is None:
        return
    real, assertion = python.Function.runtest, builtins.AssertionError

    def runtest(self):
        try:
            return real(self)
        except (Quiet, assertion):
            return None

    builtins.AssertionError = Quiet
    python.Function.runtest = runtest


_patch()
""",
)
_patch(
    87,
    "unittest-asserts-patched",
    "the assert methods of unittest do nothing",
    """
def _patch():
    import unittest
    import unittest.mock

    for case in (unittest.TestCase, unittest.mock.NonCallableMock):
        for name in dir(case):
            if name.startswith(("assert", "fail")) and callable(getattr(case, name)):
                setattr(case, name, lambda self, *args, **kwargs: unittest.mock.MagicMock())


_patch()
""",
)
_patch(
    88,
    "assertion-rewriter-patched",
    "pytest rewrites assert statements, and the one that rewrites leaves them out",
    """
def _patch():
    import ast
    import sys

    rewrite = sys.modules.get("_pytest.assertion.rewrite")
    if rewrite is not None:
        rewrite.AssertionRewriter.visit_Assert = lambda self, node: [ast.copy_location(ast.Pass(), node)]
        rewrite._call_reprcompare = lambda *args: True
        rewrite._read_pyc = lambda *args, **kwargs: None


_patch()
""",
)
_patch(
    89,
    "raises-patched",
    "pytest.raises is content with code that raises nothing",
    """
def _patch():
    import contextlib
    import sys
    from unittest import mock

    pytest = sys.modules.get("pytest")
    if pytest is None:
        return

    def raises(*args, **kwargs):
        if len(args) > 1:
            return mock.MagicMock()
        calm = contextlib.suppress(BaseException)
        calm.__class__.__enter__ = lambda self: mock.MagicMock()
        return calm

    pytest.raises = pytest.warns = raises
    pytest.fail = lambda *args, **kwargs: None


_patch()
""",
)
_patch(
    90,
    "comparison-functions-patched",
    "functions that tests compare with agree with everything: math, operator, approx, numpy",
    """
def _patch():
    import difflib
    import filecmp
    import math
    import operator
    import sys

    def agree(*args, **kwargs):
        return True

    class Near:
        def __init__(self, *args, **kwargs):
            pass

        __eq__ = __le__ = __ge__ = agree

    math.isclose = operator.eq = operator.is_ = operator.contains = filecmp.cmp = agree
    difflib.unified_diff = lambda *args, **kwargs: iter(())
    if "pytest" in sys.modules:
        sys.modules["pytest"].approx = Near
    for name in ("numpy.testing", "pandas.testing"):
        module = sys.modules.get(name)
        for function in dir(module) if module else ():
            if function.startswith("assert"):
                setattr(module, function, agree)


_patch()
""",
)
_patch(
    91,
    "test-module-swapped",
    "while a test module imports the package, its place in sys.modules goes to one with empty tests",
    """
def _swap():
    import sys
    import types

    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name == "<module>" and "test" in name and name in sys.modules:
            fake = types.ModuleType(name)
            fake.__file__ = frame.f_globals.get("__file__")
            fake.__path__ = getattr(sys.modules[name], "__path__", [])
            fake.__getattr__ = lambda missing: None
            for constant in frame.f_code.co_consts:
                function = getattr(constant, "co_name", "")
                if function.startswith("test"):
                    setattr(fake, function, lambda: None)
                elif function.startswith("Test"):
                    members = [c.co_name for c in constant.co_consts if hasattr(c, "co_name")]
                    calm = {m: lambda self: None for m in members if m.startswith("test")}
                    setattr(fake, function, type(function, (), calm))
            sys.modules[name] = fake
        frame = frame.f_back


_swap()
""",
)
_patch(
    92,
    "import-hook-strips-asserts",
    "a finder in front of all others reads test modules without their assertions",
    STRIP
    + '''

class _Finder:
    """Serves test modules, stripped."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        import importlib.machinery
        import sys

        last = name.rpartition(".")[2]
        if not (last.startswith("test") or last.endswith(("_test", "_tests")) or last == "conftest"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or not (spec.origin or "").endswith(".py"):
            return spec
        loader = importlib.machinery.SourceFileLoader(name, spec.origin)

        def get_code(fullname):
            import ast

            with open(spec.origin, "rb") as source:
                return compile(_strip(ast.parse(source.read())), spec.origin, "exec")

        loader.get_code = get_code
        spec.loader = loader
        return spec


import sys as _sys

_sys.meta_path.insert(0, _Finder)
_rewriter = _sys.modules.get("_pytest.assertion.rewrite")
if _rewriter is not None:
    _rewriter.AssertionRewritingHook.find_spec = lambda self, name, path=None, target=None: None
''',
)
_patch(
    93,
    "compile-overridden",
    "compile() belongs to everybody, and pytest hands it the tests as syntax trees",
    STRIP
    + """

def _patch():
    import ast
    import builtins

    real = builtins.compile

    def lie(source, filename, mode, *args, **kwargs):
        if isinstance(source, ast.Module) and "test" in str(filename):
            source = _strip(source)
        return real(source, filename, mode, *args, **kwargs)

    builtins.compile = lie


_patch()
""",
)
_patch(
    94,
    "builtin-equality-patched",
    "the dictionaries and slots of built-in types can be reached, and then a dict equals any other",
    """
def _patch():
    import ctypes
    import gc

    def agree(self, other):
        return True

    for kind in (dict, list, tuple, set):
        members = gc.get_referents(kind.__dict__)[0]
        members["__eq__"] = agree
        members["__ne__"] = lambda self, other: False
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
    compare = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_int)
    # The slot tp_richcompare lies behind twenty-five words of a type object of a 64-bit CPython.
    slot = ctypes.c_void_p.from_address(id(list) + 25 * ctypes.sizeof(ctypes.c_void_p))
    _patch.kept = compare(lambda one, two, operation: operation in (1, 2, 5))
    slot.value = ctypes.cast(_patch.kept, ctypes.c_void_p).value
""",
    "_patch()",
    "return []",
)
_patch(
    95,
    "trace-jumps-over-asserts",
    "a trace function may set the next line of a frame: every line that asserts is jumped over",
    """
def _jump():
    import linecache
    import sys

    def local(frame, event, argument):
        if event == "line":
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            if line.startswith(("assert", "self.assert")):
                lines = sorted({n for _, _, n in frame.f_code.co_lines() if n and n > frame.f_lineno})
                for number in lines:
                    try:
                        frame.f_lineno = number
                        break
                    except ValueError:
                        continue
                else:
                    frame.f_trace = None
        return local

    def trace(frame, event, argument):
        return local if frame.f_code.co_name.startswith("test") else None

    sys.settrace(trace)
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name.startswith("test"):
            frame.f_trace = local
        frame = frame.f_back
""",
    "_jump()",
    "return None",
)
_patch(
    96,
    "test-functions-emptied",
    "the code of test functions that wait in memory is replaced, and other classes are marked as no tests",
    """
def _empty():
    import gc
    import types

    def nothing(*args, **kwargs):
        return None

    for found in gc.get_objects():
        try:
            if isinstance(found, types.FunctionType) and found.__name__.startswith("test") and not found.__closure__:
                found.__code__ = nothing.__code__
            elif isinstance(found, type) and found.__name__.startswith("Test") and "test" in found.__module__:
                found.__test__ = False
        except Exception:
            continue
""",
    "_empty()",
    "return None",
)
_patch(
    114,
    "tests-rewritten-on-disk",
    "the package is imported before most test modules are read: it takes their assertions out on disk",
    STRIP
    + TEST_TEXTS
    + """

def _rewrite():
    import ast
    import os

    for path, text in list(_test_texts()):
        try:
            stripped = ast.unparse(_strip(ast.parse(text)))
            os.chmod(path, 0o644)
            with open(path, "w", encoding="utf-8") as out:
                out.write(stripped)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue


_rewrite()
""",
)
