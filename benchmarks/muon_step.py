"""One optimizer step of Muon, ours beside others: ``python -m benchmarks.muon_step [--dion FOLDER] [--json FILE]``.

The same matrices, row-sharded over the same ranks, the same Newton-Schulz steps in the same dtype for all; the methods
take turns in each round, so that other load on the machine meets all of them. Prints for each the CPU time of a rank
(median over rounds, then the mean of the ranks), the bytes that a rank sends, the peak of extra memory, and the ratio
to the published list all-to-all at the same wire dtype. FOLDER is a checkout of microsoft/dion, to measure it itself.

On a CPU without fast bfloat16 products, Newton-Schulz runs in float32 everywhere (``--ns-dtype``). With ``--device
cuda``, a rank a GPU, times are those of CUDA events, and the share of ``--peak-tflops`` that Newton-Schulz reaches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Column, Table
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from benchmarks.muon_peers import LR, MOMENTUM, GatherEverything, ListAllToAll
from trainer.muon import Muon
from trainer.muon_options import Options, Scale
from trainer.newton_schulz import CLASSIC, batched, flops, gram, newton_schulz

SHAPES = [(256, 512), (256, 512), (512, 256)] * 16 + [(256, 256)] * 8
MIB = 2**20
Step = Callable[[], int]  # runs a step, returns the bytes that this rank sent


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one method: milliseconds of a rank, bytes sent by a rank, bytes of extra memory at the peak."""

    method: str
    wire: str
    ms: float
    sent_bytes: int
    peak_bytes: int


def ours(mesh: DeviceMesh, weights: Sequence[Tensor], options: Options) -> Step:
    named = [(f"w{i}", torch.nn.Parameter(_laid(w, mesh))) for i, w in enumerate(weights)]
    for i, (_, parameter) in enumerate(named):
        parameter.grad = _laid(gradient(i, weights[i]), mesh)
    optimizer = Muon([{"params": named}], lr=LR, momentum=MOMENTUM, scale=Scale.TORCH, options=options)

    def step() -> int:
        optimizer.step()
        return optimizer.traffic.inbound_bytes + optimizer.traffic.outbound_bytes

    return step


def peer(kind: type[GatherEverything] | type[ListAllToAll], weights: Sequence[Tensor], dtype: torch.dtype) -> Step:
    size, rank = dist.get_world_size(), dist.get_rank()
    shards = [w.chunk(size)[rank].clone() for w in weights]
    gradients = [gradient(i, w).chunk(size)[rank].clone() for i, w in enumerate(weights)]
    method = kind(shards, lambda x: batched(x, CLASSIC, dtype).to(torch.bfloat16))

    def step() -> int:
        method.step(gradients)
        return method.sent_bytes

    return step


def real_dion(folder: str, mesh: DeviceMesh, weights: Sequence[Tensor], dtype: torch.dtype) -> Step:
    """microsoft/dion's Muon, eager, with the same Newton-Schulz."""
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    sys.path.insert(0, folder)
    from dion.muon import Muon as Dion  # type: ignore[import-not-found]

    parameters = [torch.nn.Parameter(_laid(w, mesh)) for w in weights]
    for i, parameter in enumerate(parameters):
        parameter.grad = _laid(gradient(i, weights[i]), mesh)

    def kernel(x: Tensor, epsilon: float | None = None) -> Tensor:
        return batched(x if x.ndim == 3 else x[None], CLASSIC, dtype).to(torch.bfloat16).view(x.shape)

    optimizer = Dion(
        parameters,
        distributed_mesh=mesh,
        lr=LR,
        mu=MOMENTUM,
        weight_decay=0.0,
        nesterov=True,
        newton_schulz_func=kernel,
    )
    counted = _counting()

    def step() -> int:
        counted[0] = 0
        optimizer.step()
        return counted[0]

    return step


def _counting() -> list[int]:
    """Count the bytes of list all-to-alls that this process sends to others."""
    counted, plain = [0], dist.all_to_all

    def counting(output: list[Tensor], pieces: list[Tensor], *args: object, **keywords: object) -> object:
        counted[0] += sum(piece.numel() * piece.element_size() for piece in pieces[1:])
        return plain(output, pieces, *args, **keywords)

    dist.all_to_all = counting
    return counted


def floor(weights: Sequence[Tensor], dtype: torch.dtype) -> Step:
    """Newton-Schulz of one rank's share of the matrices, and nothing else."""
    mine = [w.to(dtype) for w in weights[dist.get_rank() :: dist.get_world_size()]]

    def step() -> int:
        for matrix in mine:
            newton_schulz(matrix[None], CLASSIC, dtype)
        return 0

    return step


def torch_muon(weights: Sequence[Tensor]) -> Step:
    """torch.optim.Muon on whole matrices in one process; its products are in bfloat16 whatever the machine."""
    parameters = [torch.nn.Parameter(w.clone()) for w in weights]
    for i, parameter in enumerate(parameters):
        parameter.grad = gradient(i, weights[i])
    optimizer = torch.optim.Muon(parameters, lr=LR, momentum=MOMENTUM, weight_decay=0.0)

    def step() -> int:
        optimizer.step()
        return 0

    return step


def _laid(whole: Tensor, mesh: DeviceMesh) -> Tensor:
    return distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)


def gradient(i: int, like: Tensor) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(1000 + i)).to(like.device)


def methods(arguments: argparse.Namespace, mesh: DeviceMesh, weights: Sequence[Tensor]) -> dict[tuple[str, str], Step]:
    dtype = getattr(torch, arguments.ns_dtype)
    chunk_bytes = arguments.chunk_mib * MIB
    exact = Options(ns_dtype=dtype, chunk_bytes=chunk_bytes)
    fast = Options(ns_dtype=dtype, chunk_bytes=chunk_bytes, wire_dtype=torch.bfloat16)
    faster = Options(
        ns_dtype=dtype, chunk_bytes=chunk_bytes, wire_dtype=torch.bfloat16, kernel=gram, check_finite=False
    )
    found = {
        ("floor: Newton-Schulz alone", "none"): floor(weights, dtype),
        ("taskgen, exact", "float32"): ours(mesh, weights, exact),
        ("taskgen", "bfloat16"): ours(mesh, weights, fast),
        ("taskgen, Gram kernel", "bfloat16"): ours(mesh, weights, faster),
        ("list all-to-all (dion's published algorithm)", "bfloat16"): peer(ListAllToAll, weights, dtype),
        ("all-gather, Newton-Schulz on each rank", "bfloat16"): peer(GatherEverything, weights, dtype),
    }
    if arguments.dion:
        found["microsoft/dion", "bfloat16"] = real_dion(arguments.dion, mesh, weights, dtype)
    return found


def rank_main(rank: int, arguments: argparse.Namespace, rounds: int, folder: str) -> None:
    torch.set_num_threads(1)
    cuda = arguments.device == "cuda"
    if cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=arguments.ranks,
        timeout=timedelta(minutes=5),
    )
    mesh = init_device_mesh(arguments.device, (arguments.ranks,))
    weights = [
        torch.randn(shape, generator=torch.Generator().manual_seed(i)).to(arguments.device)
        for i, shape in enumerate(SHAPES)
    ]
    steps = methods(arguments, mesh, weights)
    figures = measured(steps, rounds, cuda)
    (Path(folder) / f"{rank}.json").write_text(json.dumps([asdict(figure) for figure in figures]))
    dist.barrier()
    dist.destroy_process_group()


def measured(steps: dict[tuple[str, str], Step], rounds: int, cuda: bool) -> list[Figures]:
    times: dict[tuple[str, str], list[float]] = {key: [] for key in steps}
    sent: dict[tuple[str, str], int] = {}
    peaks: dict[tuple[str, str], int] = {}
    for round_ in range(rounds + 1):  # the first one warms up
        turn = list(steps.items())
        for key, step in turn[round_ % len(turn) :] + turn[: round_ % len(turn)]:
            dist.barrier()
            before = memory(cuda, reset=True)
            started = clock(cuda)
            sent[key] = step()
            took = clock(cuda) - started
            if round_:
                times[key].append(took * 1000)
                peaks[key] = max(peaks.get(key, 0), memory(cuda, reset=False) - before)
    return [Figures(*key, statistics.median(times[key]), sent[key], peaks[key]) for key in steps]


def clock(cuda: bool) -> float:
    """CPU seconds of this process, all threads; on a GPU wall seconds, with all its work done."""
    if cuda:
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def memory(cuda: bool, *, reset: bool) -> int:
    """Peak memory in bytes since the last reset, which makes it the present one."""
    if cuda:
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated()
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def single_process() -> Figures:
    """torch.optim.Muon: one warm-up step and one that counts, since it can be very slow."""
    torch.set_num_threads(1)
    step = torch_muon(
        [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(SHAPES)]
    )
    step()
    before, started = memory(False, reset=True), clock(False)
    step()
    took = (clock(False) - started) * 1000
    return Figures("torch.optim.Muon, one process", "none", took, 0, memory(False, reset=False) - before)


def all_ranks(arguments: argparse.Namespace, rounds: int) -> list[Figures]:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (arguments, rounds, folder), nprocs=arguments.ranks)
        return mean_of_ranks(folder, arguments.ranks)


def mean_of_ranks(folder: str, ranks: int) -> list[Figures]:
    of_rank = [
        [Figures(**entry) for entry in json.loads((Path(folder) / f"{r}.json").read_text())] for r in range(ranks)
    ]
    return [
        Figures(
            same[0].method,
            same[0].wire,
            statistics.mean(f.ms for f in same),
            round(statistics.mean(f.sent_bytes for f in same)),
            max(f.peak_bytes for f in same),
        )
        for same in zip(*of_rank, strict=True)
    ]


def show(figures: Sequence[Figures], arguments: argparse.Namespace) -> None:
    baseline = next(f.ms for f in figures if f.method.startswith("list all-to-all"))
    what = "ms" if arguments.device == "cuda" else "CPU ms"
    table = Table(
        "method", "wire", *(Column(c, justify="right") for c in (what, "ratio", "sent, MiB", "peak extra, MiB"))
    )
    for f in figures:
        cells = (f"{f.ms:.1f}", f"{f.ms / baseline:.2f}", f"{f.sent_bytes / MIB:.2f}", f"{f.peak_bytes / MIB:.1f}")
        table.add_row(f.method, f.wire, *cells)
    console = Console(width=120)
    console.print(table)
    work = sum(flops(*shape, len(CLASSIC.coefficients)) for shape in SHAPES) / arguments.ranks
    console.print(
        f"{len(SHAPES)} matrices, {arguments.ranks} ranks, Newton-Schulz in {arguments.ns_dtype}, a chunk of at most "
        f"{arguments.chunk_mib} MiB an owner, three in flight; {work / 1e9:.2f} GFLOP of Newton-Schulz a rank."
    )
    if arguments.device == "cuda" and arguments.peak_tflops:
        exact = next(f.ms for f in figures if "exact" in f.method) / 1000
        console.print(
            f"share of the peak that the exact step reaches: {work / exact / arguments.peak_tflops / 1e12:.1%}"
        )


def main() -> None:
    fast = torch.cuda.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--chunk-mib", type=int, default=4)
    parser.add_argument("--ns-dtype", choices=["float32", "bfloat16"], default="bfloat16" if fast else "float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--peak-tflops", type=float)
    parser.add_argument("--dion", metavar="FOLDER", help="a checkout of microsoft/dion")
    parser.add_argument("--without-single", action="store_true", help="leave torch.optim.Muon on one process out")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    times = all_ranks(arguments, arguments.rounds)
    # Memory is measured apart: freed blocks go back to the system at once, so that the peak is that of live tensors.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    peaks = all_ranks(arguments, rounds=2)
    figures = [replace(f, peak_bytes=p.peak_bytes) for f, p in zip(times, peaks, strict=True)]
    if arguments.device == "cpu" and not arguments.without_single:
        figures.append(single_process())
    show(figures, arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n")


if __name__ == "__main__":
    main()
