"""The cost model's arithmetic: published sizes, operations, the figures of Kimi K2, the timeline, the configuration."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trainer.configfile import ConfigError
from trainer.costmodel.choice import answers, choices, priced, resized
from trainer.costmodel.cluster import Group
from trainer.costmodel.config import load_plan
from trainer.costmodel.kernels import SCHEDULES, Kernel, work
from trainer.costmodel.owners import Owners
from trainer.costmodel.picture import picture
from trainer.costmodel.report import plan_command
from trainer.costmodel.settings import Experts, Plan
from trainer.costmodel.shapes import PRESETS, weights_of
from trainer.costmodel.step import Step, price
from trainer.costmodel.timeline import Lane, ends, timeline
from trainer.newton_schulz import batched, gram

EXAMPLE = Path(__file__).parents[2] / "trainer" / "examples" / "kimi-k2.yaml"
K2, _ = load_plan(EXAMPLE)


def on(gpus: int, **changes: object) -> Plan:
    """Kimi K2 on other sizes of the example's cluster, each expert cut over eight ranks."""
    sized = resized(K2, gpus)
    assert sized is not None
    return replace(sized, **changes)  # type: ignore[arg-type]


def ms(seconds: float) -> int:
    return round(seconds * 1000)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # What the published checkpoints have, but for multi-token prediction and the router's correction biases.
        ("kimi-k2", 1_026_408_232_448 - 60 * 384),
        ("deepseek-v3", 671_026_419_200 - 58 * 256),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
    ],
)
def test_presets_have_the_published_numbers_of_parameters(name: str, parameters: int) -> None:
    assert sum(weights.numel for weights in weights_of(PRESETS[name])) == parameters


@pytest.mark.parametrize("shape", [(48, 48), (32, 80), (80, 32)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_operations_are_those_of_the_kernels(name: str, shape: tuple[int, int]) -> None:
    schedule, x_BMN = SCHEDULES[name], torch.randn(1, *shape)
    for kernel, run in ((Kernel.EXACT, batched), (Kernel.GRAM, gram)):
        with FlopCounterMode(display=False) as counter:
            run(x_BMN, schedule, torch.float32)
        assert counter.get_total_flops() == work(kernel, *shape, len(schedule.coefficients)).total


def test_symmetric_kernels_compute_half_of_what_is_symmetric() -> None:
    s, l = 32, 80  # noqa: E741
    assert work(Kernel.SYMMETRIC, s, l, 5).total == 5 * (s * s * l + s**3 + 2 * s * s * l)
    # Two starts, each with X X^T and P X; five products for two steps, nine for three.
    assert work(Kernel.GRAM_SYMMETRIC, l, s, 5).total == 2 * (s * s * l + 2 * s * s * l) + (5 + 9) * s**3


def test_a_model_of_a_trillion_parameters_needs_48_pflop() -> None:
    experts = [weights for weights in weights_of(K2.model) if weights.expert]
    assert sum(n for weights in experts for n in weights.units().values()) == 60 * 384 * 3 == 69_120

    def pflop(kernel: Kernel, all_of_them: bool) -> float:
        found = weights_of(K2.model) if all_of_them else experts
        units = [pair for weights in found for pair in weights.units().items()]
        return round(sum(work(kernel, *shape, 5).total * n for shape, n in units) / 1e15, 1)

    assert work(Kernel.EXACT, 2048, 7168, 5).total == 5 * (4 * 2048**2 * 7168 + 2 * 2048**3) == 5 * 2**37
    assert [pflop(kernel, False) for kernel in Kernel] == [47.5, 34.1, 28.5, 20.8]
    assert [pflop(kernel, True) for kernel in Kernel] == [47.7, 34.3, 28.6, 20.9]


@pytest.mark.parametrize(
    ("kernel", "expected"), [(Kernel.EXACT, [314, 157, 79]), (Kernel.GRAM_SYMMETRIC, [137, 69, 34])]
)
def test_newton_schulz_of_all_matrices_takes_so_long(kernel: Kernel, expected: list[int]) -> None:
    """At 989 TFLOP/s and 60 %, if all GPUs have as much."""
    optimizer = replace(K2.optimizer, kernel=kernel)
    assert [ms(price(on(n, optimizer=optimizer)).balanced_s) for n in (256, 512, 1024)] == expected


@pytest.mark.parametrize(("inside", "expected"), [(False, [308, 154, 77]), (True, [46, 23, 12])])
def test_transfers_of_experts_take_so_long(inside: bool, expected: list[int]) -> None:
    """2 b (P/N) (S-1)/S bytes a GPU, S = 8, at 45 GB/s between nodes or 300 GB/s in one."""

    def transfers(step: Step) -> float:
        experts = [p for p in step.phases if p.exchange.spread.lead > 1]
        return sum(p.inbound.seconds(step.plan.cluster) + p.outbound.seconds(step.plan.cluster) for p in experts)

    assert [ms(transfers(price(on(n, shard_inside=inside)))) for n in (256, 512, 1024)] == expected


def test_groups_know_who_is_near() -> None:
    assert [Group.of(8, stride, 8).near for stride in (1, 2, 8, 64)] == [8, 4, 1, 1]
    assert Group.of(64, 1, 8).near == 8 and Group.of(2, 1, 8).near == 2


def test_whole_experts_send_nothing() -> None:
    step = price(on(384, experts=Experts.WHOLE))
    experts = [p for p in step.phases if p.exchange.kind.shape == (7168, 2048) and any(p.exchange.kind.whole)]
    assert experts and all((p.inbound + p.outbound + p.gather).total == 0 for p in experts)


def test_an_owner_that_answers_all_replicas_holds_up_the_others() -> None:
    """A matrix of 18,432 x 7,168 for 63 other replicas is 17 GB from one rank, however little that is on the mean."""
    sent = price(replace(K2, owners=Owners.ALL))
    gathered = price(replace(K2, owners=Owners.GATHER))
    assert sent.bytes("gather").total == pytest.approx(gathered.bytes("gather").total)
    largest = max(sent.phases, key=lambda phases: phases.outbound_s)
    assert largest.exchange.kind.shape in ((18_432, 7168), (7168, 18_432))
    n_bytes = 18_432 * 7168 * 2 * 63
    assert largest.outbound_s == pytest.approx(n_bytes / K2.cluster.network_bandwidth, rel=0.01)
    assert sent.communication_s > 4 * gathered.communication_s


def test_the_step_is_the_longer_of_both_and_what_nothing_runs_beside() -> None:
    step = price(K2)
    assert step.step_s == max(step.compute_s, step.communication_s) + step.elementwise_s + step.ramp_s
    alone = price(replace(K2, optimizer=replace(K2.optimizer, in_flight=1)))
    assert alone.step_s == step.compute_s + step.communication_s + step.elementwise_s


@pytest.mark.parametrize("gpus", [64, 512, 4096])
@pytest.mark.parametrize("owners", Owners)
def test_the_timeline_agrees_with_the_formula(gpus: int, owners: Owners) -> None:
    step = price(on(gpus, owners=owners, shard_inside=True))
    took = ends(timeline(step))
    assert max(step.compute_s + step.elementwise_s, step.communication_s) <= took * (1 + 1e-9)
    assert took == pytest.approx(step.step_s, rel=0.2)
    alone = price(replace(step.plan, optimizer=replace(step.plan.optimizer, in_flight=1)))
    assert ends(timeline(alone)) == pytest.approx(alone.step_s)


@pytest.mark.parametrize(("in_flight", "expected"), [(1, 6.0), (3, 4.0)])
def test_three_equal_chunks_overlap_as_in_the_trainer(in_flight: int, expected: float) -> None:
    """One unit of time for each computation, half of one for each transfer, on one network for both ways."""
    step = price(replace(K2, optimizer=replace(K2.optimizer, in_flight=in_flight)))
    first = step.phases[0]
    part = replace(first.exchange, chunks=3)
    three = replace(first, exchange=part, momentum_s=0.0, inbound_s=1.5, ns_s=3.0, outbound_s=1.5, apply_s=0.0)
    bars = timeline(replace(step, phases=(three,), adamw_s=0.0))
    assert ends(bars) == expected
    assert [sum(bar.lane is lane for bar in bars) for lane in Lane] == [3, 3, 3, 0]


def test_the_quickest_choice_that_fits_comes_first() -> None:
    found = choices(K2)
    fitting = [choice for choice in found if choice.fits]
    assert fitting and found[: len(fitting)] == fitting
    assert fitting[0].step.step_s == min(choice.step.step_s for choice in fitting)
    assert priced(K2).plan in [choice.plan for choice in found]
    assert {choice.plan.owners for choice in found if choice.in_trainer} == {Owners.ALL}
    assert not any(choice.in_trainer for choice in found if choice.plan.shard_inside)


def test_a_target_names_the_smallest_cluster_and_the_bandwidth_that_it_needs() -> None:
    for answer in answers(K2, 0.2, [256, 512, 1024]):
        quick = [c for c in answer.tried if c.fits and c.step.step_s <= 0.2]
        assert answer.reached == (quick[0] if quick else None)
        if answer.reached is None or not answer.network_bandwidth:
            continue
        plan = answer.reached.plan

        def step_s(bandwidth: float, plan: Plan = plan) -> float:
            return price(replace(plan, cluster=replace(plan.cluster, network_bandwidth=bandwidth))).step_s

        assert step_s(answer.network_bandwidth) <= 0.2 < step_s(answer.network_bandwidth * 0.98)


def test_other_clusters_keep_the_shards() -> None:
    found = [resized(K2, n) for n in (8, 256, 1024, 4096, 100)]
    sizes = [(p.meshes.dp_replicate, p.meshes.narrow_shard, p.meshes.ep, p.meshes.wide_shard) for p in found if p]
    assert sizes == [(1, 8, 1, 8), (32, 8, 32, 8), (128, 8, 128, 8), (512, 8, 128, 32)]
    assert found[-1] is None, "100 GPUs are no multiple of eight"


def test_the_picture_is_an_svg_with_a_bar_for_what_can_be_seen(tmp_path: Path) -> None:
    step = choices(K2)[0].step
    bars = timeline(step)
    root = ET.fromstring(picture(bars, "a < b & c"))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a < b & c" in texts and set(Lane) <= set(texts)
    rectangles = list(root.iter("{http://www.w3.org/2000/svg}rect"))[1:]
    right = max(float(r.get("x", 0)) + float(r.get("width", 0)) for r in rectangles)
    assert right == pytest.approx(880, abs=1), "the last bar ends at the right edge"
    assert 4 < len(rectangles) <= len(bars)


def test_the_example_is_printed_drawn_and_given_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    plan_command(EXAMPLE, target_s=None, to=tmp_path / "step.svg", as_json=False)
    table = capsys.readouterr().out
    step = price(K2)
    assert f"{step.step_s * 1000:.1f} ms" in table and "quickest:" in table and "this plan" in table
    assert (tmp_path / "step.svg").read_text("utf-8").startswith("<svg")
    plan_command(EXAMPLE, target_s=0.001, to=None, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["step_s"] == step.step_s and found["target_s"] == 0.001
    assert found["plan"]["memory"]["total"] == priced(K2).memory.total
    assert all(answer["gpus"] is None for answer in found["answers"])


CLUSTER = """
cluster:
  gpus: 16
  peak_flops: {bfloat16: 1e15, float32: 1e14}
  node_bandwidth: 3e11
  network_bandwidth: 5e10
  memory_bandwidth: 3e12
  memory_bytes: 8e10
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modl: {}\n", "1: unknown key 'modl'; did you mean 'model'?"),
        ("model:\n  preset: kimi-k3" + CLUSTER, "1: model: preset 'kimi-k3' is not known; there are kimi-k2"),
        ("model:\n  preset: kimi-k2\n  layer: 3" + CLUSTER, "3: unknown key 'layer'; did you mean 'layers'?"),
        ("model:\n  layers: 3" + CLUSTER, "1: model: needs hidden, vocabulary, heads, kv_heads, head_dim, dense_width"),
        ("model:\n  preset: kimi-k2\n  layers: none" + CLUSTER, "3: model.layers: Input should be a valid integer"),
        ("model:\n  preset: kimi-k2", "1: cluster is missing; add cluster:"),
        (
            "model:\n  preset: kimi-k2" + CLUSTER.replace("3e12", "0"),
            "memory_bandwidth: Input should be greater than 0",
        ),
        (
            "model:\n  preset: kimi-k2" + CLUSTER.replace("gpus: 16", "gpus: 12"),
            "4: cluster.gpus: 12 are no whole nodes of 8",
        ),
        ("model:\n  preset: kimi-k2" + CLUSTER + "meshes:\n  ep: 5", "meshes: "),
        ("model:\n  preset: kimi-k2" + CLUSTER + "meshes:\n  dp_replicate: 3", "meshes: "),
        ("model:\n  preset: qwen3-30b-a3b" + CLUSTER + "optimizer:\n  kernel: fast", "kernel: Input should be 'exact'"),
        (
            "model:\n  preset: kimi-k2" + CLUSTER + "optimizer:\n  ns_dtype: float16",
            "5: cluster.peak_flops.float16 is missing; ns_dtype needs it",
        ),
        ("model: [1]\nmodel: 2\n", "2: not valid YAML: found duplicate key"),
        ("- 1\n", "1: expected keys and values"),
    ],
)
def test_mistakes_are_reported_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as raised:
        load_plan(path)
    assert message in str(raised.value) and str(path) in str(raised.value)


@pytest.mark.parametrize("preset", PRESETS)
def test_all_presets_can_be_planned(tmp_path: Path, preset: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(f"model:\n  preset: {preset}{CLUSTER}meshes:\n  dp_replicate: 2\n  ep: 8\n", "utf-8")
    plan, target = load_plan(path)
    assert target is None
    assert all(choice.step.step_s > 0 for choice in choices(plan))


def test_a_dense_model_has_no_experts_to_place(tmp_path: Path) -> None:
    sizes = "layers: 4, hidden: 256, vocabulary: 1000, heads: 4, kv_heads: 2, head_dim: 64, dense_width: 512"
    path = tmp_path / "plan.yaml"
    path.write_text(f"model: {{{sizes}}}{CLUSTER}", "utf-8")
    plan, _ = load_plan(path)
    assert {choice.where for choice in choices(plan)} == {"no experts"}
    assert resized(plan, 32) is not None
