"""Matrices in the formats of compressed-tensors, made by that library, and what it makes of them again."""

from dataclasses import dataclass

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams
from torch import Tensor

NVFP4 = "nvfp4-pack-quantized"
_FP8_MOST, _FP4_MOST = 448.0, 6.0


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
    if form == NVFP4:
        return nvfp4_matrix(weight)
    kind = "float" if form.startswith("mx") else "int"
    args = QuantizationArgs(
        num_bits=bits,
        type=kind,
        symmetric=symmetric,
        strategy="group" if group_size else "channel",
        group_size=group_size or None,
    )
    grouped = weight.unflatten(1, (-1, group_size or weight.shape[1]))
    if kind == "float":
        # The power of two by which the largest number of a group is between 4 and 8, or 256 and 512.
        scale, zero = torch.exp2(grouped.abs().amax(-1).log2().floor() - (2 if bits == 4 else 8)), torch.zeros(())
    else:
        scale, zero = calculate_qparams(grouped.amin(-1), grouped.amax(-1), args)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    state: dict[str, Tensor] = {"weight": weight, "weight_scale": scale}
    if not symmetric:
        state["weight_zero_point"] = zero.round().to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(form)
    tensors = compressor.compress(state, scheme)
    return CompressedMatrix(dict(tensors), compressor.decompress(dict(tensors), scheme)["weight"].float())


def nvfp4_matrix(weight: Tensor, divisor: Tensor | None = None) -> CompressedMatrix:
    """The library reads its own numbers in bfloat16: of it are the codes, and the rest is the specification's.
    `divisor`: of the scales; None: the one with which the largest of them is the largest float8.
    """
    scheme, grouped = preset_name_to_scheme("NVFP4A16", ["Linear"]), weight.unflatten(1, (-1, 16))
    divisor = _FP8_MOST * _FP4_MOST / weight.abs().max() if divisor is None else divisor
    scale = (grouped.abs().amax(-1) / _FP4_MOST * divisor).to(torch.float8_e4m3fn).float()
    state = {"weight": weight, "weight_scale": scale, "weight_global_scale": divisor.view(1)}
    tensors = dict(BaseCompressor.get_value_from_registry(NVFP4).compress(state, scheme))
    return CompressedMatrix(tensors, fp4_weight(tensors["weight_packed"], scale / divisor))


def fp4_weight(packed: Tensor, scales: Tensor) -> Tensor:
    """[outputs, inputs] of codes that the library unpacks, and scales [outputs, inputs / 16]."""
    codes = unpack_fp4_from_uint8(packed, packed.shape[0], 2 * packed.shape[1], dtype=torch.float32)
    return (codes.unflatten(1, (-1, 16)) * scales[..., None]).flatten(1)
