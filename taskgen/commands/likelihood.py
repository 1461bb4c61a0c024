"""How surprised a policy is by the code that candidates delete: what it would hardly write, it hardly solves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from taskgen import fill
from taskgen.errors import PolicyFault
from taskgen.fill import CannotFill
from taskgen.policies.policy import Form, Policy, Prompt, Sampling, Scores
from taskgen.store import RunState
from taskgen.types import Candidate

STAGE = "surprise"


def surprises(
    policy: Policy, sampling: Sampling, pool: Sequence[Candidate], sources: Mapping[str, bytes], state: RunState,
    check: Callable[[], None],
) -> dict[str, float]:  # fmt: skip
    """For each candidate that deletes one body, minus the log-probability that the policy writes it, in nats.

    None at all for a policy that does not tell, or that answers messages: the statement is not made yet. What the run's
    state knows is not asked again.

    Args:
        sources: the pristine source files.
        check: called now and then; raises where the run was stopped.

    Raises PolicyFault or PrerequisiteError if the policy cannot be asked.
    """
    if not isinstance(policy, Scores) or policy.form is not Form.CONTINUATION:
        return {}
    known = {name: float(record["nats"]) for name, record in state.all(STAGE).items()}
    questions = [question for c in pool if c.instance_id not in known and (question := _question(c, sources, sampling))]
    for start in range(0, len(questions), policy.batch):
        check()
        batch = questions[start : start + policy.batch]
        found = policy.log_likelihoods([prompt for prompt, _ in batch], [body for _, body in batch], sampling)
        if isinstance(found, PolicyFault):
            raise found
        for (prompt, _), value in zip(batch, found, strict=True):
            state.put(STAGE, prompt.instance_id, {"nats": -value})
            known[prompt.instance_id] = -value
    return {c.instance_id: known[c.instance_id] for c in pool if c.instance_id in known}


def _question(candidate: Candidate, sources: Mapping[str, bytes], sampling: Sampling) -> tuple[Prompt, str] | None:
    """What would be asked, and what stood there; None where more than one body goes."""
    if len(candidate.deletion.files) != 1:
        return None
    found = fill.site_of_deletion(candidate.deletion, sources[next(iter(candidate.deletion.files))])
    if isinstance(found, CannotFill):
        return None
    site, body = found
    text = fill.text_before(site, sampling.context_chars)
    prompt = Prompt(instance_id=candidate.instance_id, folder=Path(), text=text, indent=site.indent, messages=())
    return prompt, body
