"""What the operators with a delta rule share: their sizes, and parts of their torch implementations."""

import torch
from torch import Tensor

from ..runtime.shapes import padded_head_dim
from ._gated_delta_gates import EPS

LARGEST = 256
"""Largest head dimension: a warp holds a state of this many keys, and of 8 values, in registers."""
LARGEST_BY_BLOCKS, _LEAST_TILE = 128, 32
"""Most elements of a key that blocks take, and least elements of keys and values in a tile."""
SHORT = 16
"""Length of the longest run up to which token by token is no slower than blocks."""
_WARP_ELEMENTS, _MOST_COLUMNS = 2048, 32
"""Most elements of a state in a warp, and most columns that they belong to. A thread block is one warp: none waits for
another, and a run has many thread blocks.
"""


def warp_sizes(key_dim: int, value_dim: int) -> dict[str, int]:
    """Elements of keys, and columns of a state, that a warp of the token-by-token kernels has."""
    block_k = padded_head_dim(key_dim)
    return {"BLOCK_K": block_k, "BLOCK_V": min(padded_head_dim(value_dim), _WARP_ELEMENTS // block_k, _MOST_COLUMNS)}


def tile(size: int) -> int:
    """Elements of keys or values in a tile of the scan over blocks."""
    return max(_LEAST_TILE, padded_head_dim(size))


def normalised(x: Tensor) -> Tensor:
    """Vectors [heads, key_dim] of length 1."""
    return x * (x.square().sum(dim=1, keepdim=True) + EPS).rsqrt()


def look_up(held: Tensor, keys: Tensor) -> Tensor:
    """Readings of the states by keys [heads, key_dim]: [heads, value_dim]."""
    return torch.bmm(keys[:, None], held)[:, 0]
