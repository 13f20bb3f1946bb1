"""MXFP4 of single matrices: compressed-tensors packs and reads."""

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from support.grouped_matrices import assert_every_part

from text_generation_server.config.quantisation import Packed


def test_every_part_is_that_of_the_library() -> None:
    torch.manual_seed(0)
    weight = torch.randn(16, 96)
    args = QuantizationArgs(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    scale = torch.exp2(weight.unflatten(1, (-1, 32)).abs().amax(-1).log2().floor() - 2)
    compressor = BaseCompressor.get_value_from_registry("mxfp4-pack-quantized")
    tensors = compressor.compress({"weight": weight, "weight_scale": scale}, scheme)
    expected = compressor.decompress(dict(tensors), scheme)["weight"].float()
    assert_every_part(dict(tensors), Packed("mxfp4", 4, 32), expected, (3,), (5, 32, 50))
