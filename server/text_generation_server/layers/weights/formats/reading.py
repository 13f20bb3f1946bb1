"""One matrix, or a part of it, by the format that its scheme names."""

from torch import Tensor

from ....config.quantisation import Packed
from . import awq, bitsandbytes, compressed_tensors, gptq, mxfp4, nvfp4
from .groups import Groups
from .part import Part


def read_groups(part: Part, scheme: Packed) -> Groups:
    """Reads a part of a stored matrix. Raises ModelFilesError.

    Where the inputs have an order of their own, columns are those places in it, and `Groups.perm` says which inputs
    they are.
    """
    match scheme.format:
        case "gptq" | "gptq_v2":
            return gptq.read(part, scheme.bits, scheme.group_size, zeros_less_one=scheme.format == "gptq")
        case "awq":
            return awq.read(part, scheme.group_size, zero_point=not scheme.symmetric)
        case "compressed-tensors":
            return compressed_tensors.read(part, scheme.bits, scheme.group_size, scheme.symmetric)
        case "bnb-nf4" | "bnb-fp4":
            return bitsandbytes.read_four_bits(part, "nf4" if scheme.format == "bnb-nf4" else "fp4")
        case "bnb-int8":
            return bitsandbytes.read_int8(part)
        case "mxfp4":
            return mxfp4.read(part)
        case "nvfp4":
            return nvfp4.read(part)
        case _:
            raise ValueError(f"{scheme.format} is made while loading and stored nowhere")


def input_order(part: Part, scheme: Packed) -> Tensor | None:
    """[inputs] int64: the input of each column where inputs have an order of their own. Raises ModelFilesError."""
    if scheme.format in ("gptq", "gptq_v2"):
        return gptq.input_order(part, scheme.group_size)
    if scheme.format == "compressed-tensors":
        return compressed_tensors.input_order(part, scheme.group_size)
    return None
