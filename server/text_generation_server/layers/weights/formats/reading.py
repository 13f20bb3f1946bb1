"""One matrix, or a part of it, by the format that its scheme names."""

from torch import Tensor

from ....config.quantisation import Packed, PackedFormat
from ....weights import WeightSource
from . import awq, bitsandbytes, compressed_tensors, gptq, mxfp4
from .groups import Groups
from .part import Part

_MARKS: dict[PackedFormat, str] = {
    "gptq": "qweight",
    "gptq_v2": "qweight",
    "awq": "qweight",
    "compressed-tensors": "weight_scale",
    "mxfp4": "weight_scale",
    "bnb-nf4": "weight.absmax",
    "bnb-fp4": "weight.absmax",
    "bnb-int8": "SCB",
}
"""A tensor without which no module is in the format."""


def is_plain(source: WeightSource, name: str, scheme: Packed) -> bool:
    """Whether a module is stored with a plain weight, though its scheme says otherwise."""
    return source.has(f"{name}.weight") and not source.has(f"{name}.{_MARKS[scheme.format]}")


def is_packed(source: WeightSource, name: str, scheme: Packed) -> bool:
    """Whether a module is stored in the format of `scheme` and has no plain weight."""
    return source.has(f"{name}.{_MARKS[scheme.format]}") and not source.has(f"{name}.weight")


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
        case _:
            raise ValueError(f"{scheme.format} is made while loading and stored nowhere")


def input_order(part: Part, scheme: Packed) -> Tensor | None:
    """[inputs] int64: the input of each column where inputs have an order of their own. Raises ModelFilesError."""
    if scheme.format in ("gptq", "gptq_v2"):
        return gptq.input_order(part, scheme.group_size)
    if scheme.format == "compressed-tensors":
        return compressed_tensors.input_order(part, scheme.group_size)
    return None
