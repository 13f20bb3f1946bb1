"""Where the new tokens of a step stand."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class NewTokens:
    """Angles and slots of T new tokens. The engine owns all tensors; layers with one rotary embedding share a record.

    Elements that are not rotated have cosine 1 and sine 0 (partial RoPE, layers without any). Of tokens that share a
    slot any one's keys and values stay there: only padding may share.
    """

    cos_sin: Tensor
    """[positions, head_dim] float32, unit stride in the last dimension: cosines in the first half, then sines."""
    positions: Tensor
    """[T] int64, the row of `cos_sin` of each token."""
    slots: Tensor
    """[T] int64, the slot of the KV pool that each token writes."""
