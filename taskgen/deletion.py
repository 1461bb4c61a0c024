"""The operator seam: an operator proposes deletions of one kind; it never touches a test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from taskgen.deletions.survey import Proposal, Survey
from taskgen.types import Recipe


class Operator(Protocol):
    """A deletion operator is a module with this function."""

    def propose(self, survey: Survey, recipe: Recipe) -> Iterator[Proposal]:
        """Deletions that are worth running, in any order; bounds of the recipe are checked by the caller.

        A proposal is only made for code that repairs itself: what is left compiles and refers to nothing
        that is gone, as far as the syntax tells.
        """
