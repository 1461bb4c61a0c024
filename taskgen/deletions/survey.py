"""What operators look at: the parsed project joined with the coverage of its passing tests."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from taskgen.languages.python_project import PythonProject, Symbol
from taskgen.languages.python_surgery import Exclusive, Surgery
from taskgen.types import Baseline, Definition, Deletion

_NOT_FEATURES = re.compile(r"@(\w+\.)*(overload|abstractmethod|abstractproperty)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A deletion and how promising it is.

    Attributes:
        group: the tests that exercise what goes, as bits of ``Coverage.tests``.
        score: the higher, the sooner it is tried.
    """

    deletion: Deletion
    group: int
    score: float


@dataclass(kw_only=True)
class Survey:
    """The project, its coverage, and questions that several operators ask.

    Bits stand for tests, by their index in ``baseline.coverage.tests``.
    """

    project: PythonProject
    baseline: Baseline
    documentation: str = ""
    _tests: dict[tuple[str, str], int] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def passing(self) -> int:
        """The passing tests, as bits."""
        wanted = frozenset(self.baseline.passing)
        return sum(1 << i for i, test in enumerate(self.baseline.coverage.tests) if test in wanted)

    def tests_of(self, definition: Definition) -> int:
        """The passing tests that run a definition's body (for a class: that of any of its methods)."""
        key = (definition.path, definition.qualified_name)
        if key not in self._tests:
            if definition.kind == "class":
                found = 0
                for method in self.members(definition):
                    found |= self.tests_of(method)
            else:
                lines = (definition.body_line, definition.end_line)
                found = self.baseline.coverage.of_lines(definition.path, *lines) & self.passing
            self._tests[key] = found
        return self._tests[key]

    def members(self, owner: Definition) -> Iterator[Definition]:
        """Methods (and nested classes) directly in a class."""
        for definition in self.project.sources[owner.path].definitions:
            if definition.owner == owner.qualified_name:
                yield definition

    @cached_property
    def functions(self) -> tuple[Definition, ...]:
        """Functions and methods with a body that tests run.

        Left out: overloads and abstract ones; names that are defined twice (properties with setters, conditional
        definitions: nothing to cut cleanly); what runs at import, where a missing body breaks everything; and what
        defines names of the module.
        """
        times = Counter((d.path, d.qualified_name) for f in self.project.sources.values() for d in f.definitions)
        return tuple(
            d
            for key, d in self.project.definitions.items()
            if d.kind != "class"
            and times[key] == 1
            and self.tests_of(d)
            and not _NOT_FEATURES.search(d.signature)
            and not self._runs_at_import(d)
            and not self._declares_globals(d)
        )

    def _declares_globals(self, definition: Definition) -> bool:
        source = self.project.sources[definition.path].source
        return re.search(rb"^\s*global\s", source[definition.body_byte : definition.end_byte], re.MULTILINE) is not None

    def _runs_at_import(self, definition: Definition) -> bool:
        at_import = self.baseline.coverage.import_lines.get(definition.path, frozenset())
        return any(line in at_import for line in range(definition.body_line, definition.end_line + 1))

    @cached_property
    def classes(self) -> tuple[Definition, ...]:
        """Classes at the top of a module that tests run."""
        found = self.project.definitions.values()
        return tuple(d for d in found if d.kind == "class" and not d.owner and self.tests_of(d))

    def exclusive_to(self, group: int) -> Exclusive:
        """A test of lines: whether only tests of ``group`` run them."""

        def exclusive(path: str, first: int, last: int) -> bool:
            return not self.baseline.coverage.of_lines(path, first, last) & self.passing & ~group

        return exclusive

    def operate(self, group: int) -> Surgery:
        """A fresh surgery for a feature that ``group`` exercises."""
        return Surgery(self.project, self.exclusive_to(group))

    def is_documented(self, definition: Definition) -> bool:
        """Whether somebody who lost the code could know what it did: a docstring, or a mention in the docs."""
        return len(definition.docstring) >= 20 or self.mentioned(definition.name)

    def mentioned(self, name: str) -> bool:
        """Whether the documentation speaks of a name."""
        return name in self._words

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(re.findall(r"\w+", self.documentation))

    @cached_property
    def references(self) -> dict[tuple[str, str], frozenset[tuple[str, str]]]:
        """Definition -> definitions that its code names (by bare name, where at most three share it)."""
        by_name: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for key, definition in self.project.definitions.items():
            by_name[definition.name].append(key)
        found: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
        for file in self.project.sources.values():
            for name, uses in file.uses.items():
                targets = by_name.get(name, ())
                if not 1 <= len(targets) <= 3:
                    continue
                for use in uses:
                    for key in self._around(file.path, use.node.start_byte):
                        found[key].update(t for t in targets if t != key)
        return {key: frozenset(targets) for key, targets in found.items()}

    def _around(self, path: str, byte: int) -> Iterator[tuple[str, str]]:
        for definition in self.project.sources[path].definitions:
            if definition.start_byte <= byte < definition.end_byte:
                yield path, definition.qualified_name

    @cached_property
    def tests_by_file(self) -> dict[str, int]:
        """Test file -> its passing tests."""
        found: dict[str, int] = defaultdict(int)
        for i, test in enumerate(self.baseline.coverage.tests):
            found[test.split("::")[0]] |= 1 << i
        return {path: bits & self.passing for path, bits in found.items()}

    def importing(self, symbol: Symbol) -> int:
        """Tests of the files that do not load without a name (a conftest counts for all below it)."""
        found = 0
        for path in self._dependents(self.project.importers(symbol)):
            folder, _, file = path.rpartition("/")
            for other, bits in self.tests_by_file.items():
                if other == path or (file == "conftest.py" and (not folder or other.startswith(folder + "/"))):
                    found |= bits
        return found

    def _dependents(self, paths: Iterable[str]) -> frozenset[str]:
        """Test files and those that import from them (by the last part of the module's name), and so on."""
        found, queue = set(paths), list(paths)
        while queue:
            stem = queue.pop().rpartition("/")[2].removesuffix(".py")
            new = self._importers_by_stem.get(stem, frozenset()) - found
            found |= new
            queue += new
        return frozenset(found)

    @cached_property
    def _importers_by_stem(self) -> dict[str, frozenset[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for path, file in self.project.tests.items():
            for imported in file.imports:
                for name in (imported.module.rpartition(".")[2], imported.name):
                    found[name or ""].add(path)
        return {name: frozenset(paths) for name, paths in found.items()}

    def covering(self, deletion: Deletion) -> int:
        """Tests that run a line that goes."""
        found = 0
        for path, lines in deletion.removed_lines.items():
            by_line = self.baseline.coverage.lines.get(path, {})
            for line in lines:
                found |= by_line.get(line, 0)
        return found & self.passing

    def predicted(self, deletion: Deletion) -> int:
        """Tests expected to break: those that run what goes, and those whose file imports it by name."""
        found = self.covering(deletion)
        for path, name in deletion.names:
            found |= self.importing(Symbol(path=path, name=name))
        return found


def size_score(n_lines: int, best: int) -> float:
    """1 at ``best`` lines, falling to 0 towards none and towards many times that."""
    return min(n_lines / best, best / max(n_lines, 1))


def count(bits: int) -> int:
    """How many tests a set of bits holds."""
    return bits.bit_count()


def documented_share(survey: Survey, definitions: Iterable[Definition]) -> float:
    """The share of the public definitions (of all, if none is public) that are documented."""
    listed = list(definitions)
    public = [d for d in listed if not d.name.startswith("_")] or listed
    return sum(survey.is_documented(d) for d in public) / len(public) if public else 0.0
