"""A cluster, and the links that a group of its ranks uses."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """``peak_flops`` by dtype are of one GPU, in operations a second, of which products reach ``mfu``. Bandwidths are
    bytes a second of one GPU in each direction: ``node_bandwidth`` inside a node, ``network_bandwidth`` between nodes,
    ``memory_bandwidth`` of its memory. A collective takes ``latency_s`` before its first byte."""

    gpus: int
    gpus_per_node: int
    peak_flops: dict[str, float] = field(hash=False)
    mfu: float
    node_bandwidth: float
    network_bandwidth: float
    memory_bandwidth: float
    memory_bytes: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Group:
    """``size`` ranks that exchange, ``near`` of which are on one node (evenly, at least one)."""

    size: int
    near: int

    @staticmethod
    def of(size: int, stride: int, gpus_per_node: int) -> Group:
        """The group of every ``stride``-th rank."""
        return Group(size, min(size, max(1, gpus_per_node // stride)))


@dataclass(frozen=True, slots=True)
class Bytes:
    """What one rank sends: to ranks of its node, and to others."""

    node: float = 0.0
    network: float = 0.0

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.node + other.node, self.network + other.network)

    @property
    def total(self) -> float:
        return self.node + self.network

    def seconds(self, cluster: Cluster, collectives: int = 0) -> float:
        """The links work at the same time; the slower one counts."""
        links = (self.node / cluster.node_bandwidth, self.network / cluster.network_bandwidth)
        return max(links) + collectives * cluster.latency_s
