"""Muon against AdamW at equal CPU time: ``python -m benchmarks.pretrain_moe [--seconds S] [--picture FILE.svg]``.

A small decoder with routed experts and latent attention learns the bytes of Python's own library and of the installed
packages. Each run starts from the same weights, which AdamW has trained for ``--warm`` steps, goes on for the same CPU
seconds (one thread), with one of both optimizers at one of three rates, and sees the same batches
in the same order. Prints the loss on files that no run trains on, in nats a byte, at equal shares of the time.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from trainer.decoder_config import DecoderConfig
from trainer.experts import rebalance
from trainer.moe import Decoder, init_weights
from trainer.muon import Muon
from trainer.muon_options import Options
from trainer.parallel import clip_gradients, loss_share, n_tokens
from trainer.partition import Heads, partition

CONFIG = DecoderConfig(
    vocab_size=256,
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    kv_lora_rank=64,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    v_head_dim=32,
    intermediate_size=384,
    first_k_dense_replace=1,
    n_routed_experts=8,
    num_experts_per_tok=2,
    n_shared_experts=1,
    moe_intermediate_size=128,
)
SEQUENCES, LENGTH = 8, 256
RUNS = tuple((name, rate) for rate in (1e-3, 3e-3, 1e-2) for name in ("muon", "adamw"))
MOST_BYTES = 30_000_000


@dataclass(frozen=True, slots=True)
class Curve:
    """(CPU seconds, held-out loss) after each part of a run's time."""

    optimizer: str
    rate: float
    steps: int
    points: tuple[tuple[float, float], ...]


def text() -> tuple[Tensor, Tensor]:
    """Bytes of Python files, in the order of their paths: those to train on, and every 20th file apart."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    size = 0
    files = [path for key in ("stdlib", "purelib") for path in sorted(Path(sysconfig.get_paths()[key]).rglob("*.py"))]
    for number, path in enumerate(dict.fromkeys(files)):
        if size < MOST_BYTES:
            data = path.read_bytes()
            size += len(data)
            parts[number % 20 == 0].append(data)
    train, held_out = (torch.frombuffer(bytearray(b"\n".join(part)), dtype=torch.uint8) for part in parts)
    return train, held_out


def batch(data: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    starts = torch.randint(0, len(data) - LENGTH - 1, (SEQUENCES,), generator=torch.Generator().manual_seed(seed))
    rows = torch.stack([data[i : i + LENGTH + 1] for i in starts.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]


def optimizer_of(model: Decoder, name: str, rate: float) -> Muon:
    if name == "adamw":
        groups = [{"algorithm": "adamw", "params": list(model.named_parameters()), "lr": rate, "weight_decay": 0.1}]
        return Muon(groups)
    found = partition(model, Heads.of(model.config))
    settings = {"lr": rate, "weight_decay": 0.1}
    return Muon(
        found.groups(model, muon=settings, adamw=settings),
        splits=found.splits,
        options=Options(ns_dtype=torch.float32),
    )


def one_step(model: Decoder, optimizer: Muon, data: Tensor, step: int) -> None:
    ids, targets = batch(data, step)
    loss_share(model(ids), targets, n_tokens(targets)).backward()
    clip_gradients(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    rebalance(model)


@torch.no_grad()
def held_out_loss(model: Decoder, data: Tensor) -> float:
    batches = [batch(data, 10_000_000 + i) for i in range(16)]
    return statistics.fmean(loss_share(model(x), y, n_tokens(y)).item() for x, y in batches)


def run(start: Decoder, name: str, rate: float, data: tuple[Tensor, Tensor], seconds: float, parts: int) -> Curve:
    """The loss is taken outside of the time that counts."""
    model = copy.deepcopy(start)
    optimizer = optimizer_of(model, name, rate)
    points, spent, step = [(0.0, held_out_loss(model, data[1]))], 0.0, 0
    for part in range(1, parts + 1):
        while spent < seconds * part / parts:
            began = time.process_time()
            one_step(model, optimizer, data[0], step)
            spent += time.process_time() - began
            step += 1
        points.append((spent, held_out_loss(model, data[1])))
    return Curve(name, rate, step, tuple(points))


def best(curves: Sequence[Curve], name: str) -> Curve:
    return min((c for c in curves if c.optimizer == name), key=lambda c: c.points[-1][1])


def compare(seconds: float, warm: int, runs: Sequence[tuple[str, float]] = RUNS, parts: int = 10) -> list[Curve]:
    """``runs``: optimizers and rates, each for ``seconds``; the loss is taken ``parts`` times."""
    data = text()
    start = Decoder(CONFIG)
    init_weights(start, seed=0)
    warming = optimizer_of(start, "adamw", 3e-3)
    for step in range(warm):
        one_step(start, warming, data[0], 1_000_000 + step)
    return [run(start, name, rate, data, seconds, parts) for name, rate in runs]


def table(curves: Sequence[Curve], seconds: float) -> Table:
    shown = Table(title=f"held-out loss, nats a byte, after shares of {seconds:g} CPU s")
    for column in ("optimizer", "rate", "steps", "start", "20%", "50%", "100%"):
        shown.add_column(column, justify="left" if column == "optimizer" else "right")
    for curve in curves:
        mark = " *" if curve is best(curves, curve.optimizer) else ""
        n = len(curve.points) - 1
        losses = [curve.points[round(share * n)][1] for share in (0, 0.2, 0.5, 1)]
        shown.add_row(curve.optimizer + mark, f"{curve.rate:g}", str(curve.steps), *(f"{x:.3f}" for x in losses))
    return shown


def sooner(curves: Sequence[Curve]) -> float:
    """The share of the time after which the best Muon is where the best AdamW ends (interpolated; inf: never)."""
    target = best(curves, "adamw").points[-1][1]
    points = best(curves, "muon").points
    for (t0, loss0), (t1, loss1) in itertools.pairwise(points):
        if loss1 <= target:
            share = (loss0 - target) / (loss0 - loss1) if loss0 > loss1 else 0.0
            return (t0 + max(share, 0.0) * (t1 - t0)) / points[-1][0]
    return float("inf")


COLOURS = {"muon": "#1f6feb", "adamw": "#d1600a"}


def picture(curves: Sequence[Curve]) -> str:
    """An SVG of the best run of each optimizer, the others paler."""
    width, height, left, bottom = 640, 360, 56, 44
    points = [p for c in curves for p in c.points]
    last = max(t for t, _ in points)
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)

    def at(t: float, loss: float) -> str:
        x = left + (width - left - 20) * t / last
        return f"{x:.1f},{20 + (height - bottom - 20) * (high - loss) / (high - low):.1f}"

    lines = []
    for curve in sorted(curves, key=lambda c: c is best(curves, c.optimizer)):
        opacity = 1.0 if curve is best(curves, curve.optimizer) else 0.3
        path = " ".join(at(*p) for p in curve.points)
        colour = COLOURS[curve.optimizer]
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" opacity="{opacity}"/>')
    for i in range(5):
        loss, t = low + (high - low) * i / 4, last * i / 4
        x, y = (float(v) for v in at(t, loss).split(","))
        lines.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
        lines.append(f'<text x="{x:.1f}" y="{height - bottom + 20}" text-anchor="middle">{t:.0f}</text>')
        lines.append(f'<line x1="{left}" x2="{width - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
    for i, (name, colour) in enumerate(COLOURS.items()):
        text_of = f"{name}, rate {best(curves, name).rate:g} (paler: other rates)"
        lines.append(f'<text x="{width - 30}" y="{40 + 20 * i}" text-anchor="end" fill="{colour}">{text_of}</text>')
    lines.append(f'<text x="{width / 2}" y="{height - 6}" text-anchor="middle">CPU seconds</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12"><title>Held-out loss (nats a byte) over CPU seconds</title>'
        f'<rect width="{width}" height="{height}" fill="white"/>{"".join(lines)}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="CPU seconds of each of the six runs")
    parser.add_argument("--warm", type=int, default=50, help="steps of AdamW before")
    parser.add_argument("--picture", type=Path, help="write the curves here")
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine spin, and that counts as CPU time
    curves = compare(options.seconds, options.warm)
    console = Console()
    console.print(table(curves, options.seconds))
    console.print(f"Muon is where AdamW ends after {sooner(curves):.0%} of its CPU time")
    if options.picture:
        options.picture.write_text(picture(curves), "utf-8")


if __name__ == "__main__":
    main()
