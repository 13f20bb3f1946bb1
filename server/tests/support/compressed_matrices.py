"""Matrices in the formats of compressed-tensors, made by that library, and what it makes of them again."""

from dataclasses import dataclass

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from torch import Tensor


@dataclass(frozen=True)
class CompressedMatrix:
    """Tensors of a module, and the library's own reading of them."""

    tensors: dict[str, Tensor]
    weight: Tensor
    """[outputs, inputs] float32"""


def compressed_matrix(
    weight: Tensor, bits: int, group_size: int, symmetric: bool, form: str = "pack-quantized"
) -> CompressedMatrix:
    """`weight` [outputs, inputs] float32 as the library rounds it. A group size of 0: one scale for each row."""
    kind = "float" if form.startswith("mxfp4") else "int"
    args = QuantizationArgs(
        num_bits=bits,
        type=kind,
        symmetric=symmetric,
        strategy="group" if group_size else "channel",
        group_size=group_size or None,
    )
    grouped = weight.unflatten(1, (-1, group_size or weight.shape[1]))
    if kind == "float":
        # The power of two by which the largest number of a group is between 4 and 8.
        scale, zero = torch.exp2(grouped.abs().amax(-1).log2().floor() - 2), torch.zeros(())
    else:
        scale, zero = calculate_qparams(grouped.amin(-1), grouped.amax(-1), args)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    state: dict[str, Tensor] = {"weight": weight, "weight_scale": scale}
    if not symmetric:
        state["weight_zero_point"] = zero.round().to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(form)
    tensors = compressor.compress(state, scheme)
    return CompressedMatrix(dict(tensors), compressor.decompress(dict(tensors), scheme)["weight"].float())
