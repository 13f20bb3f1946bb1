"""AWQ, version "gemm": compressed-tensors' converter is the oracle."""

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from support.grouped_matrices import assert_every_part, module
from torch import Tensor

from text_generation_server.config.quantisation import Packed
from text_generation_server.errors import ModelFilesError
from text_generation_server.layers.weights.formats import read_groups

OUTPUTS, INPUTS = 32, 96


def _matrix(zero_point: bool) -> dict[str, Tensor]:
    """Any words are a matrix."""
    torch.manual_seed(0)
    groups = INPUTS // 32

    def words(rows: int) -> Tensor:
        return torch.randint(-(2**31), 2**31, (rows, OUTPUTS // 8)).to(torch.int32)

    tensors = {"qweight": words(INPUTS), "scales": torch.rand(groups, OUTPUTS).half()}
    return {**tensors, "qzeros": words(groups)} if zero_point else tensors


def _oracle(tensors: dict[str, Tensor], zero_point: bool) -> Tensor:
    converter = AutoAWQConverter(group_size=32, zero_point=zero_point)
    found = converter.process({f"m.{name}": tensor for name, tensor in tensors.items()})
    codes = unpack_from_int32(found["m.weight_packed"], 4, torch.Size((OUTPUTS, INPUTS))).float()
    if zero_point:
        shape = torch.Size((OUTPUTS, INPUTS // 32))
        zeros = unpack_from_int32(found["m.weight_zero_point"], 4, shape, packed_dim=0)
        codes -= zeros.float().repeat_interleave(32, 1)
    return codes * found["m.weight_scale"].float().repeat_interleave(32, 1)


@pytest.mark.parametrize("zero_point", [True, False])
def test_every_part_is_that_of_compressed_tensors(zero_point: bool) -> None:
    tensors = _matrix(zero_point)
    scheme = Packed("awq", 4, 32, symmetric=not zero_point)
    assert_every_part(tensors, scheme, _oracle(tensors, zero_point), (3, 8, 27), (5, 32, 80))


def test_codes_of_neighbours_take_turns_in_a_word() -> None:
    """The lowest half byte of a word is output 0, the next one output 2."""
    tensors = {"qweight": torch.full((32, 1), 0x75316420, dtype=torch.int32), "scales": torch.ones(1, 8).half()}
    weight = read_groups(module(tensors, (8, 32)), Packed("awq", 4, 32)).dequantised()
    assert weight[:, 0].tolist() == [float(code - 8) for code in range(8)]


def test_zeros_may_not_be_missing() -> None:
    with pytest.raises(ModelFilesError, match=r"`m\.qzeros` is in none"):
        read_groups(module(_matrix(zero_point=False), (OUTPUTS, INPUTS)), Packed("awq", 4, 32, symmetric=False))


def test_other_layouts_are_refused() -> None:
    """Of the version "gemv", outputs come first."""
    tensors = _matrix(zero_point=True)
    tensors["qweight"] = tensors["qweight"].view(OUTPUTS, -1)
    with pytest.raises(ModelFilesError, match=r"`m.qweight` has shape \[32, 12\], but .* asks for \[96, 4\]"):
        read_groups(module(tensors, (OUTPUTS, INPUTS)), Packed("awq", 4, 32, symmetric=False))
