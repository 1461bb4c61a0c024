"""Sample rollouts of a run, for people: a few of its first and of its last steps.

What is read was written by a policy. It is text here, cut to a bounded length, with control characters and those that
turn the direction of writing shown as escapes; whoever puts it into a page must escape it for that page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from taskgen.errors import FormatError
from taskgen.rollout_file import FAULT, REASON, VERDICT
from taskgen.trajectories import dump, to_rollout
from taskgen.types import Rollout, Turn

#: Keys of ``Rollout.extra`` (``HINT``: also of ``Turn.extra``): the step that a rollout was made for, and the hint that
#: feedback gave.
STEP, HINT = "step", "hint"
#: Bytes that are read at the file's start, and as many at its end.
ENDS_BYTES = 8 << 20
#: Steps at each end, and rollouts of a step with a pass, with a failure, without a reward.
N_STEPS, N_PASSED, N_FAILED, N_OTHER = 2, 2, 2, 1
MAX_PROMPT, MAX_COMPLETION, MAX_LINE = 1200, 4000, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A rollout as text. ``outcome``: passed, failed, or no reward. ``step``: None if it was not recorded."""

    step: int | None
    rollout_id: str
    instance_id: str
    outcome: str
    reward: float | None
    verdict: str
    hint: str
    prompt: str
    completion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Of the first steps and of the last. ``n_unread``: lines at either end that are no rollouts."""

    first: tuple[Sample, ...] = ()
    last: tuple[Sample, ...] = ()
    n_unread: int = 0


def read_samples(path: Path) -> Samples:
    """Samples from a file of rollouts, of which the two ends alone are read. A file that is not there has none.

    Raises FormatError: the file cannot be read.
    """
    if not path.exists():
        return Samples()
    try:
        head, tail = _ends(path)
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}") from error
    found = [[rollout for rollout in _rollouts(lines) if rollout is not None] for lines in (head, tail)]
    n_unread = len(head) + len(tail) - len(found[0]) - len(found[1])
    every = found[0] + found[1]
    steps = list(dict.fromkeys(_step(rollout) for rollout in every))
    first, last = steps[:N_STEPS], steps[N_STEPS:][-N_STEPS:]
    if len(steps) == 1 and found[1]:  # steps were not recorded, or one step fills more than an end
        return Samples(first=_chosen(found[0], first), last=_chosen(found[1], first), n_unread=n_unread)
    return Samples(first=_chosen(every, first), last=_chosen(every, last), n_unread=n_unread)


def _ends(path: Path) -> tuple[list[bytes], list[bytes]]:
    """The whole lines of the file's first bytes, and those of its last bytes that are not among them."""
    with path.open("rb") as file:
        head = file.read(ENDS_BYTES)
        begin = max(path.stat().st_size - ENDS_BYTES, len(head))
        file.seek(begin - 1 if begin > len(head) else head.rfind(b"\n") + 1)
        rest = file.read(2 * ENDS_BYTES)
    whole = rest.split(b"\n")[:-1]
    return head.split(b"\n")[:-1], whole[1:] if begin > len(head) else whole


def _rollouts(lines: Sequence[bytes]) -> Iterator[Rollout | None]:
    for line in lines:
        try:
            yield to_rollout(json.loads(line), "rollouts")
        except (ValueError, RecursionError, AttributeError, TypeError, FormatError):
            yield None


def _step(rollout: Rollout) -> int | None:
    step = rollout.extra.get(STEP)
    return step if isinstance(step, int) else None


def _chosen(rollouts: Sequence[Rollout], steps: Sequence[int | None]) -> tuple[Sample, ...]:
    left = {(step, kind): n for step in steps for kind, n in _WANTED.items()}
    samples = []
    for rollout in rollouts:
        key = _step(rollout), _outcome(rollout)
        if left.get(key):
            left[key] -= 1
            samples.append(_sample(rollout))
    order = list(_WANTED)
    return tuple(sorted(samples, key=lambda s: (steps.index(s.step), order.index(s.outcome))))


_PASSED, _FAILED, _OTHER = "passed", "failed", "no reward"
_WANTED = {_PASSED: N_PASSED, _FAILED: N_FAILED, _OTHER: N_OTHER}


def _outcome(rollout: Rollout) -> str:
    if rollout.reward is None:
        return _OTHER
    return _PASSED if rollout.reward > 0 else _FAILED


def _sample(rollout: Rollout) -> Sample:
    answered = max((i for i, turn in enumerate(rollout.turns) if turn.role == "assistant"), default=len(rollout.turns))
    asked = "\n".join(_text(turn) for turn in rollout.turns[:answered])
    extra = rollout.extra
    verdict = ": ".join(_words(extra[key]) for key in (VERDICT, REASON, FAULT) if extra.get(key))
    hints = [found[HINT] for found in (extra, *(turn.extra for turn in rollout.turns)) if found.get(HINT)]
    return Sample(
        step=_step(rollout),
        rollout_id=shown(rollout.rollout_id[:MAX_LINE]),
        instance_id=shown(rollout.instance_id[:MAX_LINE]),
        outcome=_outcome(rollout),
        reward=rollout.reward,
        verdict=shown(verdict[:MAX_LINE]),
        hint=shown("\n".join(map(_words, hints))[:MAX_PROMPT]),
        prompt=("…" if len(asked) > MAX_PROMPT else "") + shown(asked[-MAX_PROMPT:]),
        completion=_cut("\n".join(_text(turn) for turn in rollout.turns[answered:])),
    )


def _cut(text: str) -> str:
    more = len(text) - MAX_COMPLETION
    return shown(text[:MAX_COMPLETION]) + (f"\n… and {more:,} more characters" if more > 0 else "")


def _text(turn: Turn) -> str:
    calls = [f"{call.name}({dump(call.arguments)})" for call in turn.tool_calls]
    return "\n".join([turn.text, *calls, *(result.text for result in turn.tool_results)]).strip("\n")


def _words(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def shown(text: str) -> str:
    """Text with lines and tabs as they are; other control characters, marks that turn the direction of writing and
    lone surrogates as escapes."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else f"\\u{ord(c):04x}"
        for c in text.encode("utf-8", "backslashreplace").decode()
    )
