"""The place of a process among the ranks of its tensor-parallel group."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigurationError

DEFAULT_UDS_PATH = "/tmp/text-generation-server"


def rendezvous_path(uds_path: str) -> Path:
    """The file by which ranks with sockets `<uds_path>-<rank>` find each other; the launcher clears it away."""
    return Path(f"{uds_path}-rendezvous")


def kv_heads_of_rank(num_heads: int, num_kv_heads: int, world_size: int) -> int:
    """K and V heads that each of `world_size` ranks holds, copies among them: as few as let each be read by equally
    many of the rank's query heads.
    """
    own = num_heads // world_size
    return own // math.gcd(own, num_heads // num_kv_heads)


@dataclass(frozen=True)
class ParallelConfig:
    """Rank `rank` of `world_size`; the ranks meet by the file `rendezvous` (unused when alone)."""

    rank: int = 0
    world_size: int = 1
    rendezvous: Path = field(default_factory=lambda: rendezvous_path(DEFAULT_UDS_PATH))
    peer_memory: bool = True
    """Whether sums over the ranks may go through memory that they share; false: through NCCL alone."""

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ConfigurationError(f"WORLD_SIZE must be at least 1, not {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise ConfigurationError(f"RANK must be from 0 to {self.world_size - 1}, not {self.rank}")
