"""The place of a process among the ranks of its tensor-parallel group."""

from dataclasses import dataclass

from ..errors import ConfigurationError


@dataclass(frozen=True)
class ParallelConfig:
    """Rank `rank` of `world_size`; the ranks meet at `master_addr:master_port` (unused when alone)."""

    rank: int = 0
    world_size: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 29500

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ConfigurationError(f"WORLD_SIZE must be at least 1, not {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise ConfigurationError(f"RANK must be from 0 to {self.world_size - 1}, not {self.rank}")
        if not 0 < self.master_port < 65536:
            raise ConfigurationError(f"MASTER_PORT must be from 1 to 65535, not {self.master_port}")
