"""Weight-only matmul of many tokens: dequantises the weight to 16 bits, chunk by chunk, and calls cuBLAS.

The formula and layouts are those of `weight_only_linear`, which calls it. Bytes floor: outputs * inputs * bits / 8; it
writes and reads outputs * inputs * 2 besides.
"""

# pyright: basic
from collections.abc import Mapping

import torch
from torch import Tensor

from .dequantise import dequantise
from .group_quantisation import PackedMatrix

_SCRATCH_BYTES = 512 << 20
"""The most bytes of the 16-bit matrix; larger ones are dequantised in chunks of outputs. Chunks that stay in the L2
cache (16 to 64 MiB) are slower on an H200, because cuBLAS's GEMMs with them are small.
"""


def dequantise_matmul(
    x: Tensor,
    weight: PackedMatrix,
    bias: Tensor | None,
    out: Tensor,
    _settings: Mapping[str, int] | None = None,
) -> None:
    """Dequantises a chunk of outputs at a time to 16 bits, and calls cuBLAS with it. Arguments as of
    `weight_only_linear`.
    """
    outputs, inputs = weight.outputs, x.shape[1]
    chunk = max(1, _SCRATCH_BYTES // (inputs * x.element_size()))
    matrix = x.new_empty(min(chunk, outputs), inputs)
    for first in range(0, outputs, chunk):
        rows = slice(first, min(first + chunk, outputs))
        values = matrix[: rows.stop - first]
        dequantise(weight.rows(rows), values)
        torch.mm(x, values.t(), out=out[:, rows])
    if bias is not None:
        out += bias
