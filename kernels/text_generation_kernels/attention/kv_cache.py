"""Keys and values of one layer, by pool slot."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class KvCache:
    """Values, or codes of 8 or 4 bits (`kv_quantisation.py`) with their scales. The engine's pool owns all tensors.

    A thread block of attention reads one head of many slots. The engine lays a head's key and value side by side, so
    that it reads runs of twice the size, and the scales of one head in the order of slots, because a sector of memory
    holds eight.
    """

    k: Tensor
    """[slots, kv_heads, head_dim], any strides but unit stride in the last dimension; likewise `v`. Codes of 4 bits lie
    two in a byte, [slots, kv_heads, head_dim / 2].
    """
    v: Tensor
    """[slots, kv_heads, v_head_dim]"""
    scales: Tensor | None = None
    """[slots, kv_heads, 2] bfloat16, of keys and of values, where those are codes; of 4 bits more, with zeros."""
    scales_given: bool = False
    """Whether the scales are those of the checkpoint: the same for all slots, and never written."""
