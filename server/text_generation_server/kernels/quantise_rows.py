"""8-bit form of activations that no other operator quantises: what attention returns, and the input of a first layer.

The formula is in `_quantise.py`. Layouts: `x` `[tokens, inputs]` of 16 or 32 bits, `out8` alike of float8_e4m3fn or
int8, unit stride in the last dimension, any stride between tokens; `scale` float32 `[tokens]`, or
`[tokens, ceil(inputs / group)]` with any strides; `static` one float32 or None.

Bytes floor: tokens * inputs * (element size + 1).
"""

# pyright: basic
from torch import Tensor

from ._quantise import quantise_torch
from ._register import register


def quantise_rows_torch(
    x: Tensor, out8: Tensor, scale: Tensor, group: int = 0, static: Tensor | None = None, bound: float = 0.0
) -> None:
    """Torch implementation: the CPU path and the reference of the tests."""
    quantise_torch(x, out8, scale, group, static, bound)


quantise_rows = register(quantise_rows_torch, mutates=("out8", "scale"))
