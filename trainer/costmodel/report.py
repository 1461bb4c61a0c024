"""A plan as tables for people, or as one JSON object."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from trainer.costmodel.choice import Answer, Choice, answers, choices, priced, sizes_around
from trainer.costmodel.config import load_plan
from trainer.costmodel.picture import picture
from trainer.costmodel.settings import Plan
from trainer.costmodel.shapes import weights_of
from trainer.costmodel.timeline import ends, timeline

GIB = 2**30
MOST_TRIED = 12


def plan_command(path: Path, *, target_s: float | None, to: Path | None, as_json: bool) -> None:
    """Print the plan of a configuration. ``target_s`` goes before the file's own; ``to``: the timeline's picture.

    Raises ConfigError for a wrong configuration, OSError if the picture cannot be written.
    """
    plan, wanted_s = load_plan(path)
    target = target_s if target_s is not None else wanted_s
    mine, others = priced(plan), choices(plan)
    found = answers(plan, target, sizes_around(plan)) if target is not None else []
    bars = timeline(mine.step)
    if to is not None:
        to.write_text(picture(bars, _title(plan)), "utf-8")
    if as_json:
        print(json.dumps(as_record(mine, others, found, target, ends(bars)), indent=1))
        return
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140)
    for part in tables(mine, others, found, target, ends(bars)):
        console.print(part, highlight=False)


def _title(plan: Plan) -> str:
    parameters = sum(w.numel for w in weights_of(plan.model))
    return (
        f"One optimizer step: {parameters / 1e9:.0f}B parameters on {plan.cluster.gpus} GPUs, {plan.optimizer.kernel}"
    )


def tables(
    mine: Choice, others: Sequence[Choice], found: Sequence[Answer], target: float | None, timeline_s: float
) -> list[Table | str]:
    """What is printed, in order."""
    parts: list[Table | str] = [_model_line(mine.plan), _memory(mine), _phases(mine), *_times(mine, timeline_s)]
    parts += [_choices(mine, others), _best_line(others)]
    if target is not None:
        parts += [_answers(found, target), *_answer_lines(found, target)]
    return parts


def _model_line(plan: Plan) -> str:
    weights = weights_of(plan.model)
    total, muon = sum(w.numel for w in weights), sum(w.numel for w in weights if w.muon)
    units = sum(sum(w.units().values()) for w in weights)
    experts = sum(sum(w.units().values()) for w in weights if w.expert)
    m = plan.meshes
    return (
        f"{total / 1e9:,.2f}B parameters, {muon / 1e9:,.2f}B of them in {units:,} matrices for Muon ({experts:,} of "
        f"experts), the rest for AdamW.\n{m.world} GPUs. Non-expert weights: {m.dp_replicate} copies of "
        f"{m.narrow_shard} shards. Experts: {m.expert_replicate} copies over ep {m.ep} x {m.wide_shard} shards."
    )


def _memory(mine: Choice) -> Table:
    table = Table("memory of a GPU, without activations", Column("GiB", justify="right"))
    for name, value in asdict(mine.memory).items():
        if value:
            table.add_row("chunks in flight, at most" if name == "transient" else name, f"{value / GIB:.2f}")
    room = mine.plan.cluster.memory_bytes / GIB
    table.add_section()
    table.add_row(f"all, of {room:.0f}" + ("" if mine.fits else ": DOES NOT FIT"), f"{mine.memory.total / GIB:.2f}")
    return table


def _phases(mine: Choice) -> Table:
    step = mine.step
    right = [Column(c, justify="right") for c in ("ms", "sent, MB", "of it between nodes, MB")]
    table = Table("phase, in the order of a chunk", *right, "beside it")
    table.add_row("momentum, packing", _ms(step.sum("momentum_s")), "", "", "transfers")
    inbound, outbound = step.bytes("inbound"), step.bytes("outbound") + step.bytes("gather")
    row = ("transfer in", _ms(step.sum("inbound_s")), _mb(inbound.total), _mb(inbound.network))
    table.add_row(*row, "Newton-Schulz of the chunk before")
    table.add_row("Newton-Schulz", _ms(step.compute_s), "", "", "transfers of the chunks around it")
    row = ("transfer out", _ms(step.sum("outbound_s")), _mb(outbound.total), _mb(outbound.network))
    table.add_row(*row, "Newton-Schulz of the next chunk")
    gather = step.bytes("gather")
    table.add_row("  of it results for other replicas", "", _mb(gather.total), _mb(gather.network), "")
    table.add_row("unpacking, update", _ms(step.sum("apply_s")), "", "", "transfers")
    table.add_row("AdamW", _ms(step.adamw_s), "", "", "transfers")
    return table


def _times(mine: Choice, timeline_s: float) -> list[str]:
    step = mine.step
    how = "max" if step.overlaps else "sum"
    total = f"{_ms(step.step_s)} ms = {how}(Newton-Schulz {_ms(step.compute_s)}, transfers {_ms(step.communication_s)})"
    return [
        f"step: {total} + elementwise {_ms(step.elementwise_s)} + ramp {_ms(step.ramp_s)}. Chunk by chunk through the "
        f"pipeline: {_ms(timeline_s)} ms.",
        f"Newton-Schulz: {step.total_work.total / 1e15:.2f} PFLOP, {_ms(step.balanced_s)} ms if all GPUs had as much.",
    ]


def _choices(mine: Choice, others: Sequence[Choice]) -> Table:
    right = [Column(c, justify="right") for c in ("step, ms", "NS", "transfers", "elementwise", "GiB")]
    table = Table("experts", "other matrices", *right, "fits", "in the trainer", "")
    for choice in [*others[:MOST_TRIED], *(c for c in others[MOST_TRIED:] if c.plan == mine.plan)]:
        step = choice.step
        cells = (step.step_s, step.compute_s, step.communication_s, step.elementwise_s)
        marks = ("yes" if choice.fits else "no", "yes" if choice.in_trainer else "no")
        here = "this plan" if choice.plan == mine.plan else ""
        size = f"{choice.memory.total / GIB:.1f}"
        table.add_row(choice.where, choice.others, *map(_ms, cells), size, *marks, here)
    return table


def _best_line(others: Sequence[Choice]) -> str:
    best = others[0]
    line = f"quickest: experts {best.where}; other matrices {best.others}: {_ms(best.step.step_s)} ms"
    if not best.fits:
        return f"{line}, but none fits into memory."
    mine = next((c for c in others if c.in_trainer and c.fits), None)
    if mine is None or mine is best:
        return f"{line}." if mine else f"{line}. The trainer can make none of those that fit."
    return f"{line}. In the trainer: experts {mine.where}; other matrices {mine.others}: {_ms(mine.step.step_s)} ms."


def _answers(found: Sequence[Answer], target: float) -> Table:
    gpus = [choice.plan.cluster.gpus for choice in found[0].tried] if found else []
    table = Table(f"best step, ms (target {target * 1000:g})", *(Column(f"{n} GPUs", justify="right") for n in gpus))
    for answer in found:
        cells = []
        for choice in answer.tried:
            mark = " no room" if not choice.fits else " <" if choice.step.step_s <= target else ""
            cells.append(f"{_ms(choice.step.step_s)}{mark}")
        table.add_row(_kernel(answer), *cells)
    return table


def _answer_lines(found: Sequence[Answer], target: float) -> list[str]:
    lines = ["*: not in the trainer."]
    for answer in found:
        if answer.reached is None:
            lines.append(f"{_kernel(answer)}: on none of these clusters within {target * 1000:g} ms.")
            continue
        least = answer.network_bandwidth or 0.0
        wire = f"at least {least / 1e9:.1f} GB/s a GPU between nodes" if least else "no bandwidth between nodes"
        c = answer.reached
        lines.append(
            f"{_kernel(answer)}: from {c.plan.cluster.gpus} GPUs on: {_ms(c.step.step_s)} ms; needs {wire}; experts "
            f"{c.where}, other matrices {c.others}."
        )
    return lines


def _kernel(answer: Answer) -> str:
    name = f"{answer.kernel}, fused elementwise" if answer.fused else str(answer.kernel)
    return name if answer.kernel.in_trainer and not answer.fused else f"{name} *"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


def _mb(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:,.1f}"


def as_record(
    mine: Choice, others: Sequence[Choice], found: Sequence[Answer], target: float | None, timeline_s: float
) -> dict[str, Any]:
    """All of it for programs. Sizes in bytes, times in seconds."""
    weights = weights_of(mine.plan.model)
    return {
        "parameters": sum(w.numel for w in weights),
        "matrices": sum(sum(w.units().values()) for w in weights),
        "flops": mine.step.total_work.total,
        "plan": choice_record(mine) | {"timeline_s": timeline_s},
        "choices": [choice_record(choice) for choice in others],
        "target_s": target,
        "answers": [
            {
                "kernel": str(answer.kernel),
                "fused": answer.fused,
                "kernel_in_trainer": answer.kernel.in_trainer,
                "tried": [choice_record(choice) for choice in answer.tried],
                "gpus": answer.reached.plan.cluster.gpus if answer.reached else None,
                "network_bandwidth": answer.network_bandwidth,
            }
            for answer in found
        ],
    }


def choice_record(choice: Choice) -> dict[str, Any]:
    """One choice of owners: its memory, phases and times."""
    step = choice.step
    phases = {
        name: {"node_bytes": step.bytes(name).node, "network_bytes": step.bytes(name).network}
        for name in ("inbound", "outbound", "gather")
    }
    names = ("momentum_s", "inbound_s", "ns_s", "outbound_s", "apply_s")
    return {
        "gpus": choice.plan.cluster.gpus,
        "experts": choice.where,
        "others": choice.others,
        "fits": choice.fits,
        "in_trainer": choice.in_trainer,
        "memory": asdict(choice.memory) | {"total": choice.memory.total},
        "sent": phases,
        "phases": {name: step.sum(name) for name in names} | {"adamw_s": step.adamw_s},
        "step_s": step.step_s,
        "compute_s": step.compute_s,
        "balanced_s": step.balanced_s,
        "communication_s": step.communication_s,
        "elementwise_s": step.elementwise_s,
        "ramp_s": step.ramp_s,
        "overlaps": step.overlaps,
    }
