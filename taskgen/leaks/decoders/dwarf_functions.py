"""The functions that DWARF describes, with their parameters and variables."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from taskgen.leaks.blob import Budget, Unreadable, parsing
from taskgen.leaks.decoders import dwarf_forms as forms
from taskgen.leaks.decoders.dwarf_forms import Abbreviation, Sizes, abbreviations, uleb
from taskgen.leaks.decoders.mangled_names import go_name
from taskgen.leaks.records import CodeForm, Problem, Symbol

# Hostile entries are small and may all name the same long text, so all that is kept has its bounds.
_MAX_NAME_BYTES, _MAX_SCOPE_CHARS, _MAX_VARIABLE_CHARS = 1024, 4096, 255
_MAX_DEPTH, _MAX_VARIABLES, _MAX_DECLARED, _MAX_SEEN = 256, 2000, 1 << 17, 1 << 18
_MAX_ABBREVIATIONS = 1 << 18
_BATCH = 5000
#: What a unit's header holds behind the common part, by its type: bytes, and whether an offset, too.
_EXTRA = {1: (0, False), 2: (8, True), 3: (0, False), 4: (8, False), 5: (8, False), 6: (8, True)}


class Sections:
    """The sections by name, relocated."""

    def __init__(self, sections: Mapping[str, bytes], *, is_little: bool, is_64: bool) -> None:
        self.order = "<" if is_little else ">"
        self.byte_order = "little" if is_little else "big"
        self._is_64 = is_64
        self.strings, self.line_strings = sections.get(".debug_str", b""), sections.get(".debug_line_str", b"")
        self.abbreviations = sections.get(".debug_abbrev", b"")
        self.info = self._relocated(sections, ".debug_info")
        self.offsets = self._relocated(sections, ".debug_str_offsets")

    def _relocated(self, sections: Mapping[str, bytes], name: str) -> bytes:
        """In object files the places of strings are not there yet, but in a table; they count from a section's begin,
        so that no symbol is needed to know them."""
        content, table = sections.get(name, b""), sections.get(f".rela{name}", b"")
        if not table:
            return content
        layout = struct.Struct(self.order + ("QQq" if self._is_64 else "IIi"))
        changed = bytearray(content)
        for at, _, addend in layout.iter_unpack(table[: len(table) // layout.size * layout.size]):
            if 0 <= addend < 1 << 32 and at + 4 <= len(changed):
                changed[at : at + 4] = addend.to_bytes(4, "little" if self.order == "<" else "big")
        return bytes(changed)

    def number(self, data: bytes, at: int, size: int) -> int:
        """A number of ``size`` bytes."""
        if at + size > len(data):
            raise Unreadable("broken debug information: it is cut short")
        return int.from_bytes(data[at : at + size], "little" if self.order == "<" else "big")


@dataclass(slots=True, kw_only=True)
class _Function:
    name: str
    scope: str
    is_declaration: bool
    is_go: bool
    parameters: list[str] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)

    def add(self, name: str, *, is_parameter: bool) -> None:
        """Count a parameter or a variable as the function's."""
        if is_parameter and len(self.parameters) < _MAX_VARIABLES:
            self.parameters.append(name[:_MAX_VARIABLE_CHARS])
        elif not is_parameter and len(self.variables) < _MAX_VARIABLES:
            self.variables.add(name[:_MAX_VARIABLE_CHARS])

    def symbol(self) -> Symbol | None:
        full, parameters = _plain(self.name), self.parameters
        if not full:
            return None
        if self.is_go:
            full = go_name(full)
            if full.count(".") > 1:
                parameters = parameters[1:]  # the receiver
        elif self.scope:
            full = f"{self.scope}.{full}"
        named = all(parameters) and not (self.is_declaration and not parameters)
        return Symbol(
            name=full.rpartition(".")[2],
            qualified_name=full,
            parameters=tuple(p for p in parameters if p != "this") if named else None,
            identifiers=frozenset((*filter(None, self.parameters), *self.variables)),
            code=None if self.is_declaration else CodeForm.MACHINE,
        )


def functions(sections: Sections, budget: Budget) -> Iterator[Symbol | Problem]:
    """Each function that has a name, unit by unit. A broken unit is a Problem, and the next one is read."""
    at, tables = 0, _Tables(sections.abbreviations)
    seen: set[int] = set()
    while at < len(sections.info):
        budget.check_time()
        unit = None
        try:
            with parsing("debug information", struct.error):
                unit = _Unit(sections, at, tables)
                at = unit.end
                for symbol in unit.functions(budget):
                    mark = hash((symbol.qualified_name, symbol.parameters))
                    if mark not in seen:
                        if len(seen) >= _MAX_SEEN:
                            seen.clear()
                        seen.add(mark)
                        yield symbol
        except Unreadable as error:
            yield Problem(reason=f"debug information: {error}")
            if unit is None:
                return


class _Tables:
    """Tables of abbreviations, which units share."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._known: dict[tuple[int, Sizes], dict[int, Abbreviation]] = {}
        self._count = 0

    def get(self, at: int, sizes: Sizes) -> dict[int, Abbreviation]:
        key = (at, sizes)
        if key not in self._known:
            if self._count >= _MAX_ABBREVIATIONS:
                self._known.clear()
                self._count = 0
            self._known[key] = abbreviations(self._data, at, sizes)
            self._count += 1 + len(self._known[key])
        return self._known[key]


@dataclass(slots=True)
class _Values:
    """What of an entry is of use."""

    name: str = ""
    specification: int = -1
    is_declaration: bool = False
    is_output: bool = False
    language: int = 0


class _Unit:
    """A compilation unit: its header is read when it is made."""

    def __init__(self, sections: Sections, start: int, tables: _Tables) -> None:
        self._sections, self._start, data = sections, start, sections.info
        length, self._offset, at = sections.number(data, start, 4), 4, start + 4
        if length == 0xFFFFFFFF:
            length, self._offset, at = sections.number(data, at, 8), 8, at + 8
        self.end = min(at + length, len(data))
        self._is_cut = at + length > len(data)
        version = sections.number(data, at, 2)
        at += 2
        if not 2 <= version <= 5:
            raise Unreadable(f"DWARF of version {version}")
        if version >= 5:
            extra, has_offset = _EXTRA.get(data[at], (0, False))
            address, table = data[at + 1], sections.number(data, at + 2, self._offset)
            at += 2 + self._offset + extra + (self._offset if has_offset else 0)
        else:
            table, address = sections.number(data, at, self._offset), data[at + self._offset]
            at += self._offset + 1
        self._strings_base = (8 if self._offset == 4 else 16) if version >= 5 else 0
        sizes = Sizes(address=address, offset=self._offset, far=address if version == 2 else self._offset)
        self._sizes, self._first = sizes, at
        self._abbreviations = tables.get(table, sizes)
        self._declared: dict[int, _Function] = {}
        self._is_go = False

    def functions(self, budget: Budget) -> Iterator[Symbol]:
        """The functions of the unit, each when all that is inside it was read."""
        data, at, end, table = self._sections.info, self._first, self.end, self._abbreviations
        scope, function, is_own = "", None, False
        stack: list[tuple[str, _Function | None, bool]] = []
        opened: _Function | None
        n_read = 0
        while at < end:
            n_read += 1
            if n_read % _BATCH == 0:
                budget.check_time()
            entry, code, at = at, data[at], at + 1
            if code > 127:
                code, at = uleb(data, entry)
            if not code:
                if function is not None and is_own and (symbol := function.symbol()):
                    yield symbol
                if not stack:
                    continue  # padding behind the last entry
                scope, function, is_own = stack.pop()
                continue
            kind = table.get(code)
            if kind is None:
                raise Unreadable(f"broken debug information: no abbreviation {code}")
            values = _Values()
            if kind.skip >= 0:
                at += kind.skip
            else:
                at = self._values(kind, at, values)
            opened = None
            if kind.tag == forms.PARAMETER and is_own and function is not None:
                function.add(values.name, is_parameter=not values.is_output)
            elif kind.tag == forms.COMPILE_UNIT:
                self._is_go = values.language == forms.GO
            elif kind.tag == forms.VARIABLE and function is not None and values.name:
                function.add(values.name, is_parameter=False)
            elif kind.tag == forms.SUBPROGRAM:
                opened = self._function(entry, scope, values)
                if not kind.has_children and (symbol := opened.symbol()):
                    yield symbol
            if kind.has_children:
                if len(stack) >= _MAX_DEPTH:
                    raise Unreadable("broken debug information: nested too deeply")
                stack.append((scope, function, is_own))
                is_own = opened is not None
                if kind.tag in forms.SCOPES:
                    scope, function = _joined(scope, values.name), None
                elif opened is not None:
                    scope, function = _joined(scope, opened.name), opened
                elif kind.tag != forms.BLOCK:
                    function = None
        if self._is_cut:
            raise Unreadable("broken debug information: it is cut short")

    def _function(self, entry: int, scope: str, values: _Values) -> _Function:
        declared = self._declared.get(values.specification)
        found = _Function(
            name=values.name or (declared.name if declared else ""),
            scope=declared.scope if declared else scope,
            is_declaration=values.is_declaration,
            is_go=self._is_go,
        )
        if values.is_declaration and len(self._declared) < _MAX_DECLARED:
            self._declared[entry] = found
        return found

    def _values(self, kind: Abbreviation, at: int, values: _Values) -> int:
        for attribute, form in kind.steps:
            if form < 0:
                at -= form
            elif attribute == forms.NAME:
                values.name, at = self._string(form, at)
            elif attribute == forms.SPECIFICATION and form in forms.REFERENCES:
                value, at = self._number(form, at)
                values.specification = self._start + value
            elif attribute == forms.SPECIFICATION and form == forms.REFERENCE_FAR:
                values.specification, at = self._number(form, at)
            elif attribute == forms.LANGUAGE:
                values.language, at = self._number(form, at)
            elif attribute == forms.OUTPUT and form != forms.FLAG_PRESENT:
                value, at = self._number(form, at)
                values.is_output = bool(value)
            elif attribute == forms.DECLARATION:
                values.is_declaration = True
                at = self._after(form, at)
            elif attribute == forms.STRINGS_BASE:
                self._strings_base, at = self._number(form, at)
            else:
                at = self._after(form, at)
        return at

    def _number(self, form: int, at: int) -> tuple[int, int]:
        size = self._sizes.of(form)
        if size is None:
            return uleb(self._sections.info, at)
        return self._sections.number(self._sections.info, at, size), at + size

    def _string(self, form: int, at: int) -> tuple[str, int]:
        sections = self._sections
        if form == forms.STRING:
            end = sections.info.find(b"\0", at, self.end)
            if end < 0:
                raise Unreadable("broken debug information: a name without end")
            return sections.info[at : min(end, at + _MAX_NAME_BYTES)].decode("utf-8", "replace"), end + 1
        if form in forms.STRING_INDICES:
            index, at = self._number(form, at)
            place = self._strings_base + index * self._offset
            return _text(sections.strings, sections.number(sections.offsets, place, self._offset)), at
        if form in (forms.STRING_PLACE, forms.LINE_STRING_PLACE):
            place, at = self._number(form, at)
            return _text(sections.strings if form == forms.STRING_PLACE else sections.line_strings, place), at
        return "", self._after(form, at)

    def _after(self, form: int, at: int) -> int:
        """Where a value ends that is of no use."""
        data = self._sections.info
        if form == forms.INDIRECT:
            form, at = uleb(data, at)
            if form in (forms.INDIRECT, forms.IMPLICIT):
                raise Unreadable("broken debug information: a form of no form")
        size = self._sizes.of(form)
        if size is not None:
            return at + size
        if form in forms.VARIABLE_LENGTH:
            return uleb(data, at)[1]
        if form in forms.BLOCKS:
            width = forms.BLOCKS[form]
            size, at = (self._sections.number(data, at, width), at + width) if width else uleb(data, at)
            return at + size
        if form == forms.STRING:
            return data.index(b"\0", at) + 1
        raise Unreadable(f"broken debug information: no form {form:#x}")


def _plain(name: str) -> str:
    """A name without the arguments of something generic."""
    return name if name.startswith(("operator", "<", "{")) else name.partition("<")[0]


def _joined(scope: str, name: str) -> str:
    name = _plain(name)
    joined = f"{scope}.{name}" if scope and name else scope or name
    return joined if len(joined) <= _MAX_SCOPE_CHARS else name


def _text(strings: bytes, at: int) -> str:
    end = strings.find(b"\0", at, at + _MAX_NAME_BYTES)
    return strings[at : end if end >= 0 else at + _MAX_NAME_BYTES].decode("utf-8", "replace")
