"""NVFP4 of single matrices: compressed-tensors packs, and modelopt has other names for the same."""

import pytest
import torch
from support.compressed_matrices import NVFP4, compressed_matrix
from support.grouped_matrices import assert_every_part, module
from support.packed_files import modelopt_fp4

from text_generation_server.config.quantisation import Packed
from text_generation_server.errors import ModelFilesError
from text_generation_server.layers.weights.formats import read_groups

SCHEME = Packed("nvfp4", 4, 16)


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(16, 96, generator=torch.Generator().manual_seed(0))


def test_every_part_is_that_of_the_library(weight: torch.Tensor) -> None:
    matrix = compressed_matrix(weight, 4, 16, symmetric=True, form=NVFP4)
    assert_every_part(matrix.tensors, SCHEME, matrix.weight, (3,), (5, 16, 50))
    # Four bits, with a scale for 16 numbers.
    assert (matrix.weight - weight).abs().mean() < 0.1 * weight.abs().mean()


def test_every_part_is_that_of_modelopt(weight: torch.Tensor) -> None:
    tensors, meant = modelopt_fp4("any", weight)
    assert_every_part(tensors, SCHEME, meant, (3,), (5, 16, 50))


def test_scales_below_0_are_refused(weight: torch.Tensor) -> None:
    tensors, _ = modelopt_fp4("any", weight)
    stored = tensors["weight_scale"].float()
    stored[3, 2] *= -1
    tensors["weight_scale"] = stored.to(torch.float8_e4m3fn)
    with pytest.raises(ModelFilesError, match=r"m\.weight_scale` holds scales below 0"):
        read_groups(module(tensors, (16, 96)), SCHEME)
