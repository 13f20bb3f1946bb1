"""Which part of a model belongs to a rank."""

from dataclasses import dataclass

from ...config.model import ModelConfig
from ...distributed import TensorParallelGroup
from ...errors import ConfigurationError


def even_span(size: int, rank: int, world_size: int) -> tuple[int, int]:
    """Start and end of a rank's part of `size` items; parts differ by at most one item and cover all."""
    return rank * size // world_size, (rank + 1) * size // world_size


@dataclass(frozen=True)
class HeadSplit:
    """Attention heads of one rank: query heads from `q_start` to `q_stop`, and the K and V heads they read.

    Every rank has the same number of query heads. Where there are fewer K and V heads than ranks, neighbouring ranks
    hold the same one.
    """

    q_start: int
    q_stop: int
    kv_start: int
    kv_stop: int

    @property
    def num_kv_heads(self) -> int:
        """K and V heads that this rank holds, and its caches have."""
        return self.kv_stop - self.kv_start

    @classmethod
    def of(cls, config: ModelConfig, group: TensorParallelGroup) -> "HeadSplit":
        """Raises ConfigurationError when the heads cannot be shared evenly."""
        rank, world_size = group.rank, group.world_size
        replicated = config.num_kv_heads < world_size
        larger, smaller = sorted((config.num_kv_heads, world_size), reverse=True)
        if config.num_heads % world_size or larger % smaller:
            raise ConfigurationError(
                f"{world_size} shards cannot share {config.num_heads} attention heads with {config.num_kv_heads} "
                "key-value heads evenly: set --num-shard to a divisor of both numbers"
            )
        if replicated:
            kv_start = rank * config.num_kv_heads // world_size
            kv_stop = kv_start + 1
        else:
            kv_start, kv_stop = even_span(config.num_kv_heads, rank, world_size)
        q_start, q_stop = even_span(config.num_heads, rank, world_size)
        return cls(q_start, q_stop, kv_start, kv_stop)
