"""The configuration of a plan (YAML) as typed records."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainer.configfile import ConfigError, line_of, load
from trainer.costmodel.cluster import Cluster
from trainer.costmodel.kernels import Kernel
from trainer.costmodel.settings import Experts, Optimizer, Plan
from trainer.costmodel.shapes import PRESETS, ModelShape
from trainer.meshes import MeshError, MeshSizes

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Dtype = Literal["float32", "bfloat16", "float16"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelSection(_Section):
    """A preset, sizes, or a preset with some sizes changed."""

    preset: str | None = None
    layers: Positive | None = None
    hidden: Positive | None = None
    vocabulary: Positive | None = None
    heads: Positive | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    q_rank: Count | None = None
    kv_rank: Count | None = None
    nope_dim: Count | None = None
    rope_dim: Count | None = None
    value_dim: Count | None = None
    dense_layers: Count | None = None
    dense_width: Count | None = None
    experts: Count | None = None
    expert_width: Count | None = None
    shared_experts: Count | None = None
    qk_norm: bool | None = None
    tied_embeddings: bool | None = None

    @model_validator(mode="after")
    def _whole(self) -> ModelSection:
        self.shape()
        return self

    def shape(self) -> ModelShape:
        """The sizes. Raises ValueError if some are missing or do not fit each other."""
        if self.preset is not None and self.preset not in PRESETS:
            raise ValueError(f"preset {self.preset!r} is not known; there are {', '.join(PRESETS)}")
        sizes = asdict(PRESETS[self.preset]) if self.preset else {}
        sizes |= self.model_dump(exclude_none=True, exclude={"preset"})
        needed = ["layers", "hidden", "vocabulary", "heads"]
        needed += ["nope_dim", "value_dim"] if sizes.get("kv_rank") else ["kv_heads", "head_dim"]
        needed += ["expert_width"] if sizes.get("experts") else ["dense_width"]
        needed += ["dense_width"] if sizes.get("dense_layers") else []
        if missing := [name for name in needed if not sizes.get(name)]:
            raise ValueError(f"needs {', '.join(missing)}")
        if sizes.get("dense_layers", 0) > sizes["layers"]:
            raise ValueError(f"dense_layers {sizes['dense_layers']} of {sizes['layers']} layers")
        return ModelShape(**sizes)


class FlopsSection(_Section):
    """Peak operations a second of one GPU, by dtype; float32 is what float32 products run at."""

    bfloat16: Rate
    float16: Rate | None = None
    float32: Rate


class ClusterSection(_Section):
    """As ``Cluster``."""

    gpus: Positive
    gpus_per_node: Positive = 8
    peak_flops: FlopsSection
    mfu: Annotated[float, Field(gt=0.0, le=1.0)] = 0.6
    node_bandwidth: Rate
    network_bandwidth: Rate
    memory_bandwidth: Rate
    memory_bytes: Rate
    latency_s: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0

    def cluster(self) -> Cluster:
        values = self.model_dump(exclude={"peak_flops"})
        return Cluster(**values, peak_flops=self.peak_flops.model_dump(exclude_none=True))


class MeshesSection(_Section):
    """As ``MeshSizes``: sizes that are left out are what is left of the ranks."""

    dp_replicate: Positive = 1
    fsdp_shard: Count = 0
    cp: Positive = 1
    ep: Positive = 1
    expert_shard: Count = 0
    experts: Literal["group", "mesh", "whole"] = "group"
    shard_inside: bool = False


class OptimizerSection(_Section):
    """As ``Optimizer``."""

    schedule: Literal["classic", "quintic", "polar-express", "convergent"] = "classic"
    kernel: Literal["exact", "symmetric", "gram", "gram-symmetric"] = "exact"
    ns_dtype: Dtype = "bfloat16"
    wire_dtype: Dtype = "bfloat16"
    weight_dtype: Dtype = "float32"
    gradient_dtype: Dtype = "float32"
    momentum_dtype: Dtype = "float32"
    master_weights: bool = False
    chunk_bytes: Positive = 32 * 2**20
    in_flight: Positive = 3
    split_whole: bool = False
    fused: bool = False

    def optimizer(self) -> Optimizer:
        values = self.model_dump(exclude={"kernel"})
        return Optimizer(**values, kernel=Kernel(self.kernel))


class PlanFile(_Section):
    """A configuration of ``taskgen train --plan``."""

    model: ModelSection
    cluster: ClusterSection
    meshes: MeshesSection = MeshesSection()
    optimizer: OptimizerSection = OptimizerSection()
    target_s: Rate | None = None


def load_plan(path: Path) -> tuple[Plan, float | None]:
    """The plan of a file, and the step time that it is to reach, if it names one.

    Raises ConfigError, with the line, for what is wrong in the file itself and for meshes that do not fit.
    """
    found, document = load(path, PlanFile)
    m, where = found.meshes, f"{path}:{line_of(document, ('meshes',))}: meshes"
    model, cluster, optimizer = found.model.shape(), found.cluster.cluster(), found.optimizer.optimizer()
    if cluster.gpus % cluster.gpus_per_node and cluster.gpus > cluster.gpus_per_node:
        line = line_of(document, ("cluster", "gpus"))
        raise ConfigError(f"{path}:{line}: cluster.gpus: {cluster.gpus} are no whole nodes of {cluster.gpus_per_node}")
    if optimizer.ns_dtype not in cluster.peak_flops:
        line = line_of(document, ("cluster", "peak_flops"))
        raise ConfigError(f"{path}:{line}: cluster.peak_flops.{optimizer.ns_dtype} is missing; ns_dtype needs it")
    try:
        sizes = MeshSizes(
            world=cluster.gpus,
            dp_replicate=m.dp_replicate,
            fsdp_shard=m.fsdp_shard,
            cp=m.cp,
            ep=m.ep,
            expert_shard=m.expert_shard,
        )
        sizes.check(n_experts=model.experts)
    except MeshError as error:
        raise ConfigError(f"{where}: {error}") from error
    plan = Plan(
        model=model,
        cluster=cluster,
        meshes=sizes,
        optimizer=optimizer,
        experts=Experts[m.experts.upper()],
        shard_inside=m.shard_inside,
    )
    return plan, found.target_s
