"""Reads a shard of a matrix by the format that its scheme names."""

from torch import Tensor

from ....config.quantisation import Packed
from . import awq, bitsandbytes, compressed_tensors, gptq, mxfp4, nvfp4
from .groups import Groups
from .shard import MatrixShard


def read_groups(shard: MatrixShard, scheme: Packed) -> Groups:
    """Reads a shard of a stored matrix. With act-order, columns are places in that order, and `Groups.perm` says which
    inputs they are. Raises ModelFilesError.
    """
    match scheme.format:
        case "gptq" | "gptq_v2":
            return gptq.read(shard, scheme.bits, scheme.group_size, zeros_less_one=scheme.format == "gptq")
        case "awq":
            return awq.read(shard, scheme.group_size, zero_point=not scheme.symmetric)
        case "compressed-tensors":
            return compressed_tensors.read(shard, scheme.bits, scheme.group_size, scheme.symmetric)
        case "bnb-nf4" | "bnb-fp4":
            return bitsandbytes.read_four_bits(shard, "nf4" if scheme.format == "bnb-nf4" else "fp4")
        case "bnb-int8":
            return bitsandbytes.read_int8(shard)
        case "mxfp4":
            return mxfp4.read(shard)
        case "nvfp4":
            return nvfp4.read(shard)
        case _:
            raise ValueError(f"{scheme.format} is made while loading and stored nowhere")


def input_order(shard: MatrixShard, scheme: Packed) -> Tensor | None:
    """Returns [inputs] int64, the input of each column, for a matrix with act-order. Raises ModelFilesError."""
    if scheme.format in ("gptq", "gptq_v2"):
        return gptq.input_order(shard, scheme.group_size)
    if scheme.format == "compressed-tensors":
        return compressed_tensors.input_order(shard, scheme.group_size)
    return None
