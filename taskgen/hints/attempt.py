"""What is known of an attempt when hints are looked for, and what of it belongs to the policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from taskgen import fill
from taskgen.fill import Site
from taskgen.policies.policy import Completion, Form, Prompt
from taskgen.rollout_file import Grade
from taskgen.types import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at a task, graded or not. All of it that the policy wrote is data, never run.

    Attributes:
        turns: the prompt's and the policy's, in order.
        finish_reason: of the last turn: ``stop``, ``length``, or the endpoint's own word.
        code: what it wrote at the site, with the file's indentation ('': nothing); None where that is not known.
        site: where a body was to be written; None for tasks of another kind.
        tools: names of the tools that it was given.
        refused: paths of its work that were left out, with the reason (``Verdict.refused``).
        grade: None where there is none (a fault).
        n_tokens: sampled tokens; 0 where they are not known.
        budget_tokens: what the prompt asked it to stay within; None if it did not say.
        right_tokens: tokens of right answers to the same task.
    """

    instance_id: str
    turns: tuple[Turn, ...]
    form: Form
    finish_reason: str = ""
    code: str | None = None
    site: Site | None = None
    tools: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)
    grade: Grade | None = None
    n_tokens: int = 0
    budget_tokens: int | None = None
    right_tokens: tuple[int, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it was graded and is not right."""
        return self.grade is not None and self.grade.reward <= 0

    def written(self) -> Iterator[tuple[int, Turn]]:
        """The policy's turns, with their indices."""
        return ((i, turn) for i, turn in enumerate(self.turns) if turn.role == "assistant")

    def last(self) -> int:
        """Index of the policy's last turn. Raises ValueError if it has none."""
        return max(i for i, _ in self.written())


def attempt_of(
    prompt: Prompt,
    completion: Completion,
    site: Site,
    grade: Grade | None,
    *,
    budget_tokens: int | None = None,
    right_tokens: tuple[int, ...] = (),
) -> Attempt:
    """An attempt of one turn: a body was asked for at ``site``. Its turns are the prompt's, as the policy read it, and
    the answer."""
    continues = completion.form is Form.CONTINUATION
    asked = (Turn(role="user", text=prompt.text),) if continues else prompt.messages
    if continues:
        code = fill.body_of_continuation(completion.text, site.indent)
    else:
        code = fill.body_of_answer(completion.text, site.name, site.indent)
    return Attempt(
        instance_id=prompt.instance_id,
        turns=(*asked, Turn(role="assistant", text=completion.text)),
        form=completion.form,
        finish_reason=completion.finish_reason,
        code=code,
        site=site,
        grade=grade,
        n_tokens=completion.n_tokens,
        budget_tokens=budget_tokens,
        right_tokens=right_tokens,
    )
