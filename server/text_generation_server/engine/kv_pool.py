"""The KV pool's tensors and sizes. It follows no policy: the router decides who holds which slot."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..layers.infer.state import LayerCache
from ..models.base import CausalLM


@dataclass(frozen=True)
class KVPool:
    """`caches`: for each layer K and V of `num_slots + 1` slots in the model's dtype.

    The last slot, number `num_slots`, is nobody's: what pads a batch writes there.
    """

    num_slots: int
    caches: list[LayerCache]


def bytes_per_slot(model: CausalLM) -> int:
    """Bytes that one slot takes on this rank: K and V of one token in every layer."""
    return sum(cache.elements for cache in model.caches) * model.dtype.itemsize


def allocate_pool(model: CausalLM, num_slots: int) -> KVPool:
    """Zeros, not garbage: an attention kernel may multiply a slot that it masks by 0, and 0 * NaN is NaN."""

    def zeros(heads: int, elements: int) -> Tensor:
        return torch.zeros((num_slots + 1, heads, elements), dtype=model.dtype, device=model.device)

    caches = [
        LayerCache(zeros(cache.kv_heads, cache.head_dim), zeros(cache.kv_heads, cache.value_dim))
        for cache in model.caches
    ]
    return KVPool(num_slots, caches)
