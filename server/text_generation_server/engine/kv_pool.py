"""The KV pool's tensors and sizes. It follows no policy: the router decides who holds which slot."""

from dataclasses import dataclass

from ..layers.infer.state import LayerCache
from ..models.base import CausalLM


@dataclass(frozen=True)
class KVPool:
    """`caches`: for each layer K and V of `num_slots + 1` slots, as `CacheShape` says.

    The last slot, number `num_slots`, is nobody's: what pads a batch writes there.
    """

    num_slots: int
    caches: list[LayerCache]


def bytes_per_slot(model: CausalLM) -> int:
    """Bytes that one slot takes on this rank: K and V of one token in every layer."""
    return sum(cache.bytes_per_slot(model.dtype) for cache in model.caches)


def allocate_pool(model: CausalLM, num_slots: int) -> KVPool:
    """Zeros."""
    return KVPool(num_slots, [cache.allocate(num_slots + 1, model.dtype, model.device) for cache in model.caches])
