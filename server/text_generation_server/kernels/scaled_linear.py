"""Product of 8-bit activations with an 8-bit weight matrix.

    out = (x8 * x_scale) @ (weight8 * weight_scale).T + bias

Layouts: `x8` `[tokens, inputs]`, `weight8` `[outputs, inputs]`, both float8_e4m3fn or both int8, `out`
`[tokens, outputs]` of 16 bits (or 32); unit stride in the last dimension, any stride between rows. `x_scale` float32
`[tokens]`, or `[tokens, ceil(inputs / 128)]`: one for each 128 inputs. `weight_scale` float32 `[outputs]`, or
`[outputs, ceil(inputs / 128)]`, or `[ceil(outputs / 128), ceil(inputs / 128)]`. `bias` `[outputs]` or None, in the type
of `out`.
"""

# pyright: basic
import torch
from torch import Tensor
from torch.nn import functional

from ._register import register

BLOCK = 128
"""Inputs, and outputs, that share a scale where scales are by block."""


def scaled_linear_torch(
    x8: Tensor, x_scale: Tensor, weight8: Tensor, weight_scale: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    """Torch implementation, in float32: the CPU path and the reference of the tests."""
    product = functional.linear(_dequantise(x8, x_scale), _dequantise(weight8, weight_scale))
    out.copy_(product if bias is None else product + bias)


def _dequantise(values: Tensor, scale: Tensor) -> Tensor:
    """What the values stand for, float32."""
    if scale.dim() == 1:
        return values.float() * scale[:, None]
    rows, inputs = values.shape
    if len(scale) != rows:
        scale = scale.repeat_interleave(BLOCK, 0)[:rows]
    return values.float() * scale.repeat_interleave(BLOCK, 1)[:, :inputs]


scaled_linear = register(scaled_linear_torch, mutates=("out",))
