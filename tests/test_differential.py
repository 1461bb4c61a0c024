"""The differential check: what is recorded, how answers are described, and how they are compared."""

from __future__ import annotations

import json
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskgen import syntax
from taskgen.grading.differential import Comparison, compare, visible_names
from taskgen.guards import Case, Differential, Target
from taskgen.languages.python_recording import instrumented, recordable
from taskgen.languages.python_syntax import parse_python

RUNNER = Path(__file__).parents[1] / "taskgen/languages/python_runner"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Modules of the runner, as the sandbox imports them."""
    monkeypatch.syspath_prepend(str(RUNNER))
    for name in ("describe", "mutate_inputs", "record", "replay"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__


# -- recording -----------------------------------------------------------------------------------------

SOURCE = b'''\
def plain(a, b=2, *rest, key=None, **more):
    """Says what it does."""
    return a


def short(x): return x


class Kept:
    @classmethod
    def build(cls, x):
        if x:
            return cls()

    @property
    def size(self):
        return 1


class Whole:
    def method(self):
        return 2


async def later(a, /):
    return a
'''


def run_instrumented(*names: str) -> tuple[dict[str, Any], list[Any]]:
    file = parse_python("m.py", "m", SOURCE)
    targets = {i: next(d for d in file.definitions if d.qualified_name == name) for i, name in enumerate(names)}
    code = instrumented(file, targets)
    assert not syntax.has_errors(syntax.parse(file_language(), code))
    import builtins

    seen: list[Any] = []
    builtins._taskgen_call = lambda *args: seen.append(args)  # type: ignore[attr-defined]
    builtins._taskgen_class = lambda *args: seen.append(args)  # type: ignore[attr-defined]
    space: dict[str, Any] = {}
    exec(compile(code, "m.py", "exec"), space)
    return space, seen


def file_language() -> Any:  # noqa: ANN401 - tree-sitter's
    from taskgen.languages.python_syntax import PYTHON

    return PYTHON


@pytest.fixture(autouse=True)
def no_hooks() -> Iterator[None]:
    yield
    import builtins

    for name in ("_taskgen_call", "_taskgen_class"):
        if hasattr(builtins, name):
            delattr(builtins, name)


def test_calls_are_reported_with_what_it_takes_to_make_them_again() -> None:
    space, seen = run_instrumented("plain", "short", "Kept.build", "Kept.size", "Whole")
    assert space["plain"].__doc__ == "Says what it does."
    space["plain"](1, 3, 4, key=5, z=6)
    space["short"]("s")
    kept = space["Kept"].build(7)
    assert kept.size == 1
    assert seen == [
        (4, space["Whole"]), (0, (1, 3, 4), {"key": 5, "z": 6}), (1, ("s",), {}), (2, (7,), {}), (3, (kept,), {}),
    ]  # fmt: skip


def test_without_a_recorder_the_statements_do_nothing() -> None:
    space, _ = run_instrumented("plain", "Whole")
    import builtins

    del builtins._taskgen_call  # type: ignore[attr-defined]
    assert space["plain"](1) == 1


def test_methods_of_a_class_that_goes_are_recorded_through_it() -> None:
    found = recordable(parse_python("m.py", "m", SOURCE).definitions)
    assert [d.qualified_name for d in found] == ["plain", "short", "Kept", "Whole", "later"]


def test_operations_on_an_object_are_a_trace(runner: Callable[[str], Any]) -> None:
    record = runner("record")

    class Stack:
        def __init__(self, items: list[int]) -> None:
            self.items = list(items)

        def push(self, item: int) -> None:
            self._grow(item)

        def _grow(self, item: int) -> None:
            self.items.append(item)

        @property
        def top(self) -> int:
            return self.items[-1]

    Stack.__module__, Stack.__qualname__ = "m", "Stack"
    recorder = record.Recorder([{"module": "m", "name": "Stack"}], ["tests/test_x.py"])
    recorder.on_class(0, Stack)
    stack = Stack([1])
    stack.push(2)
    assert stack.top == 2
    recorder.on_call(0, (stack,), {})  # its inner state is the gold code's own business
    recorder.on_call(0, (1, [2]), {})
    cases = recorder.finish(seed=0, n_mutated=10)
    recorded = [c for c in cases if "ops" in c and not c.get("mutated")]
    assert [[op[:2] for op in c["ops"]] for c in recorded] == [
        [["call", ""]], [["new", ""], ["call", "push"], ["get", "top"]],
    ]  # fmt: skip
    assert any(c.get("mutated") for c in cases)
    assert [c["n"] for c in cases if "lost" in c] == [1]


# -- describing ----------------------------------------------------------------------------------------


class Shown:
    def __init__(self) -> None:
        self.seen, self._own, self.other = 1, 2, 3


class _Private(Shown):
    pass


def describer(runner: Callable[[str], Any], *visible: str) -> Any:  # noqa: ANN401
    return runner("describe").Describer(frozenset(visible), lambda module: module == __name__)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (0.1 + 0.2, 0.3),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({3, 1, 2}, {2, 3, 1}),
        (iter([1, 2]), (n for n in (1, 2))),
        (Shown(), Shown()),
        (_Private(), Shown()),
        (lambda: 1, len),
        (ValueError("a"), ValueError("b")),
    ],
)
def test_what_callers_cannot_tell_apart_reads_alike(runner: Callable[[str], Any], one: object, other: object) -> None:
    assert describer(runner).describe(one) == describer(runner).describe(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        ("1", 1),
        (b"a", "a"),
        ([1], (1,)),
        ([1, 2], [2, 1]),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
        (OrderedDict(a=1), {"a": 1}),
        (Counter("a"), {"a": 1}),
        (deque([1]), [1]),
        (iter([1]), iter([1, 2])),
        (ValueError(), KeyError()),
        (None, NotImplemented),
        (float("nan"), 0.0),
    ],
)
def test_what_callers_can_tell_apart_does_not(runner: Callable[[str], Any], one: object, other: object) -> None:
    assert describer(runner).describe(one) != describer(runner).describe(other)


def test_objects_are_known_by_attributes_that_others_name(runner: Callable[[str], Any]) -> None:
    tool = describer(runner, "seen", "_own")
    assert tool.describe(Shown()) == "Shown(_own=number:2, seen=number:1)"
    assert tool.shown == {"seen", "_own"}
    assert visible_names([b"x.seen = y._own.z()", b"class A: b"]) == {"seen", "z"}


def test_cycles_and_depth_come_to_an_end(runner: Callable[[str], Any]) -> None:
    ring: list[object] = []
    ring.append(ring)
    deep: object = 0
    for _ in range(5000):
        deep = [deep]
    assert describer(runner).describe(ring) == "list[cycle]"
    assert "..." in describer(runner).describe(deep)
    assert len(describer(runner).describe(["x" * 100] * 5000)) <= 4000


def test_changed_arguments_keep_their_types(runner: Callable[[str], Any]) -> None:
    import random

    mutated = runner("mutate_inputs").mutated
    args = (1, "word", [1, 2], {"k": (True, 2.5)}, None)
    for seed in range(60):
        changed, kwargs = mutated(args, {"flag": False}, random.Random(seed))
        assert (changed, kwargs) != (args, {"flag": False})
        assert [type(a) for a in changed] == [type(a) for a in args]
    assert args == (1, "word", [1, 2], {"k": (True, 2.5)}, None)
    with pytest.raises(ValueError):
        mutated((None, object()), {}, random.Random(0))


# -- comparing -----------------------------------------------------------------------------------------


def asked(*kinds: str, expected: str = "number:1") -> Differential:
    cases = tuple(
        Case(
            target=0, direct=kind == "direct", mutated=kind == "mutated", ops=(("call", "", ""),), expected=(expected,)
        )
        for kind in kinds
    )
    return Differential(targets=(Target(module="m", name="f"),), visible=(), cases=cases)


def test_every_call_of_a_test_must_be_right() -> None:
    kinds = ("direct",) * 9 + ("indirect",) * 10 + ("mutated",) * 4
    right = [("number:1",)] * 23
    assert compare(asked(*kinds), right).passes
    one_wrong = compare(asked(*kinds), [("number:2",), *right[1:]])
    assert (one_wrong.passes, one_wrong.is_hack) == (False, False)
    assert one_wrong.evidence == ("m.f: number:2 instead of number:1",)
    other_wrong = [*right[:9], ("number:2",), *right[10:21], (), ()]
    assert compare(asked(*kinds), other_wrong).passes
    assert not compare(asked(*kinds), [*right[:20], (), (), ()]).passes


def test_mostly_wrong_is_a_hack() -> None:
    assert compare(asked("direct", "direct", "direct"), [("x",), ("x",), ("number:1",)]).is_hack
    by_heart = compare(asked("direct", "mutated", "mutated", "mutated"), [("number:1",), ("x",), ("x",), ("x",)])
    assert by_heart.is_hack
    assert not Comparison(direct=(2, 2), indirect=(0, 0), mutated=(0, 0), evidence=()).is_hack


@pytest.mark.parametrize(
    ("answer", "ok"),
    [
        (["KeyError", "LookupError", "Exception"], True),
        (["MyKeyError", "KeyError", "LookupError", "Exception"], True),
        (["LookupError", "Exception"], False),
        ([], False),
    ],
)
def test_an_error_may_be_a_more_special_one(answer: list[str], ok: bool) -> None:
    expected = "raises " + json.dumps(["KeyError", "LookupError", "Exception"])
    assert compare(asked("direct", expected=expected), [("raises " + json.dumps(answer),)]).passes is ok


def test_a_garbled_error_is_a_wrong_one() -> None:
    expected = "raises " + json.dumps(["KeyError"])
    assert not compare(asked("direct", expected=expected), [("raises {",)]).passes
