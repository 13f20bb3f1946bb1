"""MXFP4 (OCP Microscaling Formats, 2023) of single matrices, as compressed-tensors stores it (`mxfp4-pack-quantized`).

`weight_packed` [outputs, inputs / 2] uint8 has the lower half of a byte first; `weight_scale` [outputs, inputs / 32]
holds exponents of two plus 127. DeepSeek V4 calls the first `weight`, of type int8.
"""

import torch

from ..mxfp4 import BLOCK, powers, table
from .groups import Groups
from .packing import halves
from .shard import MatrixShard, Span


def read(shard: MatrixShard) -> Groups:
    """Reads a shard. Raises ModelFilesError."""
    (outputs, inputs), (start, stop) = shard.shape, shard.columns
    span = Span.of(inputs, BLOCK, shard.columns)
    cut = (start // 2, -(-stop // 2))
    name = "weight_packed" if shard.has("weight_packed") else "weight"
    packed = shard.read(name, (outputs, -(-inputs // 2)), (torch.uint8, torch.int8), shard.rows, cut)
    codes = halves(packed.view(torch.uint8))[:, start % 2 :][:, : stop - start].contiguous()
    types = (torch.uint8, torch.float8_e8m0fnu)
    exponents = shard.read("weight_scale", (outputs, span.count), types, shard.rows, span.cut).view(torch.uint8)
    scales = shard.finite("weight_scale", powers(exponents.contiguous()))
    return Groups(codes, scales, None, 4, span.size, span.offset, table=table(codes.device))
