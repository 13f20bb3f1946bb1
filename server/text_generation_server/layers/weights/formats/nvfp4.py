"""NVFP4: floats of 4 bits (e2m1) with a float8 scale for each group of 16 inputs and a float32 for the matrix.

compressed-tensors stores `weight_packed` [outputs, inputs / 2] uint8, `weight_scale` [outputs, inputs / 16] and
`weight_global_scale`, by which scales are divided; modelopt `weight`, `weight_scale` and `weight_scale_2`, by which
they are multiplied. The lower half of a byte comes first.
"""

import torch
from torch import Tensor

from ....config.quantisation import NVFP4_GROUP
from ..mxfp4 import table
from .groups import FactoredScales, Groups
from .packing import halves
from .shard import MatrixShard, Span

_DIVISOR, _FACTOR = "weight_global_scale", "weight_scale_2"


def read(shard: MatrixShard) -> Groups:
    """Reads a shard. Raises ModelFilesError."""
    (outputs, inputs), (start, stop) = shard.shape, shard.columns
    span = Span.of(inputs, NVFP4_GROUP, shard.columns)
    suffix = "weight_packed" if shard.has("weight_packed") else "weight"
    cut = (start // 2, -(-stop // 2))
    packed = shard.read(suffix, (outputs, -(-inputs // 2)), (torch.uint8,), shard.rows, cut)
    codes = halves(packed)[:, start % 2 :][:, : stop - start].contiguous()
    types = (torch.float8_e4m3fn,)
    stored = shard.read("weight_scale", (outputs, span.count), types, shard.rows, span.cut).contiguous()
    value, divides = _of_matrix(shard)
    scales = shard.finite("weight_scale", stored.float() / value if divides else stored.float() * value)
    if bool((scales < 0).any()):
        raise shard.error("weight_scale", "holds scales below 0, and the sign is that of a code")
    factors = (1 / value if divides else value).expand(len(stored)).contiguous()
    return Groups(
        codes,
        scales,
        None,
        4,
        span.size,
        span.offset,
        table=table(codes.device),
        factored=FactoredScales(stored, factors),
    )


def _of_matrix(shard: MatrixShard) -> tuple[Tensor, bool]:
    """The float32 of the matrix, and whether scales are divided by it."""
    suffix = _DIVISOR if shard.has(_DIVISOR) else _FACTOR
    shape = shard.stored_shape(suffix)
    value = shard.read_scales(suffix, shape if shape == () else (1,)).view(())
    if not bool(value > 0):
        raise shard.error(suffix, f"is {float(value)}, and a scale must be above 0")
    return value, suffix == _DIVISOR
