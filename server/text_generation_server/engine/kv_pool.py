"""Tensors and sizes of the KV pool. The router decides which request holds which slot and which row."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from text_generation_kernels import KvCache

from ..layers.infer import CacheShape, LayerState
from ..models.base import CausalLM


@dataclass(frozen=True)
class KVPool:
    """What the layers keep of requests. Padding writes to the last slot, number `num_slots`, and to the last row."""

    num_slots: int
    caches: list[KvCache]
    """The keys and values of `num_slots + 1` slots, or of those that this rank has, for each layer that has them."""
    states: list[LayerState]
    """The states of `num_rows + 1` rows, for each recurrent layer."""
    of_drafter: list[KvCache]
    """What the drafter keeps of the same slots, and after them `num_rows + 1` spare slots (`drafting.py`)."""
    read: list[list[Tensor]]
    """What each recurrent layer has read of the windows of a step (`StateWindows`); nothing without speculation."""


def bytes_per_slot(model: CausalLM) -> int:
    """Returns the bytes of one slot on this rank: K and V of one token in every layer that has them, and what the
    drafter keeps.
    """
    return sum(cache.bytes_per_slot(model.dtype) for cache in (*model.caches, *_of_drafter(model)))


def shared_heads(model: CausalLM) -> int:
    """Returns the heads of all ranks that read a cache of which each rank has some positions; 0: there is none."""
    return max((cache.readers for cache in model.caches), default=0)


def bytes_per_row(model: CausalLM) -> int:
    """Returns the bytes of one row on this rank: the states of every recurrent layer."""
    return sum(state.bytes_per_row(model.dtype) for state in model.states)


def bytes_per_window_token(model: CausalLM) -> int:
    """Returns the bytes of what all recurrent layers read of a token."""
    return sum(state.bytes_per_token(model.dtype) for state in model.states)


def allocate_pool(model: CausalLM, num_slots: int, num_rows: int, window_tokens: int = 0) -> KVPool:
    """Allocates the pool, filled with zeros. Windows of a step have at most `window_tokens` tokens together."""
    how = model.dtype, model.device
    caches = [cache.allocate(num_slots + 1, *how) for cache in model.caches]
    states = [state.allocate(num_rows + 1, *how) for state in model.states]
    of_drafter = [cache.allocate(num_slots + num_rows + 2, *how) for cache in _of_drafter(model)]
    read = [state.allocate_read(window_tokens, *how) for state in model.states]
    return KVPool(num_slots, caches, states, of_drafter, read)


def _of_drafter(model: CausalLM) -> Sequence[CacheShape]:
    return () if model.drafter is None else model.drafter.caches
