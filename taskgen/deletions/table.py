"""The operator seam and its table: an operator is a module that proposes deletions of one kind.

Adding one is a module and a line here. An operator never touches a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from taskgen.deletions import feature, function, method_group, module, whole_class
from taskgen.deletions.survey import Proposal, Survey
from taskgen.types import Recipe


class Operator(Protocol):
    """What a module of this package provides."""

    def propose(self, survey: Survey, recipe: Recipe) -> Iterator[Proposal]:
        """Deletions that are worth running, in any order; bounds of the recipe are checked by the caller.

        A proposal is only made for code that repairs itself: what is left compiles and refers to nothing
        that is gone, as far as the syntax tells.
        """


OPERATORS: Mapping[str, Operator] = {
    "function": function,
    "method-group": method_group,
    "class": whole_class,
    "module": module,
    "feature": feature,
}
