"""Java class files: methods with what their code refers to.

Layout: The Java Virtual Machine Specification, chapter 4.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from taskgen.leaks.blob import Blob, Unreadable, parsing
from taskgen.leaks.decoders.java_code import Uses, walk
from taskgen.leaks.decoders.java_pool import Pool, method_types
from taskgen.leaks.records import CodeForm, Problem, Symbol

NAME = "java class"
RAW_STRINGS = True
_MAGIC = b"\xca\xfe\xba\xbe"
#: The first version ever is 45; fat Mach-O files share the magic and have the number of their parts there.
_FIRST_VERSION = 45
_MAX_BYTES = 16 << 20
_STATIC, _HIDDEN = 0x0008, 0x9000  # hidden: made by the compiler
#: The specification allows so many arguments; more of them would only take time.
_MAX_BOOTSTRAP_ARGUMENTS = 251
_MAX_LAMBDA_USES = 1 << 20
_TOO_MUCH_IN_LAMBDAS = "java class: more in lambda expressions than is followed"

_Attributes = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    flags: int
    name: str
    descriptor: str
    attributes: _Attributes


def matches(head: bytes, name: str) -> bool:
    """The magic, and a version."""
    return head.startswith(_MAGIC) and int.from_bytes(head[6:8], "big") >= _FIRST_VERSION and len(head) > 24


def decode(blob: Blob) -> Iterator[Symbol | Problem]:
    """The class, its fields and its methods."""
    data = blob.read(_MAX_BYTES)
    with parsing(NAME, struct.error):
        java_class = _Class(data)
    yield java_class.symbol()
    yield from java_class.members(blob)


class _Class:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pool = Pool(data)
        self._at = self._pool.end + 2
        self._this = self._pool.named(self._next()).replace("/", ".").replace("$", ".")
        parents = [self._next(), *(self._next() for _ in range(self._next()))]
        self._parents = frozenset(name for index in parents if (name := self._pool.class_name(index)))
        self._fields = self._members()
        self._methods = self._members()
        self._dynamic = self._bootstrap(self._attributes(len(data)))

    def _next(self) -> int:
        self._at += 2
        return self._u2(self._at - 2)

    def _u2(self, at: int) -> int:
        value: int = struct.unpack_from(">H", self._data, at)[0]
        return value

    def _u4(self, at: int) -> int:
        value: int = struct.unpack_from(">I", self._data, at)[0]
        return value

    def _members(self) -> list[_Member]:
        return [self._member() for _ in range(self._next())]

    def _member(self) -> _Member:
        flags, name, descriptor = self._next(), self._pool.text(self._next()), self._pool.text(self._next())
        return _Member(flags=flags, name=name, descriptor=descriptor, attributes=self._attributes(len(self._data)))

    def _attributes(self, end: int) -> _Attributes:
        found = {}
        for _ in range(self._next()):
            name, size = self._pool.text(self._next()), self._u4(self._at)
            start = self._at + 4
            self._at = start + size
            if self._at > end:
                raise Unreadable(f"broken java class: its attribute {name[:40]!r} is cut short")
            found[name] = start, self._at
        return found

    def _bootstrap(self, attributes: _Attributes) -> list[Uses]:
        """What each bootstrap method is given: strings to be joined, handles of the lambdas' methods."""
        start, end = attributes.get("BootstrapMethods", (0, 0))
        found: list[Uses] = []
        at = start + 2
        for _ in range(self._u2(start) if end else 0):
            count, uses = self._u2(at + 2), Uses()
            at += 4 + 2 * count
            if at > end:
                raise Unreadable("broken java class: its bootstrap methods are cut short")
            for n in range(min(count, _MAX_BOOTSTRAP_ARGUMENTS)):
                index = self._u2(at - 2 * count + 2 * n)
                uses.names.update(name for name in self._pool.names(index) if name)
                pieces = self._pool.pieces(index) or [self._pool.value(index)]
                uses.constants |= dict.fromkeys(piece for piece in pieces if piece)
            found.append(uses)
        return found

    def symbol(self) -> Symbol:
        """The class itself."""
        return Symbol(name=self._this.rpartition(".")[2], qualified_name=self._this, identifiers=self._parents)

    def members(self, blob: Blob) -> Iterator[Symbol | Problem]:
        """Fields, then methods. A method has what its lambda expressions use, which are methods of their own."""
        for member in self._fields:
            blob.budget.check_time()
            start, _ = member.attributes.get("ConstantValue", (0, 0))
            value = ""
            try:
                with parsing("constant", struct.error):
                    value = self._pool.value(self._u2(start)) if start else ""
            except Unreadable as error:
                yield Problem(reason=f"java class: field {member.name[:80]}: {error}")
            constants = (value,) if value else ()
            yield Symbol(name=member.name, qualified_name=f"{self._this}.{member.name}", constants=constants)
        inside: dict[str, Uses] = defaultdict(Uses)
        n_uses = 0
        for method in self._methods:
            blob.budget.check_time()
            if method.name.startswith("lambda$") and n_uses <= _MAX_LAMBDA_USES:
                uses, _ = self._uses(method)
                inside[method.name.split("$")[1]].add(uses)
                n_uses += len(uses)
        if n_uses > _MAX_LAMBDA_USES:
            yield Problem(reason=_TOO_MUCH_IN_LAMBDAS)
        for method in self._methods:
            blob.budget.check_time()
            yield from self._method(method, inside)

    def _method(self, method: _Member, inside: dict[str, Uses]) -> Iterator[Symbol | Problem]:
        uses, problem = self._uses(method)
        if problem:
            yield problem
        plain = {"<init>": "new", "<clinit>": "static"}.get(method.name, method.name)
        if plain in inside:
            uses.add(inside[plain])
        name = self._this.rpartition(".")[2] if method.name == "<init>" else method.name
        known = method_types(method.descriptor)
        types, returned = known or ((), "")
        parameters = None
        try:
            if known is None:
                raise Unreadable(f"its type {method.descriptor[:80]!r} is none")
            with parsing(NAME, struct.error):
                parameters, local_names = self._parameters(method, types)
                uses.names |= local_names
        except Unreadable as error:
            yield Problem(reason=f"java class: method {name[:80]}: {error}")
        yield Symbol(
            name=name,
            qualified_name=f"{self._this}.{name}",
            parameters=parameters,
            signature=f"{returned} {name}({', '.join(types)})",
            constants=tuple(uses.constants),
            identifiers=frozenset(uses.names),
            code=CodeForm.BYTECODE if "Code" in method.attributes else None,
        )

    def _uses(self, method: _Member) -> tuple[Uses, Problem | None]:
        """What the code uses; if it cannot be followed, all that the class does, and why."""
        start, end = method.attributes.get("Code", (0, 0))
        if not end:
            return Uses(), None
        try:
            with parsing("code", struct.error):
                length = self._u4(start + 4)
                if start + 8 + length > end:
                    raise Unreadable("its code is cut short")
                return walk(self._pool, start + 8, start + 8 + length, self._dynamic), None
        except Unreadable as error:
            names, values = self._everything
            reason = f"java class: method {method.name[:80]}: {error}; taken to use all that its class does"
            return Uses(names=set(names), constants=dict.fromkeys(values)), Problem(reason=reason)

    @cached_property
    def _everything(self) -> tuple[frozenset[str], tuple[str, ...]]:
        try:
            with parsing(NAME, struct.error):
                return self._pool.everything()
        except Unreadable:
            return frozenset(), ()

    def _parameters(self, method: _Member, types: tuple[str, ...]) -> tuple[tuple[str, ...] | None, set[str]]:
        """Names of the parameters (None: not known), and of all local variables."""
        by_slot, local_names = self._variables(method)
        start, end = method.attributes.get("MethodParameters", (0, 0))
        if end and start + 1 + 4 * self._data[start] <= end:
            entries = struct.iter_unpack(">HH", self._data[start + 1 : start + 1 + 4 * self._data[start]])
            named = [self._pool.text(index) for index, flags in entries if not flags & _HIDDEN]
            if all(named):
                return tuple(named), local_names
        found, slot = [], 0 if method.flags & _STATIC else 1
        for kind in types:
            if slot in by_slot:
                found.append(by_slot[slot])
            slot += 2 if kind in ("long", "double") else 1
        return tuple(found) if found or not types else None, local_names

    def _variables(self, method: _Member) -> tuple[dict[int, str], set[str]]:
        """Names of the local variables: by slot those that are there from the start, and all of them."""
        start, end = method.attributes.get("Code", (0, 0))
        by_slot: dict[int, str] = {}
        names: set[str] = set()
        if not end:
            return by_slot, names
        self._at = start + 8 + self._u4(start + 4)
        n_handlers = self._next()
        self._at += 8 * n_handlers
        table, table_end = self._attributes(end).get("LocalVariableTable", (0, 0))
        size = 10 * self._u2(table) if table_end else 0
        if table + 2 + size > max(table_end, 2):
            raise Unreadable("its table of local variables is cut short")
        for begun, _, name, _, slot in struct.iter_unpack(">HHHHH", self._data[table + 2 : table + 2 + size]):
            names.add(self._pool.text(name))
            if not begun:
                by_slot.setdefault(slot, self._pool.text(name))
        return by_slot, names
