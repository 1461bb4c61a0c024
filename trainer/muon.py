"""Muon over DTensors: momentum on shards, Newton-Schulz on whole matrices, bit-equal to Muon on one process.

A step, for every chunk of same-shape units (trainer/reshard.py), as a task of the pipeline (trainer/pipeline.py):

1. on this rank's parts: momentum <- mu momentum + gradient, and the input, mu momentum + gradient if Nesterov;
2. all-to-all: the parts, cast to the wire's dtype, go to the units' owners, which put them together;
3. the owner runs Newton-Schulz on its whole matrices;
4. all-to-all: the results, cast to the wire's dtype, go back to where the parts came from;
5. on this rank's parts: weight <- (1 - lr decay) weight - lr factor result, with the factor of ``Scale``.

Every element of steps 1 and 5 is computed by the same operations, one rounding each, as on one process, and step 3
has whole matrices in one canonical layout; so the bits do not depend on how many ranks there are (docs/muon.md).

Parameter groups have ``algorithm`` "muon" or "adamw"; the latter runs torch's AdamW on the local shards. Imports torch
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer.adamw import adamw_step, local_gradient, state_of
from trainer.agreement import Described, agree, refuse_non_finite
from trainer.collectives import naming
from trainer.muon_options import Options, Scale, Traffic
from trainer.newton_schulz import flops
from trainer.pipeline import Task, run, spread
from trainer.reshard import Chunk, Exchange, plan
from trainer.units import Split, Unit, layout_of, to_local, units_of
from trainer.ways import Ways, ways_of


def all_to_all(
    received: Tensor, sent: Tensor, received_sizes: list[int], sent_sizes: list[int], group: dist.ProcessGroup
) -> dist.Work:
    """Start an uneven all-to-all; sizes are elements for every rank of the group."""
    work: dist.Work = dist.all_to_all_single(received, sent, received_sizes, sent_sizes, group=group, async_op=True)
    return work


@dataclass(slots=True)
class _Local:
    """A parameter's tensors on this rank."""

    weight: Tensor
    gradient: Tensor
    momentum: Tensor


@dataclass(slots=True)
class _Prepared:
    exchanges: list[Exchange]
    ways: dict[tuple[int, ...], Ways]


class Muon(torch.optim.Optimizer):
    """Muon for matrices, AdamW for the rest, on any mixture of DTensors (of several meshes) and plain tensors.

    ``params``: groups whose "params" are (name, parameter) pairs; names are the same on all ranks. ``splits`` cuts
    named parameters into several units. A parameter without a gradient on this rank has a gradient of zeros. All
    ranks of ``process_group`` (default: all) call ``step`` together.

    ``observe(event, chunk)`` is called with "inbound", "compute", "outbound" and "apply" as they begin; ``transport``
    starts the all-to-alls.

    Raises ValueError for groups that it cannot work with, PlanMismatch at the first step if ranks do not agree,
    NonFiniteGradient before anything is changed, CollectiveFailed when another rank fails.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        lr: float = 0.02,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        scale: Scale = Scale.MOONLIGHT,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        splits: Mapping[str, Split] | None = None,
        options: Options | None = None,
        process_group: dist.ProcessGroup | None = None,
        transport: Callable[..., dist.Work] = all_to_all,
        observe: Callable[[str, Chunk], None] = lambda event, chunk: None,
    ) -> None:
        self.options, self.splits = options or Options(), dict(splits or {})
        self.process_group, self._transport, self._observe = process_group, transport, observe
        self.traffic = Traffic()
        self._prepared: _Prepared | None = None
        defaults = {"algorithm": "muon", "lr": lr, "momentum": momentum, "nesterov": nesterov, "scale": scale.value}
        super().__init__(params, {**defaults, "weight_decay": weight_decay, "betas": betas, "eps": eps})
        unknown = self.splits.keys() - {name for name, _ in self._named("muon")}
        if unknown:
            raise ValueError(f"splits: not among the parameters that Muon updates: {', '.join(sorted(unknown))}")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ValueError if parameters have no names, or Muon is to update what is no matrix."""
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        self._prepared = None
        if "param_names" not in added:
            raise ValueError("params: give (name, parameter) pairs, as model.named_parameters() does")
        if added["algorithm"] not in ("muon", "adamw"):
            raise ValueError(f"algorithm: 'muon' or 'adamw', not {added['algorithm']!r}")
        for name, parameter in zip(added["param_names"], added["params"], strict=True):
            if added["algorithm"] == "muon" and parameter.ndim < 2:
                raise ValueError(f"{name}: Muon is for matrices, and this has shape {tuple(parameter.shape)}")
            if added["algorithm"] == "muon" and name in self.splits:
                self.splits[name].check(name, parameter.shape)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of all parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        prepared = self._prepared = self._prepared or self._prepare()
        gradients = {name: local_gradient(name, p) for name, p in self._named() if p.grad is not None}
        if self.options.check_finite:
            refuse_non_finite(gradients, self.process_group, self._device())
        self.traffic = Traffic()
        local = {name: self._local(p, gradients.get(name)) for name, p in self._named("muon")}
        tasks = [(x.chunk.owners is not None, self._task(x, prepared, local)) for x in prepared.exchanges]
        alone = [task for sends, task in tasks if not sends] + [_as_task(lambda: adamw_step(self, gradients))]
        run(spread([task for sends, task in tasks if sends], alone), self.options.in_flight)
        return loss

    def _named(self, algorithm: str | None = None) -> Iterator[tuple[str, Tensor]]:
        for group in self.param_groups:
            if algorithm in (None, group["algorithm"]):
                yield from zip(group["param_names"], group["params"], strict=True)

    def _device(self) -> torch.device:
        return next(parameter.device for _, parameter in self._named())

    def _prepare(self) -> _Prepared:
        """Plan the exchanges, once the ranks have agreed on what they have."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        units: list[Unit] = []
        described: dict[str, Described] = {}
        meshes: dict[tuple[int, ...], dist.ProcessGroup] = {}
        for number, group in enumerate(self.param_groups):
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                layout = layout_of(name, parameter, rank)
                what = (number, group["algorithm"], tuple(parameter.shape), str(parameter.dtype), layout.placements)
                described[name] = Described(layout.ranks, f"{what} {layout.boxes} {self.splits.get(name)}")
                if group["algorithm"] == "muon":
                    units += units_of(name, number, parameter, layout, self.splits.get(name))
                    if isinstance(parameter, DTensor) and parameter.device_mesh.ndim == 1:
                        meshes.setdefault(layout.ranks, parameter.device_mesh.get_group())
        agree(described, self.options.text(), self.process_group)
        chunks = plan(
            units,
            cost=lambda rows, cols: flops(rows, cols, len(self.options.schedule.coefficients)),
            chunk_bytes=self.options.chunk_bytes,
            wire=self.options.wire_dtype,
            split_whole=self.options.split_whole,
        )
        wanted = {chunk.ranks for chunk in chunks if chunk.owners is not None}
        exchanges = [Exchange(c, c.ranks.index(rank), self.options.wire_dtype, self._device()) for c in chunks]
        ways = ways_of(wanted, meshes, self.process_group, self._device()) if dist.is_initialized() else {}
        return _Prepared(exchanges, ways)

    def named_state(self) -> dict[str, Tensor]:
        """The state's tensors by "PARAMETER.KEY", laid out as the parameters are; zeros before the first step."""
        states = [(name, self._momentum(parameter)) for name, parameter in self._named("muon")]
        states += [(name, state_of(self, parameter)) for name, parameter in self._named("adamw")]
        return {f"{name}.{key}": tensor for name, state in states for key, tensor in state.items()}

    def _momentum(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        return state

    def _local(self, parameter: Tensor, gradient: Tensor | None) -> _Local:
        state, weight = self._momentum(parameter), to_local(parameter)
        if gradient is None:
            gradient = torch.zeros((), dtype=weight.dtype, device=weight.device).expand(weight.shape)
        return _Local(weight, gradient, to_local(state["momentum_buffer"]))

    def _task(self, exchange: Exchange, prepared: _Prepared, local: Mapping[str, _Local]) -> Task:
        chunk = exchange.chunk
        ways = prepared.ways.get(chunk.ranks) if chunk.owners is not None else None
        parts = self._inputs(exchange, local)
        received = exchange.buffer(0)
        if ways is not None and not chunk.whole:
            received, work = self._start("inbound", exchange.pack(parts), exchange.inbound, exchange, ways.inbound)
            yield
            self._wait(work, "inbound", chunk)
        self._observe("compute", chunk)
        matrices = exchange.assemble(received, parts)
        del parts
        results = (
            self.options.kernel(matrices, self.options.schedule, self.options.ns_dtype) if len(matrices) else matrices
        )
        results = results.to(exchange.wire)
        del matrices
        received = exchange.buffer(0)
        if ways is not None:
            if chunk.whole:
                yield
            received, work = self._start(
                "outbound", exchange.pack_results(results), exchange.outbound, exchange, ways.outbound
            )
            yield
            self._wait(work, "outbound", chunk)
        self._apply(exchange, local, exchange.results(received, results))

    def _inputs(self, exchange: Exchange, local: Mapping[str, _Local]) -> dict[int, Tensor]:
        """Momentum of this rank's parts, and what goes into Newton-Schulz, by position."""
        units, group = exchange.chunk.units, self.param_groups[exchange.chunk.units[0].group]
        if not exchange.mine:
            return {}
        held = [(local[units[position].parameter], part) for position, part in exchange.mine.items()]
        momenta = [tensors.momentum[part.local] for tensors, part in held]
        gradients = [tensors.gradient[part.local] for tensors, part in held]
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_add_(momenta, gradients)
        inputs = momenta
        if group["nesterov"]:
            inputs = list(torch._foreach_mul(momenta, group["momentum"]))
            torch._foreach_add_(inputs, gradients)
        return dict(zip(exchange.mine, inputs, strict=True))

    def _apply(self, exchange: Exchange, local: Mapping[str, _Local], results: dict[int, Tensor]) -> None:
        units, group = exchange.chunk.units, self.param_groups[exchange.chunk.units[0].group]
        if not results:
            return
        self._observe("apply", exchange.chunk)
        weights = [local[units[i].parameter].weight[exchange.mine[i].local] for i in results]
        updates = [result.to(weight.dtype) for result, weight in zip(results.values(), weights, strict=True)]
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        # Scaled first and added then: one rounding each, where a fused multiply-add would depend on the code path.
        updates = list(torch._foreach_mul(updates, -group["lr"] * Scale(group["scale"]).factor(*units[0].shape)))
        torch._foreach_add_(weights, updates)

    def _start(
        self, event: str, sent: Tensor, sizes: tuple[list[int], list[int]], exchange: Exchange, group: dist.ProcessGroup
    ) -> tuple[Tensor, dist.Work]:
        sent_sizes, received_sizes = sizes
        self._observe(event, exchange.chunk)
        received = exchange.buffer(sum(received_sizes))
        self.traffic.count(event, sent.numel() * sent.element_size())
        with naming(_name(event, exchange.chunk)):
            return received, self._transport(received, sent, received_sizes, sent_sizes, group)

    def _wait(self, work: dist.Work, event: str, chunk: Chunk) -> None:
        with naming(_name(event, chunk)):
            if self.options.timeout is None:
                work.wait()
            else:
                work.wait(self.options.timeout)


def _as_task(work: Callable[[], None]) -> Task:
    work()
    yield from ()


def _name(event: str, chunk: Chunk) -> str:
    return f"{event} all-to-all of {chunk.name} on ranks {list(chunk.ranks)}"
