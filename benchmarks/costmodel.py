"""The tables of docs/costmodel.md: what a step of sharded Muon costs for Kimi K2, by arithmetic alone.

python benchmarks/costmodel.py                              # all tables
python benchmarks/costmodel.py --picture docs/step-timeline.svg  # and the picture of the plan with 0.2 s
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from trainer.costmodel.choice import Choice, choices, resized
from trainer.costmodel.config import load_plan
from trainer.costmodel.kernels import Kernel, work
from trainer.costmodel.owners import Owners
from trainer.costmodel.picture import picture
from trainer.costmodel.settings import Plan
from trainer.costmodel.shapes import PRESETS, weights_of
from trainer.costmodel.step import price
from trainer.costmodel.timeline import timeline

GPUS = (256, 512, 1024)
EXAMPLE = Path(__file__).parent.parent / "trainer" / "examples" / "kimi-k2.yaml"


def table(*columns: str) -> Table:
    return Table(columns[0], *(Column(c, justify="right") for c in columns[1:]))


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f}"


def presets() -> Table:
    shown = table("model", "parameters", "Muon's matrices", "of experts", "PFLOP of a step")
    for name, model in PRESETS.items():
        weights = weights_of(model)
        units = [(w.expert, shape, n) for w in weights for shape, n in w.units().items()]
        flops = sum(n * work(Kernel.EXACT, *shape, 5).total for _, shape, n in units)
        counts = (sum(w.numel for w in weights), sum(n for *_, n in units), sum(n for expert, _, n in units if expert))
        shown.add_row(name, *(f"{count:,}" for count in counts), f"{flops / 1e15:.2f}")
    return shown


def kernels(k2: Plan) -> Table:
    shown = table("kernel", "PFLOP, experts", "PFLOP, all", *(f"ms, {n} GPUs" for n in GPUS))
    weights = weights_of(k2.model)
    for kernel in Kernel:
        units = [(w.expert, n * work(kernel, *s, 5).total) for w in weights for s, n in w.units().items()]
        experts, everything = sum(n for expert, n in units if expert), sum(n for _, n in units)
        steps = [price(sized(k2, n, kernel)) for n in GPUS]
        took = [ms(step.balanced_s) for step in steps]
        shown.add_row(str(kernel), f"{experts / 1e15:.1f}", f"{everything / 1e15:.1f}", *took)
    return shown


def transfers(k2: Plan) -> Table:
    shown = table("transfers of experts, S = 8", *(f"ms, {n} GPUs" for n in GPUS))
    for inside, name in ((False, "between nodes, 45 GB/s"), (True, "inside a node, 300 GB/s")):
        row = []
        for n in GPUS:
            step = price(replace(sized(k2, n, Kernel.EXACT), shard_inside=inside))
            experts = [p for p in step.phases if p.exchange.spread.lead > 1]
            cluster = step.plan.cluster
            row.append(ms(sum(p.inbound.seconds(cluster) + p.outbound.seconds(cluster) for p in experts)))
        shown.add_row(name, *row)
    return shown


def steps(k2: Plan) -> Table:
    """The plan's own choice, the trainer's quickest, and the quickest, for each kernel."""
    columns = ("NS, busiest GPU", "transfers", "elementwise", "step", "GB")
    shown = Table("GPUs", "kernel", "experts", "other matrices", *(Column(c, justify="right") for c in columns))
    for n in GPUS:
        for kernel, fused in ((Kernel.EXACT, False), (Kernel.EXACT, True), (Kernel.GRAM_SYMMETRIC, True)):
            plan = sized(k2, n, kernel)
            plan = replace(plan, optimizer=replace(plan.optimizer, fused=fused))
            found = choices(plan)
            best = {id(c): c for c in (found[0], next((c for c in found if c.fits and c.in_trainer), found[0]))}
            for choice in best.values():
                shown.add_row(*_row(n, f"{kernel}{', fused' if fused else ''}", choice))
        shown.add_section()
    return shown


def _row(n: int, kernel: str, choice: Choice) -> tuple[str, ...]:
    step = choice.step
    times = (step.compute_s, step.communication_s, step.elementwise_s, step.step_s)
    size = f"{choice.memory.total / 1e9:.0f}{'' if choice.fits else ', no room'}"
    return str(n), kernel, choice.where, choice.others, *map(ms, times), size


def replicas(k2: Plan) -> Table:
    shown = table(
        "non-expert weights, 64 copies of 8 shards", "NS", "transfers", "elementwise", "step", "in flight, GB"
    )
    for rule in Owners:
        choice = next(c for c in choices(k2) if c.plan == replace(k2, owners=rule))
        step = choice.step
        times = map(ms, (step.compute_s, step.communication_s, step.elementwise_s, step.step_s))
        shown.add_row(str(rule), *times, f"{choice.memory.transient / 1e9:.1f}")
    return shown


def sized(k2: Plan, gpus: int, kernel: Kernel) -> Plan:
    plan = resized(k2, gpus)
    assert plan is not None
    return replace(plan, optimizer=replace(plan.optimizer, kernel=kernel))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    k2, _ = load_plan(EXAMPLE)
    console = Console(width=150)
    for part in (presets(), kernels(k2), transfers(k2), replicas(k2), steps(k2)):
        console.print(part)
    if arguments.picture:
        plan = sized(k2, 512, Kernel.GRAM_SYMMETRIC)
        large = replace(plan, optimizer=replace(plan.optimizer, chunk_bytes=256 * 2**20))
        best = choices(large)[0]
        title = f"Kimi K2 on 512 GPUs, Gram Newton-Schulz with symmetric products: {ms(best.step.step_s)} ms"
        arguments.picture.write_text(picture(timeline(best.step), title), "utf-8")


if __name__ == "__main__":
    main()
