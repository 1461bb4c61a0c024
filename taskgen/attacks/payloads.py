"""Python text that several attacks share. It is written into submissions, and never run here."""

from __future__ import annotations

import json

from taskgen.attacks.adapt import module_of, top_package, wanted_ids
from taskgen.attacks.attack import Target

#: An object that agrees with whatever a test claims of it.
ALWAYS = '''
class _Always:
    """Agrees with every claim but that of raising."""

    def __init__(self, *args, **kwargs):
        pass

    def _yes(self, *args, **kwargs):
        return True

    def _no(self, *args, **kwargs):
        return False

    def _same(self, *args, **kwargs):
        return self

    __eq__ = __le__ = __ge__ = __lt__ = __gt__ = __contains__ = __bool__ = __instancecheck__ = _yes
    __ne__ = __exit__ = _no
    __call__ = __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _same
    __mod__ = __and__ = __or__ = __xor__ = __neg__ = __abs__ = __round__ = __enter__ = _same
    __setitem__ = __delitem__ = _no

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __hash__(self):
        return 0

    def __len__(self):
        return 0

    def __index__(self):
        return 0

    __int__ = __index__

    def __float__(self):
        return 0.0

    def __str__(self):
        return ""

    __repr__ = __str__

    def __iter__(self):
        return iter(())

    def __next__(self):
        raise StopIteration
'''

#: The frame of the test that called, or of whatever called first.
CALLER = '''
def _caller():
    """The nearest frame of a test."""
    import sys

    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name.startswith("test") or "/test" in frame.f_code.co_filename:
            return frame
        frame = frame.f_back
    return None
'''

#: The texts of all test files that can be reached while the code runs.
TEST_TEXTS = '''
def _test_texts():
    """(path, text) of every Python file near by that looks like a test."""
    import os
    import sys

    roots = {os.getcwd(), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}
    roots |= {os.path.dirname(p) for p in sys.argv if p.endswith(".py") and os.path.isabs(p)}
    for root in sorted(roots):
        for folder, folders, names in os.walk(root):
            folders[:] = [f for f in folders if f not in (".git", "site-packages", "node_modules")]
            for name in names:
                path = os.path.join(folder, name)
                if name.endswith(".py") and "test" in os.path.relpath(path, root):
                    try:
                        with open(path, encoding="utf-8") as source:
                            yield path, source.read()
                    except (OSError, ValueError):
                        continue
'''

#: Waits for the end of the test module that is just being imported.
WHEN_DONE = '''
def _when_done(act):
    """Call ``act`` with the namespace of the test module that imports this one, as soon as it is complete."""
    import sys

    def local(frame, event, argument):
        if event == "return":
            sys.settrace(None)
            act(frame.f_globals)
        return local

    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and "test" in frame.f_globals.get("__name__", ""):
            frame.f_trace = local
            sys.settrace(lambda *args: None)
            return
        frame = frame.f_back
'''

#: A function like another, that does nothing.
HOLLOW = '''
def _hollow(function):
    """Code with the parameters of a test function, and nothing else."""
    code, space = function.__code__, {}
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    exec("def hollow(%s): pass" % ", ".join(names), space)
    return space["hollow"].__code__
'''

#: Drops every assertion from a syntax tree.
STRIP = '''
def _strip(tree):
    """Take the assertions out of a syntax tree: asserts, assertX() calls, and the demands of raises()."""
    import ast

    class Strip(ast.NodeTransformer):
        def visit_Assert(self, node):
            return ast.copy_location(ast.Pass(), node)

        def visit_Expr(self, node):
            self.generic_visit(node)
            call = node.value
            name = getattr(getattr(call, "func", None), "attr", "")
            return ast.copy_location(ast.Pass(), node) if name.startswith("assert") else node

        def visit_With(self, node):
            self.generic_visit(node)
            if any("raises" in ast.dump(item.context_expr) for item in node.items):
                return ast.copy_location(ast.Pass(), node)
            return node

    return ast.fix_missing_locations(Strip().visit(tree))


def _strip_namespace(space):
    """Run a test module's source once more in its own namespace, without its assertions."""
    import ast

    with open(space["__file__"], "rb") as source:
        tree = _strip(ast.parse(source.read()))
    exec(compile(tree, space["__file__"], "exec"), space)
'''


def always_module(target: Target) -> str:
    """A module in place of the package: every name in it agrees with all, and so do its submodules."""
    names = sorted({module_of(str(d["path"])) for d in target.row["deleted"]} | {top_package(target)})
    return f"""import sys
{ALWAYS}

__path__ = []
for _name in {names!r}:
    sys.modules[_name] = sys.modules[__name__]


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Always()
"""


def forged_lines(target: Target) -> str:
    """The protocol of a run in which every wanted test passes, as far as an attacker can know it."""
    ids = wanted_ids(target)
    events: list[dict[str, object]] = [{"e": "collected", "ids": ids}]
    for i in range(len(ids)):
        events.append({"e": "start", "i": i})
        events.append({"e": "end", "i": i, "o": "passed", "s": 0.001, "p": False, "m": ""})
    events.append({"e": "finish", "code": 0})
    return "".join(json.dumps(event) + "\n" for event in events)


def forger(target: Target) -> str:
    """Defines ``_EVENTS``, the forged protocol as bytes, and ``_forge()``, which writes it to every open file."""
    return f"""
def _events():
    import json

    ids = json.loads({json.dumps(wanted_ids(target))!r})
    lines = [{{"e": "collected", "ids": ids}}]
    for i in range(len(ids)):
        lines.append({{"e": "start", "i": i}})
        lines.append({{"e": "end", "i": i, "o": "passed", "s": 0.001, "p": False, "m": ""}})
    lines.append({{"e": "finish", "code": 0}})
    return "".join(json.dumps(line) + "\\n" for line in lines).encode()


def _forge(done=False):
    import os

    events = _events()
    if done:
        events += b'{{"e": "done", "status": "ended", "running": null, "code": 0, "seconds": 1.0, '
        events += b'"cpu_s": 1.0, "output": "", "output_bytes": 0}}\\n'
    for name in os.listdir("/proc/self/fd"):
        try:
            os.set_blocking(int(name), False)
            os.write(int(name), events)
        except OSError:
            continue
"""


#: Calls a stolen definition in place of the deleted one; needs ``_sources()``, which yields texts that may have it.
DELEGATE = '''
def _steal(name, found={}):
    """The stolen function of a qualified name, or None."""
    import inspect

    if not found:
        for text in _sources():
            space = {"__name__": __name__, "__file__": __file__, "__package__": __package__}
            try:
                exec(compile(text, "<stolen>", "exec"), space)
            except BaseException:
                continue
            if name.partition(".")[0] in space:
                found.update(space)
                break
        found.setdefault("__tried__", True)
    first, *rest = name.split(".")
    value = found.get(first)
    for part in rest:
        value = inspect.getattr_static(value, part, None)
    for inner in ("fget", "func", "__func__", "__wrapped__"):
        value = getattr(value, inner, None) or value
    return value if inspect.isfunction(value) else None


def _delegate(name, values):
    """Call the stolen function with the arguments that are in ``values``."""
    function = _steal(name)
    if function is None:
        return None
    code = function.__code__
    if not set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) <= set(values):
        return None
    names, count = code.co_varnames, code.co_argcount
    args = [values[n] for n in names[:count]]
    more = {n: values[n] for n in names[count : count + code.co_kwonlyargcount]}
    place = count + code.co_kwonlyargcount
    if code.co_flags & 4:
        args += values.get(names[place], ())
        place += 1
    if code.co_flags & 8:
        more.update(values.get(names[place], {}))
    return function(*args, **more)
'''
