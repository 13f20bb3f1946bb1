"""The KV pool's tensors and sizes. It follows no policy: the router decides who holds which slot."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.base import CausalLM


@dataclass(frozen=True)
class KVPool:
    """`k_cache` and `v_cache`: for each layer [num_slots + 1, kv_heads_of_rank, head_dim] in the model's dtype.

    The last slot, number `num_slots`, is nobody's: what pads a batch writes there.
    """

    num_slots: int
    k_cache: list[Tensor]
    v_cache: list[Tensor]


def bytes_per_slot(model: CausalLM) -> int:
    """Bytes that one slot takes on this rank: K and V of one token in every layer."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * model.dtype.itemsize


def allocate_pool(model: CausalLM, num_slots: int) -> KVPool:
    """Zeros, not garbage: an attention kernel may multiply a slot that it masks by 0, and 0 * NaN is NaN."""

    def layers() -> list[Tensor]:
        shape = (num_slots + 1, model.num_kv_heads, model.head_dim)
        return [torch.zeros(shape, dtype=model.dtype, device=model.device) for _ in range(model.num_layers)]

    return KVPool(num_slots, layers(), layers())
