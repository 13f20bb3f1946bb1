"""Product of 8-bit activations with an 8-bit weight matrix, left in parts for the operator behind it.

    sum of out over its first dimension = (x8 * x_scale) @ (weight8 * weight_scale).T

Layouts: `x8`, `x_scale`, `weight8`, `weight_scale` as of `w8a8_linear`, a scale for each token and each row of the
matrix; `out` float32 `[parts, tokens, outputs]`, contiguous, `parts` as `w8a8_splits` says.

Where the outputs are few, the programs that share rows of a matrix divide its inputs, and `w8a8_linear` lets the last
one add up what all of them have found, which has to go to memory, be waited for and come back. The sum and norm behind
(`add_rms_norm`) waits for all programs anyway, and reads the parts instead.

Called twice a layer for 2 to 64 tokens: the output product of attention and the second one of the feed-forward network.
Bytes floor: outputs * inputs.
Measured on an H200 with 64 tokens and two parts: a layer of an 8B takes 76.5 us instead of 79.5, with four parts 82.3
(scaled_linear_layers.json). An output product of 8192 rows has enough programs without parts.
"""

# pyright: basic, reportArgumentType=false
from torch import Tensor

from ..runtime.register import register, triton_enabled
from ._partials import check_partials
from .w8a8_linear import w8a8_linear_torch
from .w8a8_small import kernel_for, takes_small


def w8a8_splits(x8: Tensor, x_scale: Tensor, weight8: Tensor, weight_scale: Tensor) -> int:
    """Into how many parts this product is best divided, 1 where `w8a8_linear` is for it."""
    if not (x8.is_cuda and triton_enabled() and takes_small(x8, x_scale, weight_scale)):
        return 1
    return kernel_for(x8, x_scale, weight8, weight_scale, False).config["splits"]


def w8a8_split_k_triton(x8: Tensor, x_scale: Tensor, weight8: Tensor, weight_scale: Tensor, out: Tensor) -> None:
    """Triton implementation. Raises ValueError for another number of parts than `w8a8_splits` says."""
    gemm, config = kernel_for(x8, x_scale, weight8, weight_scale, False)
    check_partials("w8a8_split_k", out, config["splits"], len(x8), len(weight8))
    gemm(x8, x_scale, weight8, weight_scale, None, out, config)


def w8a8_split_k_torch(x8: Tensor, x_scale: Tensor, weight8: Tensor, weight_scale: Tensor, out: Tensor) -> None:
    """Torch implementation: everything is in the first part."""
    out.zero_()
    w8a8_linear_torch(x8, x_scale, weight8, weight_scale, None, out[0])


w8a8_split_k = register(w8a8_split_k_torch, mutates=("out",), triton=w8a8_split_k_triton)
