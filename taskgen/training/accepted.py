"""Accepted rollouts as examples: the very tokens that were sampled, behind the very tokens of their prompt.

Nothing is tokenized again. That the tokens are those of the model's own tokenizer is not taken on trust: they must
decode to the recorded text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from taskgen import taskset
from taskgen.errors import FormatError
from taskgen.training.clean import clean
from taskgen.training.documents import Collected, Document, LeftOut
from taskgen.training.reading_config import SftConfig
from taskgen.training.rows import Piece
from taskgen.trajectories import read_rollouts
from taskgen.types import Rollout, Turn

_DECODED_AT_ONCE = 64
Decode = Callable[[Sequence[Sequence[int]]], list[str | None]]


@dataclass(frozen=True, slots=True)
class Example:
    """``document``: what people read of it; ``piece``: the tokens, of which the answer's count."""

    document: Document
    piece: Piece
    asked: str
    answer: str


@dataclass(slots=True)
class Accepted:
    """``examples`` and what is not learnt. ``n_rollouts``: with a reward that is high enough or not."""

    examples: list[Example]
    left_out: list[LeftOut]
    n_rollouts: int


def accepted(config: SftConfig, decode: Decode, on_note: Callable[[str], None]) -> Accepted:
    """The examples in the files of rollouts that a configuration names.

    Raises:
        FormatError: a file cannot be read, or no rollout of all of them can be learnt from.
        PolicyFault: the trainer, which decodes, was lost.
    """
    found = Accepted([], [], 0)
    held = {folder.name for place in config.tasks for folder in taskset.find_tasks(place)}
    seen: dict[tuple[int, ...], str] = {}
    for path in config.rollouts:
        for rollout in read_rollouts(path):
            found.n_rollouts += 1
            if rollout.reward is not None and rollout.reward > config.reward_above:
                _take(rollout, path, config.length, held, seen, found)
    _check_tokens(found, decode)
    checked = clean(Collected([example.document for example in found.examples], found.left_out), config.tasks, on_note)
    kept = {document.name for document in checked.documents}
    found.examples = [example for example in found.examples if example.document.name in kept]
    found.left_out = checked.left_out
    if not found.examples:
        raise FormatError(_nothing(config, found), hint="see docs/pretrain.md: which rollouts can be learnt from")
    return found


def _take(
    rollout: Rollout, path: Path, length: int, held: set[str], seen: dict[tuple[int, ...], str], found: Accepted
) -> None:
    example = _example(rollout, path)
    name = f"{path}: {rollout.rollout_id}"
    if example is None:
        found.left_out.append(LeftOut(name=name, why="no token ids"))
    elif rollout.instance_id in held:
        found.left_out.append(LeftOut(name=name, why="a held-out task", detail=rollout.instance_id))
    elif len(example.piece.ids) > length:
        detail = f"{len(example.piece.ids)} tokens"
        found.left_out.append(LeftOut(name=name, why=f"longer than {length} tokens", detail=detail))
    elif (same := seen.setdefault(example.piece.ids, name)) != name:
        found.left_out.append(LeftOut(name=name, why="a copy", detail=same))
    else:
        found.examples.append(example)


def _example(rollout: Rollout, path: Path) -> Example | None:
    """The rollout's one answer, behind the turn that carries the prompt's tokens; None if tokens were not recorded."""
    answers = [i for i, turn in enumerate(rollout.turns) if turn.role == "assistant"]
    if len(answers) != 1 or answers[0] == 0:
        return None
    asked, answer = rollout.turns[answers[0] - 1], rollout.turns[answers[0]]
    prompt, sample = _ids(asked), _ids(answer)
    if not prompt or not sample:
        return None
    document = Document(
        name=f"{path}: {rollout.rollout_id}", text=f"{asked.text}{answer.text}", group=rollout.instance_id
    )
    return Example(document, Piece((*prompt, *sample), len(prompt)), asked.text, answer.text)


def _ids(turn: Turn) -> tuple[int, ...]:
    ids = turn.extra.get("token_ids")
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        return ()
    return tuple(ids)


def _check_tokens(found: Accepted, decode: Decode) -> None:
    """Leave out examples whose tokens are not their text: another tokenizer made them."""
    kept: list[Example] = []
    for start in range(0, len(found.examples), _DECODED_AT_ONCE):
        part = found.examples[start : start + _DECODED_AT_ONCE]
        wholes = decode([example.piece.ids for example in part])
        answers = decode([example.piece.ids[example.piece.counted :] for example in part])
        for example, whole, answer in zip(part, wholes, answers, strict=True):
            # One that continues a file was recorded as what follows the file's text, an answer as it is.
            if whole is not None and (whole == example.document.text or answer == example.answer):
                kept.append(example)
            else:
                found.left_out.append(LeftOut(name=example.document.name, why="tokens of another tokenizer"))
    found.examples = kept


def _nothing(config: SftConfig, found: Accepted) -> str:
    files = ", ".join(map(str, config.rollouts))
    above = f"with a reward above {config.reward_above:g}"
    counts: dict[str, int] = {}
    for left in found.left_out:
        counts[left.why] = counts.get(left.why, 0) + 1
    why = "; ".join(f"{n} {why}" for why, n in counts.items()) or "none has such a reward"
    return f"{files}: none of {found.n_rollouts} rollouts {above} can be learnt from: {why}"
