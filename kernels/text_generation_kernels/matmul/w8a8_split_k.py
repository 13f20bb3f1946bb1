"""Product of 8-bit activations with an 8-bit weight matrix, left in parts for the operator behind it.

    sum of out over its first dimension = (x8 * x_scale) @ (weight8 * weight_scale).T

Layouts: `x8`, `x_scale`, `weight8`, `weight_scale` as of `scaled_linear`, a scale for each token and each row of the
matrix; `out` float32 `[parts, tokens, outputs]`, contiguous, `parts` as `scaled_parts` says.

Where the outputs are few, the programs that share rows of a matrix divide its inputs, and `scaled_linear` lets the last
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
from ._partials import check_parts
from .w8a8_linear import scaled_linear_torch
from .w8a8_small import takes_few, way_of


def scaled_parts(x8: Tensor, x_scale: Tensor, weight8: Tensor, weight_scale: Tensor) -> int:
    """Into how many parts this product is best divided, 1 where `scaled_linear` is for it."""
    if not (x8.is_cuda and triton_enabled() and takes_few(x8, x_scale, weight_scale)):
        return 1
    return way_of(x8, x_scale, weight8, weight_scale, False).config["splits"]


def scaled_in_parts_triton(x8: Tensor, x_scale: Tensor, weight8: Tensor, weight_scale: Tensor, out: Tensor) -> None:
    """Triton implementation. Raises ValueError for another number of parts than `scaled_parts` says."""
    product, config = way_of(x8, x_scale, weight8, weight_scale, False)
    check_parts("scaled_in_parts", out, config["splits"], len(x8), len(weight8))
    product(x8, x_scale, weight8, weight_scale, None, out, config)


def scaled_in_parts_torch(x8: Tensor, x_scale: Tensor, weight8: Tensor, weight_scale: Tensor, out: Tensor) -> None:
    """Torch implementation: everything is in the first part."""
    out.zero_()
    scaled_linear_torch(x8, x_scale, weight8, weight_scale, None, out[0])


scaled_in_parts = register(scaled_in_parts_torch, mutates=("out",), triton=scaled_in_parts_triton)
