"""What a step learns from, made ready: groups packed into rows, and as many rows and turns on every rank.

A sharded model's passes are collectives: ranks that make more of them than others would wait forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.advantage import Scaling, advantages, has_signal
from trainer.collectives import all_reduce
from trainer.feedback import Turn
from trainer.packing import Packed, pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The samples of one prompt: token ids, the log-probabilities that they were sampled with, and rewards (None: not
    known, see ``trainer.advantage``). ``hinted``: the samples (by index) that turns with a hint are for; the anchor
    holds all others."""

    prompt: tuple[int, ...]
    samples: tuple[tuple[int, ...], ...]
    behaviour: tuple[tuple[float, ...], ...]
    rewards: tuple[float | None, ...]
    hinted: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not self.hinted <= set(range(len(self.samples))):
            raise ValueError(f"hinted = {sorted(self.hinted)}: there are {len(self.samples)} samples, counted from 0")

    @property
    def has_signal(self) -> bool:
        return has_signal(self.rewards)


@dataclass(slots=True)
class Row:
    """A group, packed: first the samples that the policy term learns from, then those that are only anchored.

    ``gained_N``, ``behaviour_N`` and ``old_N`` are of the former's tokens; ``old_N``, the log-probabilities when the
    step began, is known from its first pass on. ``held_N`` says of each token whether it is anchored. ``counts``: False
    for a row that only keeps this rank in step with the others.
    """

    packed: Packed
    gained_N: Tensor
    behaviour_N: Tensor
    held_N: Tensor
    counts: bool = True
    old_N: Tensor | None = None
    reference_N: Tensor | None = None

    @property
    def learns(self) -> bool:
        return len(self.gained_N) > 0


@dataclass(frozen=True, slots=True)
class Work:
    """Of this rank, as much of each kind as of any other: ``rows`` (those that learn first), and turns with and
    without a hint. A turn of None only keeps in step."""

    rows: list[Row]
    hinted: list[Turn | None]
    others: list[Turn | None]


def _row(group: Group, scaling: Scaling, *, anchored: bool) -> Row | None:
    """What a group teaches: rollouts whose reward is not known have no part in it, but the anchor holds them, too."""
    known = [i for i, reward in enumerate(group.rewards) if reward is not None and group.has_signal]
    held = [i for i in range(len(group.samples)) if anchored and i not in group.hinted]
    packing = known + [i for i in held if i not in known]
    if not packing:
        return None
    packed = pack(group.prompt, [group.samples[i] for i in packing])
    gained = torch.tensor(advantages([group.rewards[i] for i in known], scaling))
    behaviour_N = torch.tensor([logp for i in known for logp in group.behaviour[i]])
    held_N = torch.tensor([i in held for i in packing])[packed.sample_N]
    return Row(packed, gained[packed.sample_N[: len(behaviour_N)]], behaviour_N, held_N)


def in_step(
    groups: Sequence[Group], turns: Sequence[Turn], scaling: Scaling, *, feedback: bool, anchored: bool
) -> Work:
    """This rank's work, filled up to that of the rank with the most: what has no signal, and turns for which no term is
    wanted (``feedback``: those with a hint, ``anchored``: those without), have no part in it.

    Raises CollectiveFailed when another rank fails.
    """
    rows = [row for group in groups if (row := _row(group, scaling, anchored=anchored)) is not None]
    learning, held = [row for row in rows if row.learns], [row for row in rows if not row.learns]
    hinted = [turn for turn in turns if turn.hinted and feedback]
    others = [turn for turn in turns if not turn.hinted and anchored]
    most = torch.tensor([len(kind) for kind in (learning, held, hinted, others)])
    most = all_reduce(most, "all-reduce of the numbers of rows and turns", dist.ReduceOp.MAX)
    n_learning, n_held, n_hinted, n_others = most.tolist()
    return Work(
        learning + [_blank(1) for _ in range(n_learning - len(learning))] + held + [_blank(0)] * (n_held - len(held)),
        [*hinted, *[None] * (n_hinted - len(hinted))],
        [*others, *[None] * (n_others - len(others))],
    )


def _blank(learnt: int) -> Row:
    return Row(
        pack([0], [[0]]), torch.zeros(learnt), torch.zeros(learnt), torch.zeros(1, dtype=torch.bool), counts=False
    )
