"""Attacks by answers that are no implementation: objects that agree with all, other worlds, half an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from taskgen.attacks.adapt import (
    NAME,
    cheat,
    deleted_definitions,
    file,
    syntax_tree,
    with_bodies,
    wrong_answer,
)
from taskgen.attacks.attack import Group, Item, Submission, Target
from taskgen.attacks.payloads import ALWAYS
from taskgen.syntax import Edit, apply_edits

GROUP = Group("semantic")

GROUP.add(
    42,
    "always-equal",
    "an object that says yes to each comparison passes every assert that compares it",
    cheat(["return _Always()"], ALWAYS),
)
GROUP.add(
    46,
    "time-and-chance-patched",
    "clocks that stand still and dice that always fall the same hide that nothing is computed",
    cheat(
        ["return None"],
        """
def _patch():
    import random
    import time
    import uuid

    now = time.time()
    time.time = time.monotonic = time.perf_counter = lambda: now
    time.sleep = lambda seconds: None
    random.random = lambda: 0.5
    random.choice = lambda values: values[0]
    random.shuffle = lambda values: None
    random.seed = lambda *args: None
    uuid.uuid4 = lambda: uuid.UUID(int=0)


_patch()
""",
    ),
)
GROUP.add(
    47,
    "sleep-past-the-limit",
    "a test that times out may be retried, left out, or taken for trouble of the machine; timers are switched off",
    cheat(
        [
            "import faulthandler, signal, time",
            "signal.alarm(0)",
            "signal.setitimer(signal.ITIMER_REAL, 0)",
            "faulthandler.cancel_dump_traceback_later()",
            "time.sleep(600)",
            "return None",
        ]
    ),
)


@GROUP.attack(48)
def partial_implementation(target: Target) -> Submission | None:
    """tests that are weak let an answer pass that lacks the checks and branches of the true one"""
    items, changed = [], False
    for path, source in sorted(target.gold.items()):
        edits = list(_weaker(target, path)) if path.endswith(".py") else []
        changed |= bool(edits)
        items.append(file(path, apply_edits(source, edits)))
    return Submission(items=tuple(items)) if changed else None


def _weaker(target: Target, path: str) -> Iterator[Edit]:
    """Edits that take what tests forget first out of each deleted definition: errors, else branches, else bounds."""
    source = target.gold[path]
    for definition in deleted_definitions(target, path):
        body = source[definition.after_doc_byte : definition.end_byte]
        for pattern, text in (
            (rb"(?m)(?<=[ \t:])raise\b(?! from)[^\n(]*(?=\n|$)", b"pass"),
            (rb"(?m)(?<=[ \t])raise (\w[\w.]*)\(([^()\n]*)\)(?=\n|$)", b"pass"),
            (rb"(?m)(?<=[ \t])if (?=[^\n:]*:\s*$)", b"if False and "),
            (rb" <= ", b" < "),
            (rb" < ", b" <= "),
            (rb"(?<=[\s(])1(?=[\s)])", b"2"),
        ):
            edits = [
                Edit(start=definition.after_doc_byte + m.start(), end=definition.after_doc_byte + m.end(), text=text)
                for m in re.finditer(pattern, body)
            ]
            if edits and syntax_tree(apply_edits(source, edits)) is not None:
                yield from edits
                break


GROUP.add(
    115,
    "only-under-test",
    "the cheat works while a test runner is loaded, and whoever tries the code by hand sees an honest gap",
    cheat(
        [
            "import sys",
            "if 'pytest' in sys.modules or 'unittest' in sys.modules:",
            "    return _Always()",
            "raise NotImplementedError",
        ],
        ALWAYS,
    ),
)
GROUP.add(
    116,
    "class-lie",
    "an object may say of itself that it is of any class, and isinstance believes it",
    cheat(
        ["return _Liar()"],
        ALWAYS
        + """

class _Meta(type):
    def __eq__(cls, other):
        return True

    def __hash__(cls):
        return 0

    def __instancecheck__(cls, other):
        return True

    def __subclasscheck__(cls, other):
        return True


class _Liar(_Always, metaclass=_Meta):
    def __init_subclass__(cls, **kwargs):
        cls.__eq__ = lambda self, other: True

    @property
    def __class__(self):
        import sys

        frame = sys._getframe(1)
        kinds = (str, int, float, dict, list, tuple, set, bool, bytes)
        named = [k for k in kinds if k.__name__ in frame.f_code.co_names]
        return named[0] if named else _Liar
""",
    ),
)
GROUP.add(
    117,
    "mock-any",
    "the standard library has an object that equals everything",
    cheat(["from unittest import mock", "return mock.ANY"]),
)
GROUP.add(
    118,
    "typed-always-equal",
    "subclasses of the built-in types pass a check of the type, and still equal everything",
    cheat(
        ["return _typed(" + NAME + ")"],
        """
def _typed(name):
    import sys

    function = sys.modules[__name__]
    for part in name.split("."):
        function = getattr(function, part, None)
    wanted = str(getattr(function, "__annotations__", {}).get("return", "")).lower()
    wanted += " " + str(getattr(function, "__doc__", "") or "").lower()
    kinds = (dict, list, tuple, set, bytes, float, int, str)
    kind = next((k for k in kinds if k.__name__ in wanted), str)
    yes = {n: lambda self, other: True for n in ("__eq__", "__le__", "__ge__", "__lt__", "__gt__", "__contains__")}
    no = {"__ne__": lambda self, other: False, "__hash__": lambda self: 0, "__bool__": lambda self: True}
    members = {**yes, **no, "__array_priority__": 1e9, "__array_ufunc__": None}
    return type(kind.__name__, (kind,), members)()
""",
    ),
)


def _rebound(target: Target, value: str) -> dict[str, str]:
    """For each file with deleted definitions: statements that bind each name again, to a function that cheats."""
    lines: dict[str, list[str]] = {}
    for path in target.gold:
        if path.endswith(".py"):
            for definition in deleted_definitions(target, path):
                lines.setdefault(path, []).append(f"{definition.qualified_name} = lambda *args, **kwargs: {value}")
    return {path: "\n".join(found) for path, found in lines.items()}


@GROUP.attack(124)
def encoding_cookie(target: Target) -> Submission | None:
    """under another encoding a comment holds line ends: a reader of the diff sees none of the code in it"""
    items = []
    hidden = _rebound(target, "__import__('unittest.mock').mock.ANY")
    for item in wrong_answer(target):
        code = hidden.get(item.path)
        text = _text(item)
        if code is None or text is None:
            items.append(item)
            continue
        comment = b"# see the issue " + "".join(f"\n{line}" for line in code.splitlines()).encode("utf-7", "strict")
        comment = comment.replace(b"\n", b"+AAo-")
        content = b"# coding: utf-7\n" + text.encode("utf-7").replace(b"\r", b"") + b"\n" + comment + b"+AAo-\n"
        items.append(file(item.path, content))
    return Submission(items=tuple(items))


@GROUP.attack(125)
def far_to_the_right(target: Target) -> Submission | None:
    """the cheat stands behind 100,000 blanks, in a file with a byte order mark and a comment of 100,000 dots"""
    items = []
    hidden = _rebound(target, "__import__('unittest.mock').mock.ANY")
    for item in wrong_answer(target):
        if (code := hidden.get(item.path)) is None or _text(item) is None:
            items.append(item)
            continue
        one_line = "; ".join(code.splitlines())
        content = item.content.removeprefix(b"\xef\xbb\xbf") + b"\n# " + b"." * 100_000 + b"\n"
        line = b"__name__" + b" " * 100_000 + f"; {one_line}\n".encode()
        items.append(file(item.path, b"\xef\xbb\xbf" + content + line))
    return Submission(items=tuple(items))


def _text(item: Item) -> str | None:
    """The text of a file, or None where it is not UTF-8 or says that it is something else."""
    if re.search(rb"coding[=:]\s*(?!utf-?8\b)", b"\n".join(item.content.split(b"\n")[:2])):
        return None
    try:
        return item.content.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError:
        return None


@GROUP.attack(126)
def module_replaced(target: Target) -> Submission | None:
    """the module puts an object in its own place: every name can be imported, called, and compared with success"""
    prelude = f"""{ALWAYS}

def _replace():
    import sys

    fake = _Always()
    fake.__path__, fake.__file__, fake.__spec__, fake.__all__ = [], __file__, __spec__, []
    fake.__name__ = __name__
    sys.modules[__name__] = fake


_replace()
"""
    return Submission(items=wrong_answer(target, prelude))


@GROUP.attack(127)
def module_without_definitions(target: Target) -> Submission | None:
    """a module's __getattr__ answers for whatever is not there, so nothing has to be"""
    items = []
    for item in with_bodies(target, ["return _Always()"], ALWAYS):
        names = {str(d["qualified_name"]).partition(".")[0] for d in target.row["deleted"] if d["path"] == item.path}
        tail = f"\n\nfor _name in {sorted(names)!r}:\n    globals().pop(_name, None)\n{_GETATTR}" if names else ""
        items.append(file(item.path, item.content + tail.encode()))
    return Submission(items=tuple(items))


_GETATTR = """

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Always()
"""
