"""The place of a process among the ranks of its tensor-parallel group."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigurationError

DEFAULT_UDS_PATH = "/tmp/text-generation-server"


def rendezvous_path(uds_path: str) -> Path:
    """Returns the file by which ranks with sockets `<uds_path>-<rank>` find each other; the launcher removes it."""
    return Path(f"{uds_path}-rendezvous")


def kv_heads_of_rank(num_heads: int, num_kv_heads: int, world_size: int) -> int:
    """Returns the K and V heads that each of `world_size` ranks holds, copies included: as few as possible such that
    equally many query heads of the rank read each.
    """
    own = num_heads // world_size
    return own // math.gcd(own, num_heads // num_kv_heads)


@dataclass(frozen=True)
class NodeConfig:
    """Rank `local_rank` of the `local_world_size` ranks of this node, where a group has several nodes.

    All ranks meet at `master_addr`, an IP address of the node of rank 0, and `master_port`.
    """

    local_rank: int
    local_world_size: int
    master_addr: str
    master_port: int


@dataclass(frozen=True)
class ParallelConfig:
    """Rank `rank` of `world_size`; the ranks of one host meet by the file `rendezvous` (unused when alone)."""

    rank: int = 0
    world_size: int = 1
    rendezvous: Path = field(default_factory=lambda: rendezvous_path(DEFAULT_UDS_PATH))
    peer_memory: bool = True
    """Whether all-reduces may use memory that ranks share; false: they use NCCL alone."""
    node: NodeConfig | None = None
    """None where all ranks are on one host."""
    expert_parallel: bool = False
    """Whether each rank has some of a mixture's experts whole; false: a shard of each."""
    context_parallel: bool = False
    """Whether each rank keeps some of the positions of latent attention; false: each keeps all."""

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ConfigurationError(f"WORLD_SIZE must be at least 1, not {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise ConfigurationError(f"RANK must be from 0 to {self.world_size - 1}, not {self.rank}")
        if self.node is not None and self.world_size % self.node.local_world_size:
            raise ConfigurationError(
                f"WORLD_SIZE ({self.world_size}) must be a multiple of LOCAL_WORLD_SIZE ({self.node.local_world_size})"
            )

    @property
    def local_rank(self) -> int:
        """The number of this rank among the ranks of this host."""
        return self.rank if self.node is None else self.node.local_rank

    @property
    def local_world_size(self) -> int:
        """How many ranks share this host."""
        return self.world_size if self.node is None else self.node.local_world_size
