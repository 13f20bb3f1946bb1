"""MXFP4 of single matrices: compressed-tensors packs and reads."""

import torch
from support.compressed_matrices import compressed_matrix
from support.grouped_matrices import assert_every_part

from text_generation_server.config.quantisation import Packed
from text_generation_server.layers.weights.formats import quantise_groups
from text_generation_server.layers.weights.mxfp4 import powers, table


def test_every_part_is_that_of_the_library() -> None:
    torch.manual_seed(0)
    matrix = compressed_matrix(torch.randn(16, 96), 4, 32, symmetric=True, form="mxfp4-pack-quantized")
    assert_every_part(matrix.tensors, Packed("mxfp4", 4, 32), matrix.weight, (3,), (5, 32, 50))


def test_what_the_library_stored_is_made_again() -> None:
    """Random weights of this format run as those of a checkpoint do: by its table, with powers of two as scales."""
    torch.manual_seed(0)
    stored = compressed_matrix(torch.randn(16, 96), 4, 32, symmetric=True, form="mxfp4-pack-quantized").weight
    found = quantise_groups(stored, "mxfp4")
    assert torch.equal(found.dequantised(), stored)
    assert found.table is not None
    assert torch.equal(found.table, table(stored.device))
    assert bool((torch.frexp(found.scales).mantissa == 0.5).all())


def test_every_power_of_two_is_exact() -> None:
    exponents = torch.arange(255, dtype=torch.uint8)
    assert powers(exponents).tolist() == [2.0 ** (exponent - 127) for exponent in range(255)]
