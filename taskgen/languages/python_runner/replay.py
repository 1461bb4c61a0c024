"""Replays recorded calls against an implementation and describes what comes of each. It never learns what should.

The descriptions go to the caller, which compares them with the gold code's where this process cannot look.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import inspect
import json
import os
import pickle
import random
import signal
import sys
import time
from typing import Any

from describe import Describer, public_name

WORKSPACE = "/workspace"
MUTABLE = (list, dict, set, bytearray)


class TooLong(BaseException):
    """A call that does not come to its end; no handler of the code under test may take it for its own."""


def _alarm(_signal: int, _frame: object) -> None:
    raise TooLong


def shift_clock(seconds: float) -> None:
    """Let this process believe that it runs at another time: what depends on the clock must not be compared."""
    import datetime as module

    real_time, real_date, real_datetime = time.time, module.date, module.datetime

    class Date(real_date):  # type: ignore[misc, valid-type]
        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(real_time() + seconds)

    class DateTime(real_datetime):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(real_time() + seconds, tz)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(real_time() + seconds, module.UTC).replace(tzinfo=None)

    Date.__name__ = Date.__qualname__ = "date"
    DateTime.__name__ = DateTime.__qualname__ = "datetime"
    Date.__module__ = DateTime.__module__ = "datetime"
    module.date, module.datetime = Date, DateTime  # type: ignore[misc]
    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: int((real_time() + seconds) * 1e9)


def run(request: dict[str, Any], reporter: Any) -> int:
    sys.path.insert(0, WORKSPACE)
    if request.get("shift_s"):
        shift_clock(float(request["shift_s"]))
    if request.get("seed") is not None:
        random.seed(request["seed"])
    signal.signal(signal.SIGALRM, _alarm)
    modules = set(request["modules"])
    visible = frozenset(request["visible"])
    describer = Describer(visible, lambda name: name in modules or name.split(".")[0] in modules)
    targets = [Target(found) for found in request["targets"]]
    for number, case in enumerate(request["cases"]):
        result = replay(case, targets[case["t"]], describer, float(request["case_timeout_s"]))
        reporter.emit("case", i=number, r=result)
    reporter.emit("shown", names=sorted(describer.shown))
    reporter.emit("finish", code=0)
    return 0


class Target:
    """A function, a method or a class by its name; looked up when it is first needed."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.module, self.name = found["module"], found["name"]
        self.value: Any = None

    def get(self) -> Any:
        if self.value is None:
            value: Any = importlib.import_module(self.module)
            for part in self.name.split("."):
                value = getattr(value, part)
            # A property and its cached kind hold the function of which the calls were recorded.
            self.value = getattr(value, "fget", None) or getattr(value, "func", None) or value
        return self.value


def replay(case: dict[str, Any], target: Target, describer: Describer, timeout_s: float) -> list[str]:
    """One description an operation; an exception ends a call, but not the operations behind it."""
    results: list[str] = []
    this: Any = None
    out, err = sys.stdout, sys.stderr
    with open(os.devnull, "w", encoding="utf-8") as null:
        sys.stdout = sys.stderr = null
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        try:
            for kind, name, data in case["ops"]:
                text, this = operate(kind, name, data, target, this, describer)
                results.append(text)
                if kind == "new" and this is None:
                    break
        except TooLong:
            results.append("takes too long")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.stdout, sys.stderr = out, err
    return results


def operate(kind: str, name: str, data: str, target: Target, this: Any, describer: Describer) -> tuple[str, Any]:
    try:
        target.get()
    except TooLong:
        raise
    except BaseException as error:
        return f"not there: {type(error).__name__}", this
    try:
        args, kwargs = pickle.loads(base64.b64decode(data))
    except Exception as error:
        return f"cannot be replayed: {type(error).__name__}", this
    try:
        if kind == "new":
            this = target.get()(*args, **kwargs)
            return "new " + public_name(type(this)), this
        if kind == "get":
            return describer.describe(getattr(this, name)), this
        function = getattr(type(this), name) if name else target.get()
        before = (this, *args) if name else args
        value = function(*before, **kwargs)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        text = describer.describe(value)
    except TooLong:
        raise
    except BaseException as error:  # SystemExit is an answer, too
        names = dict.fromkeys(public_name(base) for base in type(error).__mro__[:-2])
        return "raises " + json.dumps(list(names)), this
    # What a call does to its arguments can be seen, too.
    after = [describer.describe(arg) for arg in args if isinstance(arg, MUTABLE) or describer.is_own(_module(arg))]
    return text + ("" if not after else " | " + "; ".join(after)), this


def _module(value: Any) -> str:
    return str(getattr(type(value), "__module__", ""))
