"""Weights that are stored as codes in groups, as a matrix of 16 bits.

    out[n, k] = (code[n, k] - zero[n, k's group]) * scale[n, k's group], or table[code] * scale

Layouts: `packed` as `pack_codes` makes it, `scales` and `zeros` as `pack_scales` does ([groups, outputs]), with
`group_size` inputs a group (0: all inputs are one group); `table` [16] float32 or None; `out` [outputs, inputs], unit
stride in the last dimension. Zeros that are not given are 2 ** (bits - 1). Computed in float32, rounded once.

Called for products of many tokens, where a matrix in 16 bits and the library's product are fastest.
Bytes floor: outputs * inputs * (bits / 8 + 2).
"""

from torch import Tensor

from ._groups import group_values
from ._register import register


def dequantise_torch(
    packed: Tensor, scales: Tensor, zeros: Tensor | None, table: Tensor | None, out: Tensor, group_size: int
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    out.copy_(group_values(packed, scales, zeros, table, out.shape[1], group_size))


dequantise = register(dequantise_torch, mutates=("out",))
