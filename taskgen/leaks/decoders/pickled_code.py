"""Functions in pickles (cloudpickle, dill): their code, put together from opcodes by a machine that runs nothing.

The machine keeps a stack and a memo of plain values, as a real one would. What a call would give stays unknown, unless
it makes a code object.
"""

from __future__ import annotations

import itertools
import pickletools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from taskgen.leaks.blob import Blob, Unreadable, parsing
from taskgen.leaks.decoders.python_bytecode import Version, code_symbols
from taskgen.leaks.decoders.python_marshal import Code
from taskgen.leaks.records import Problem, Symbol

_MARKS = (b"CodeType", b"_create_code")
_MAKERS = ("CodeType", "code", "_create_code")
MAX_BYTES = 8 << 20
_CHECK_EVERY = 1024
_MAX_VALUES = 1 << 20
#: The layout of code objects; which Python wrote a pickle is not said in it.
_VERSION: Version = (3, 12)
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")
_GETS = ("GET", "BINGET", "LONG_BINGET")


@dataclass(frozen=True, slots=True)
class _Name:
    """Something by its global name; also what a call with one text gives: ``_builtin_type("CodeType")``."""

    name: str


class _Mark:
    """Where a tuple or a list begins on the stack."""


@dataclass(slots=True, kw_only=True)
class _Machine:
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    codes: list[Code] = field(default_factory=list)

    def step(self, opcode: pickletools.OpcodeInfo, argument: object) -> None:
        """Carry out an opcode, as far as plain values go. Raises IndexError where the stack is too short."""
        name, stack = opcode.name, self.stack
        if name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in _PUTS:
            self.memo[int(str(argument))] = stack[-1]
        elif name in _GETS:
            stack.append(self.memo.get(int(str(argument))))
        elif name == "MARK":
            stack.append(_Mark)
        elif name == "TUPLE":
            self.stack.append(tuple(self._to_mark()))
        elif (size := _TUPLES.get(name)) is not None:
            items = tuple(stack[len(stack) - size :])
            if len(items) < size:
                raise IndexError("too few values")
            stack[len(stack) - size :] = [items]
        elif name == "REDUCE":
            arguments, called = stack.pop(), stack.pop()
            stack.append(self._call(called, arguments))
        elif name == "GLOBAL":
            stack.append(_Name(str(argument).rpartition(" ")[2]))
        elif name == "STACK_GLOBAL":
            last, _ = stack.pop(), stack.pop()
            stack.append(_Name(last if isinstance(last, str) else ""))
        else:
            self._other(opcode, argument)

    def _other(self, opcode: pickletools.OpcodeInfo, argument: object) -> None:
        before, after = opcode.stack_before, opcode.stack_after
        if pickletools.stackslice in before:
            self._to_mark()
            before = [kind for kind in before if kind not in (pickletools.stackslice, pickletools.markobject)]
            # Containers are not filled: nobody keeps code's parts in lists.
        kept = self.stack[len(self.stack) - len(before) :] if before else []
        if len(kept) < len(before):
            raise IndexError("too few values")
        if after and before:  # BUILD, APPEND and the like give back the first of what they take
            del self.stack[len(self.stack) - len(before) + 1 :]
            self.stack += [kept[0]] * (len(after) - 1)
        elif before:
            del self.stack[len(self.stack) - len(before) :]
        else:
            self.stack += [argument] * len(after)

    def _to_mark(self) -> list[Any]:
        stack = self.stack
        at = len(stack) - 1
        while stack[at] is not _Mark:
            at -= 1
            if at < 0:
                raise IndexError("no mark")
        items = stack[at + 1 :]
        del stack[at:]
        return items

    def _call(self, called: object, arguments: object) -> object:
        if not isinstance(called, _Name) or not isinstance(arguments, tuple):
            return None
        if called.name in _MAKERS and (code := _code(arguments)) is not None:
            self.codes.append(code)
            return code
        if called.name == "encode" and len(arguments) == 2 and isinstance(arguments[0], str):
            return arguments[0].encode("latin-1", "replace")  # bytes, in protocols that have none
        return _Name(arguments[0]) if len(arguments) == 1 and isinstance(arguments[0], str) else None


def symbols(blob: Blob, data: bytes) -> Iterator[Symbol | Problem]:
    """The code objects that a pickle would make. Nothing if it mentions none."""
    if not any(mark in data for mark in _MARKS):
        return
    if len(data) > MAX_BYTES:
        yield Problem(reason=f"pickle: code in more than {MAX_BYTES:,} bytes of it")
        return
    machine = _Machine()
    try:
        with parsing("pickle of code"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the library thinks of escapes in texts of Python 2
            for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
                if number % _CHECK_EVERY == 0:
                    blob.budget.check_time()
                    if len(machine.stack) + len(machine.memo) > _MAX_VALUES:
                        raise Unreadable(f"more than {_MAX_VALUES:,} values at a time")
                machine.step(opcode, argument)
    except Unreadable as error:
        blob.budget.check_time()
        yield Problem(reason=f"pickle: {error}")
    # The outermost code is made last, and names what is in it.
    yield from code_symbols(blob, machine.codes[::-1], _VERSION, n_bytes=len(data))


def _code(arguments: tuple[Any, ...]) -> Code | None:
    """What a code object is made of, in its constructor's order; versions differ in how many numbers come first, and
    in what stands between the names and the closure."""
    values = arguments[1:] if arguments and not isinstance(arguments[0], int) else arguments  # dill's line table
    numbers = list(itertools.takewhile(lambda value: isinstance(value, int), values))
    rest = values[len(numbers) :]
    if len(numbers) not in (4, 5, 6) or len(rest) < 6 or not isinstance(rest[0], (bytes, str)):
        return None
    code, constants, names, variables, _, name, *others = rest
    if not isinstance(name, str) or not isinstance(constants, tuple):
        return None
    return Code(
        name=name,
        qualified_name=others[0] if others and isinstance(others[0], str) else "",
        n_arguments=numbers[0],
        n_keyword_only=numbers[-4] if len(numbers) > 4 else 0,
        flags=numbers[-1],
        names=_texts(names),
        variables=_texts(variables),
        closure=tuple(name for value in others if isinstance(value, tuple) for name in _texts(value)),
        constants=constants,
        size_bytes=len(code),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(v for v in value if isinstance(v, str)) if isinstance(value, tuple) else ()
