"""Which optimizer updates which parameter, and which units Muon sees: decided once, by name and shape, and shown.

Muon: matrices inside the network. Attention projections per head (q, k, v by rows, o by columns), the halves of a
fused gate-up projection, the latent and the rotary rows of a compressed projection and the stacked experts each by
themselves; other matrices whole. AdamW: embeddings, the output head, vectors (norms, biases).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from trainer.units import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Sizes of attention: ``nope_dim`` and ``rope_dim`` are the two parts of a query's and key's head in multi-head
    latent attention (rope_dim 0: the other kinds); ``latent_dim`` is the rank of its compressed keys and values."""

    n_heads: int
    n_kv_heads: int
    nope_dim: int
    value_dim: int
    rope_dim: int = 0
    latent_dim: int = 0

    @staticmethod
    def of(config: object) -> Heads:
        """From a configuration with the field names that Hugging Face's decoders use.

        Raises ValueError if a needed field is not there.
        """

        def field(name: str, otherwise: int | None = None) -> int:
            value = getattr(config, name, None) or otherwise
            if value is None:
                raise ValueError(f"heads: the configuration {type(config).__name__} has no {name}")
            return int(value)

        n_heads = field("num_attention_heads")
        if getattr(config, "kv_lora_rank", None):
            return Heads(
                n_heads=n_heads,
                n_kv_heads=n_heads,
                nope_dim=field("qk_nope_head_dim"),
                rope_dim=field("qk_rope_head_dim"),
                value_dim=field("v_head_dim"),
                latent_dim=field("kv_lora_rank"),
            )
        dim = getattr(config, "head_dim", None) or field("hidden_size") // n_heads
        n_kv_heads = field("num_key_value_heads", n_heads)
        return Heads(n_heads=n_heads, n_kv_heads=n_kv_heads, nope_dim=dim, value_dim=dim)

    def split(self, projection: str) -> Split | None:
        """The units of the projection of this name; None: it is one unit."""
        query = self.nope_dim + self.rope_dim
        match projection:
            case "q_proj" | "q_b_proj":
                return Split(-2, (query,) * self.n_heads)
            case "k_proj":
                return Split(-2, (self.nope_dim,) * self.n_kv_heads)
            case "v_proj":
                return Split(-2, (self.value_dim,) * self.n_kv_heads)
            case "qkv_proj":
                return Split(-2, (self.nope_dim,) * (self.n_heads + 2 * self.n_kv_heads))
            case "kv_a_proj_with_mqa":
                return Split(-2, (self.latent_dim, self.rope_dim))
            case "kv_b_proj":
                return Split(-2, (self.nope_dim, self.value_dim) * self.n_heads)
            case "o_proj":
                return Split(-1, (self.value_dim,) * self.n_heads)
        return None


_FUSED = ("gate_up", "gate_up_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What updates a parameter, in which units, and why."""

    name: str
    shape: tuple[int, ...]
    muon: bool
    why: str
    split: Split | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """An assignment for every trainable parameter of a model."""

    assignments: tuple[Assignment, ...]

    def assigning(self, name: str, *, muon: bool, split: Split | None = None) -> Partition:
        """With another choice for one parameter. Raises ValueError if there is none of this name."""
        if name not in {a.name for a in self.assignments}:
            raise ValueError(f"partition: there is no trainable parameter {name!r}")
        chosen = {"muon": muon, "split": split, "why": "chosen"}
        return Partition(tuple(replace(a, **chosen) if a.name == name else a for a in self.assignments))  # type: ignore[arg-type]

    @property
    def splits(self) -> dict[str, Split]:
        """For trainer.muon.Muon."""
        return {a.name: a.split for a in self.assignments if a.split is not None}

    def groups(self, model: nn.Module, *, muon: Mapping[str, Any], adamw: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The two parameter groups, with settings of their own. Raises ValueError as ``check`` does."""
        self.check(model)
        tensors = dict(_trainable(model))
        return [
            {
                "algorithm": "muon" if by_muon else "adamw",
                "params": [(a.name, tensors[a.name]) for a in self.assignments if a.muon is by_muon],
                **(muon if by_muon else adamw),
            }
            for by_muon in (True, False)
            if any(a.muon is by_muon for a in self.assignments)
        ]

    def check(self, model: nn.Module) -> None:
        """Raises ValueError if a parameter is left out, named twice, unknown, of another shape, or not fit for Muon."""
        tensors = dict(_trainable(model))
        names = [a.name for a in self.assignments]
        faults = [f"{name}: assigned {names.count(name)} times" for name in sorted(set(names)) if names.count(name) > 1]
        faults += [f"{name}: not assigned to an optimizer" for name in tensors if name not in names]
        for a in self.assignments:
            faults += _faults(a, tensors.get(a.name))
        if faults:
            raise ValueError("partition: " + "; ".join(faults))

    def table(self) -> str:
        """One line a parameter: what updates it, its shape, its units, why."""
        width = max((len(a.name) for a in self.assignments), default=0)
        return "\n".join(
            f"{a.name:{width}}  {'muon ' if a.muon else 'adamw'}  {_units(a):40}  {a.why}" for a in self.assignments
        )


def partition(model: nn.Module, heads: Heads | None) -> Partition:
    """The partition of a decoder whose projections have the names of Hugging Face's; without ``heads``, attention
    projections are whole.

    Raises ValueError if heads do not fit the shapes.
    """
    outer = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    result = Partition(tuple(_assign(name, p, id(p) in outer, heads) for name, p in _trainable(model)))
    result.check(model)
    return result


def _assign(name: str, parameter: Tensor, embedding: bool, heads: Heads | None) -> Assignment:
    shape = tuple(parameter.shape)
    *_, owner, last = ["", *name.split(".")]
    module = owner if last in ("weight", "bias") else last
    if embedding or parameter.ndim < 2 or module == "lm_head":
        why = "embedding" if embedding else "vector" if parameter.ndim < 2 else "output head"
        return Assignment(name=name, shape=shape, muon=False, why=why)
    split = heads.split(module) if heads is not None else None
    why = "per head" if split is not None else "experts" if parameter.ndim > 2 else "matrix"
    if module in _FUSED:
        half, odd = divmod(shape[-2], 2)
        if odd:
            raise ValueError(f"{name}: fused halves of an odd number of rows: {shape}")
        split, why = Split(-2, (half, half)), f"{why}, gate and up apart"
    return Assignment(name=name, shape=shape, muon=True, why=why, split=split)


def _trainable(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def _faults(assignment: Assignment, tensor: Tensor | None) -> list[str]:
    name, split = assignment.name, assignment.split
    if tensor is None:
        return [f"{name}: the model has no such trainable parameter"]
    if tuple(tensor.shape) != assignment.shape:
        return [f"{name}: has shape {tuple(tensor.shape)}, the partition says {assignment.shape}"]
    if assignment.muon and tensor.ndim < 2:
        return [f"{name}: Muon is for matrices, and this has shape {tuple(tensor.shape)}"]
    if split is not None and not assignment.muon:
        return [f"{name}: has units, but AdamW updates it"]
    if split is not None:
        split.check(name, assignment.shape)
    return []


def _units(assignment: Assignment) -> str:
    shape, split = " x ".join(map(str, assignment.shape)), assignment.split
    if split is None:
        return shape
    sizes = sorted(set(split.sizes), reverse=True)
    kind = "rows" if split.dim == -2 else "columns"
    return f"{shape}: {len(split.sizes)} units of {' and '.join(map(str, sizes))} {kind}"
