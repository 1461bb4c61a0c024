"""Records, while tests run against the gold code, with which arguments they call what a task deletes.

The sources under test were given one statement at the start of each function of interest, which hands its arguments
to ``_taskgen_call``, and one behind each class, which hands it to ``_taskgen_class``. Arguments are pickled as they
come in, before the function can change them.
"""

from __future__ import annotations

import base64
import builtins
import contextlib
import functools
import hashlib
import io
import os
import pickle
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

CALL, CLASS = "_taskgen_call", "_taskgen_class"
MAX_CALLS = 60
MAX_TRACES = 30
MAX_OPERATIONS = 40
MAX_BYTES = 64 << 10
MUTATED_EACH = 2
WORKSPACE = "/workspace"
#: Methods of a class that say nothing about it when they are called alone, or that pickling and printing need.
SKIPPED = {
    "__new__", "__init__", "__del__", "__class__", "__getattribute__", "__getattr__", "__setattr__", "__delattr__",
    "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__", "__deepcopy__", "__init_subclass__",
    "__class_getitem__", "__subclasshook__", "__repr__", "__hash__", "__sizeof__", "__dir__", "__getnewargs__",
}  # fmt: skip


class Unrecordable(Exception):
    """An argument that cannot be handed to another implementation."""


def pickled(value: Any, opaque: tuple[type, ...]) -> bytes:
    """Pickle arguments. ``opaque``: classes whose inner state is the gold code's own business.

    Raises Unrecordable.
    """
    import cloudpickle

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def persistent_id(self, item: Any) -> None:
            if opaque and isinstance(item, opaque):
                raise Unrecordable

    out = io.BytesIO()
    try:
        Pickler(out, protocol=4).dump(value)
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise Unrecordable(repr(error)[:200]) from None
    if out.tell() > MAX_BYTES:
        raise Unrecordable("too large")
    return out.getvalue()


@contextlib.contextmanager
def deeper(depth: Any) -> Iterator[None]:
    """Inside a method of an object: what it calls on itself is its own business."""
    depth.on = getattr(depth, "on", 0) + 1
    try:
        yield
    finally:
        depth.on -= 1


class Recorder:
    """What was recorded. Target ``i`` is the i-th of the request's list."""

    def __init__(self, targets: list[dict[str, Any]], tests: list[str]) -> None:
        self.targets = targets
        self.tests = {os.path.join(WORKSPACE, path) for path in tests}
        self.calls: list[dict[str, tuple[bytes, bool]]] = [{} for _ in targets]
        self.traces: dict[int, list[Any]] = {}
        self.order: list[tuple[int, list[Any]]] = []
        self.classes: list[type] = []
        self.lost: dict[str, int] = {}
        self.busy = threading.local()
        self.pid = os.getpid()
        setattr(builtins, CALL, self.on_call)
        setattr(builtins, CLASS, self.on_class)

    def is_idle(self) -> bool:
        return not getattr(self.busy, "on", False) and os.getpid() == self.pid

    def on_call(self, target: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.is_idle() or len(self.calls[target]) >= MAX_CALLS:
            return
        direct = sys._getframe(2).f_code.co_filename in self.tests
        data = self._pickled(args, kwargs)
        if data is not None:
            key = hashlib.sha256(data).hexdigest()
            known = self.calls[target].get(key)
            self.calls[target][key] = (data, direct or (known is not None and known[1]))

    def _pickled(self, args: Any, kwargs: Any) -> bytes | None:
        """Arguments as bytes, or None, with a note of why not. Whatever pickling calls is not recorded."""
        self.busy.on = True
        try:
            return pickled((args, kwargs), tuple(self.classes))
        except Unrecordable as error:
            self.lost[str(error)] = self.lost.get(str(error), 0) + 1
            return None
        finally:
            self.busy.on = False

    # -- classes: the operations on one object, in their order ---------------------------------------

    def on_class(self, target: int, cls: type) -> None:
        self.classes.append(cls)
        depth = threading.local()
        for name, value in list(vars(cls).items()):
            if name in SKIPPED:
                continue
            if isinstance(value, property) and value.fget is not None:
                wrapped = self._operation(name, value.fget, "get", depth)
                self._set(cls, name, property(wrapped, value.fset, value.fdel, value.__doc__))
            elif type(value) is types.FunctionType:
                self._set(cls, name, self._operation(name, value, "call", depth))
        first = cls.__init__  # type: ignore[misc]

        @functools.wraps(first)
        def initialise(this: Any, *args: Any, **kwargs: Any) -> None:
            if type(this) is cls and not getattr(depth, "on", 0):
                self._begin(target, this, args, kwargs)
            if first is not object.__init__:
                with deeper(depth):
                    first(this, *args, **kwargs)

        self._set(cls, "__init__", initialise)

    @staticmethod
    def _set(cls: type, name: str, value: Any) -> None:
        try:
            setattr(cls, name, value)
        except (AttributeError, TypeError):
            return  # a class that forbids it is recorded by its construction alone

    def _begin(self, target: int, this: Any, args: Any, kwargs: Any) -> None:
        if len(self.order) >= MAX_TRACES * len(self.targets) or not self.is_idle():
            return
        data = self._pickled(args, kwargs)
        if data is not None:
            trace: list[Any] = [("new", "", data)]
            self.traces[id(this)] = [this, trace]  # the object is kept: its id must stay its own
            self.order.append((target, trace))

    def _operation(self, name: str, function: Any, kind: str, depth: Any) -> Any:
        @functools.wraps(function)
        def wrapper(this: Any, *args: Any, **kwargs: Any) -> Any:
            found = self.traces.get(id(this))
            if found is not None and not getattr(depth, "on", 0) and self.is_idle():
                trace = found[1]
                if len(trace) < MAX_OPERATIONS and trace[-1] is not None:
                    data = self._pickled(args, kwargs)
                    # What comes behind an operation that is lost would start from another state.
                    trace.append(None if data is None else (kind, name, data))
            with deeper(depth):
                return function(this, *args, **kwargs)

        return wrapper

    # -- the result ----------------------------------------------------------------------------------

    def finish(self, seed: int, n_mutated: int) -> list[dict[str, Any]]:
        """Stop recording. The cases as JSON: those that were recorded, then changed ones, then what was lost."""
        self.busy.on = True
        for name in (CALL, CLASS):
            delattr(builtins, name)
        cases = self._cases()
        changed = [case for i, case in enumerate(cases) for case in self._mutated(case, seed + i)][:n_mutated]
        lost = [{"lost": why, "n": n} for why, n in sorted(self.lost.items())]
        return [*cases, *changed, *lost]

    def _cases(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for target, calls in enumerate(self.calls):
            for data, direct in calls.values():
                found.append({"t": target, "direct": direct, "ops": [["call", "", encode(data)]]})
        seen = set()
        for target, trace in self.order:
            ops = [[kind, name, encode(data)] for kind, name, data in (op for op in trace if op is not None)]
            key = repr((target, ops))
            if ops and key not in seen:
                seen.add(key)
                found.append({"t": target, "direct": True, "ops": ops})
        return found

    def _mutated(self, case: dict[str, Any], seed: int) -> list[dict[str, Any]]:
        import random

        from mutate_inputs import mutated

        rng = random.Random(seed)
        found = []
        for _ in range(MUTATED_EACH):
            ops = [list(op) for op in case["ops"]]
            op = rng.choice(ops)
            try:
                args, kwargs = pickle.loads(base64.b64decode(op[2]))
                op[2] = encode(pickled(mutated(args, kwargs, rng), ()))
            except Exception:
                continue  # not every argument can be loaded again, or has something that can be changed
            found.append({"t": case["t"], "direct": False, "mutated": True, "ops": ops})
        return found


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def by_value(tests: list[str]) -> None:
    """Let functions and classes of test modules travel whole: they are not there when calls are replayed."""
    import cloudpickle

    places = {os.path.join(WORKSPACE, path) for path in tests}
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) in places:
            with contextlib.suppress(ValueError):
                cloudpickle.register_pickle_by_value(module)


class ByValue:
    """A pytest plugin: test modules are known once they are collected."""

    def __init__(self, tests: list[str]) -> None:
        self.tests = tests

    def pytest_collection_finish(self) -> None:
        by_value(self.tests)
