"""Attacks in the test process on how test modules come into being: imports, compilation, files on disk."""

from __future__ import annotations

from taskgen.attacks.adapt import add_code
from taskgen.attacks.attack import Group
from taskgen.attacks.payloads import HOLLOW, STRIP, TEST_TEXTS, WHEN_DONE

GROUP = Group("in_process")


add_code(
    GROUP,
    91,
    "test-module-swapped",
    "before a test module has been imported, its place in sys.modules goes to one with empty tests",
    WHEN_DONE
    + HOLLOW
    + """

def _swap(space):
    import sys
    import types

    fake = types.ModuleType(space["__name__"])
    fake.__dict__.update(space)

    def emptied(function):
        copy = types.FunctionType(_hollow(function), {}, function.__name__)
        copy.__dict__.update(function.__dict__)
        return copy

    for name, value in space.items():
        if isinstance(value, types.FunctionType) and name.startswith("test"):
            setattr(fake, name, emptied(value))
        elif isinstance(value, type) and name.startswith("Test"):
            tests = [n for n in vars(value) if n.startswith("test") and hasattr(vars(value)[n], "__code__")]
            setattr(fake, name, type(name, (value,), {n: emptied(vars(value)[n]) for n in tests}))
    sys.modules[fake.__name__] = fake


_when_done(_swap)
""",
)
add_code(
    GROUP,
    92,
    "import-hook-strips-asserts",
    "a finder in front of all others reads test modules without their assertions",
    STRIP
    + WHEN_DONE
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
_when_done(_strip_namespace)
''',
)
add_code(
    GROUP,
    93,
    "compile-overridden",
    "compile() belongs to everybody, and pytest hands it the tests as syntax trees",
    STRIP
    + WHEN_DONE
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
_when_done(_strip_namespace)
""",
)
add_code(
    GROUP,
    114,
    "tests-rewritten-on-disk",
    "the package is imported before most test modules are read: it takes their assertions out on disk",
    STRIP
    + WHEN_DONE
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
_when_done(_strip_namespace)
""",
)
