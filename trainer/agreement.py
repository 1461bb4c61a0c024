"""What ranks agree on before collectives start: the same plan, and finite gradients. Imports torch alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.collectives import all_reduce, naming


class PlanMismatch(ValueError):
    """Ranks that share a parameter describe it differently."""


class NonFiniteGradient(FloatingPointError):
    """A gradient has NaN or infinite entries; no state was touched."""


T = TypeVar("T")
Item = TypeVar("Item", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True)
class Described:
    """A parameter as a rank sees it: the ``ranks`` that hold it, and all else that they must agree on."""

    ranks: tuple[int, ...]
    text: str


def agree(parameters: Mapping[str, Described], settings: str, group: dist.ProcessGroup | None) -> None:
    """Compare this rank's view with all others', once.

    Raises PlanMismatch on every rank of ``group``, with the same message, if some parameter or the settings differ.
    """
    if not dist.is_initialized():
        return
    everybody = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
    seen = {**parameters, "the optimizer's settings": Described(everybody, settings)}
    digests = _gathered({name: _digest(described) for name, described in seen.items()}, group)
    mine = digests[dist.get_rank()]
    faults = [
        name
        for name, described in seen.items()
        if any(digests.get(rank, {}).get(name) != mine[name] for rank in described.ranks)
    ]
    all_faults = sorted({fault for part in _gathered(faults, group).values() for fault in part})
    if all_faults:
        texts = _gathered({name: seen[name].text for name in all_faults if name in seen}, group)
        raise PlanMismatch("\n".join(_report(name, texts) for name in all_faults))


def everybody(mine: set[Item], group: dist.ProcessGroup | None) -> list[Item]:
    """What the ranks of ``group`` have, all together, sorted."""
    return sorted(set().union(*_gathered(mine, group).values()))


def _report(name: str, texts: Mapping[int, Mapping[str, str]]) -> str:
    seen = "; ".join(f"rank {rank}: {part[name]}" for rank, part in sorted(texts.items()) if name in part)
    absent = [rank for rank, part in sorted(texts.items()) if name not in part]
    return f"{name}: ranks do not agree: {seen}" + (f"; not on ranks {absent}" if absent else "")


def refuse_non_finite(gradients: Mapping[str, Tensor], group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Raises NonFiniteGradient on every rank of ``group`` if any rank's local gradients hold NaN or infinity.

    ``gradients`` are this rank's shards by parameter. Costs one all-reduce of one number.
    """
    bad = _non_finite(gradients)
    flag = torch.tensor(float(len(bad)), device=device)
    if all_reduce(flag, "all-reduce of whether all gradients are finite", dist.ReduceOp.MAX, group).item() == 0:
        return
    found = _gathered(bad, group) if dist.is_initialized() else {0: bad}
    where = "; ".join(f"rank {rank}: {', '.join(names)}" for rank, names in sorted(found.items()) if names)
    raise NonFiniteGradient(f"gradients are not finite: {where}. Nothing was changed; skip this step or look for why")


def _non_finite(gradients: Mapping[str, Tensor]) -> list[str]:
    """Names of gradients with NaN or infinity. The sum of squares tells at once where there is none."""
    if not gradients:
        return []
    norms = torch.stack([norm.float() for norm in torch._foreach_norm(list(gradients.values()))])
    if bool(norms.isfinite().all()):
        return []
    return [name for name, gradient in gradients.items() if not bool(gradient.isfinite().all())]


def _digest(seen: Described) -> str:
    return hashlib.sha256(f"{seen.ranks} {seen.text}".encode()).hexdigest()


def _gathered(mine: T, group: dist.ProcessGroup | None) -> dict[int, T]:
    """Everybody's object by global rank."""
    ranks: Sequence[int] = dist.get_process_group_ranks(group or dist.group.WORLD)
    objects: list[T | None] = [None] * len(ranks)
    with naming("all-gather of what ranks have to agree on"):
        dist.all_gather_object(objects, mine, group=group)
    return dict(zip(ranks, objects, strict=True))  # type: ignore[arg-type]
