"""Tensors and sizes of the KV pool. It follows no policy: the router decides who holds which slot, and which row."""

from dataclasses import dataclass

from ..layers.infer.state import LayerCache, LayerState
from ..models.base import CausalLM


@dataclass(frozen=True)
class KVPool:
    """What the layers keep of requests.

    The last slot, number `num_slots`, is nobody's: what pads a batch writes there. Likewise the last row.
    """

    num_slots: int
    caches: list[LayerCache]
    """For each layer with keys and values those of `num_slots + 1` slots, as `CacheShape` says."""
    states: list[LayerState]
    """For each recurrent layer those of `num_rows + 1` rows, as `StateShape` says."""


def bytes_per_slot(model: CausalLM) -> int:
    """Bytes that one slot takes on this rank: K and V of one token in every layer that has them."""
    return sum(cache.bytes_per_slot(model.dtype) for cache in model.caches)


def bytes_per_row(model: CausalLM) -> int:
    """Bytes that one row takes on this rank: the states of every recurrent layer."""
    return sum(state.bytes_per_row(model.dtype) for state in model.states)


def allocate_pool(model: CausalLM, num_slots: int, num_rows: int) -> KVPool:
    """Zeros."""
    how = model.dtype, model.device
    caches = [cache.allocate(num_slots + 1, *how) for cache in model.caches]
    return KVPool(num_slots, caches, [state.allocate(num_rows + 1, *how) for state in model.states])
