"""compressed-tensors: the library packs, and reads for comparison."""

import pytest
import torch
from support.compressed_matrices import compressed_matrix
from support.grouped_matrices import assert_every_part, module
from torch import Tensor

from text_generation_server.config.quantisation import Packed
from text_generation_server.errors import ModelFilesError
from text_generation_server.layers.weights.formats import read_groups

OUTPUTS, INPUTS = 32, 96


def _weight() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(OUTPUTS, INPUTS) + 0.3


def _scheme(bits: int, group_size: int = 32, symmetric: bool = True) -> Packed:
    return Packed("compressed-tensors", bits, group_size, symmetric)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [32, 0])
def test_every_part_is_that_of_the_library(bits: int, symmetric: bool, group_size: int) -> None:
    """Zeros are packed along the outputs, which no edge of these parts respects."""
    matrix = compressed_matrix(_weight(), bits, group_size, symmetric)
    scheme = _scheme(bits, group_size, symmetric)
    whole = assert_every_part(matrix.tensors, scheme, matrix.weight, (3, 16, 29), (8, 48, 77))
    assert (whole.zeros is None) == symmetric


@pytest.mark.parametrize("bits", [3, 5, 6])
def test_files_from_before_dense_packing(bits: int) -> None:
    """Odd widths wasted bits of each word: the shape tells."""
    matrix = compressed_matrix(_weight(), bits, 32, symmetric=False)
    zeros = read_groups(module(matrix.tensors, (OUTPUTS, INPUTS)), _scheme(bits, symmetric=False)).zeros
    assert zeros is not None
    shifts = torch.arange(32 // bits) * bits

    def padded(codes: Tensor) -> Tensor:
        """[n, count] to [n, words]"""
        per_word = 32 // bits
        words = torch.nn.functional.pad(codes, (0, -codes.shape[1] % per_word)).unflatten(1, (-1, per_word))
        return (words << shifts).sum(-1).to(torch.int32)

    spread = matrix.tensors["weight_scale"].float().repeat_interleave(32, 1)
    codes = (matrix.weight / spread + zeros.repeat_interleave(32, 1)).round().long()
    tensors = {
        **matrix.tensors,
        "weight_packed": padded(codes),
        "weight_zero_point": padded(zeros.long().t()).t().contiguous(),
    }
    assert tensors["weight_packed"].shape != matrix.tensors["weight_packed"].shape
    assert_every_part(tensors, _scheme(bits, symmetric=False), matrix.weight, (3, 16), (8, 50))


@pytest.mark.parametrize("bits", [4, 8])
def test_inputs_in_an_order_of_their_own(bits: int) -> None:
    """The library has dropped this order, but files remain: codes stand in the order of inputs, groups do not."""
    order = torch.randperm(INPUTS, generator=torch.Generator().manual_seed(1))
    matrix = compressed_matrix(_weight()[:, order], bits, 32, symmetric=False)
    sorted_codes = read_groups(module(matrix.tensors, (OUTPUTS, INPUTS)), _scheme(bits, symmetric=False)).codes
    places = order.argsort()
    packed = (sorted_codes[:, places].long().unflatten(1, (-1, 32 // bits)) << torch.arange(0, 32, bits)).sum(-1)
    tensors = {
        **matrix.tensors,
        "weight_packed": packed.to(torch.int32),
        "weight_g_idx": (places // 32).to(torch.int32),
    }
    scheme = _scheme(bits, symmetric=False)
    whole = assert_every_part(tensors, scheme, matrix.weight[:, places], (8, 20), (32, 48))
    assert whole.perm is not None


def test_an_order_that_was_never_set_is_none() -> None:
    matrix = compressed_matrix(_weight(), 4, 32, symmetric=True)
    tensors = {**matrix.tensors, "weight_g_idx": torch.full((INPUTS,), -1, dtype=torch.int32)}
    assert read_groups(module(tensors, (OUTPUTS, INPUTS)), _scheme(4)).perm is None


@pytest.mark.parametrize(("bits", "group_size", "symmetric"), [(8, 0, True), (8, 0, False), (4, 32, False)])
def test_a_byte_for_each_weight(bits: int, group_size: int, symmetric: bool) -> None:
    """`int-quantized` without quantised activations; zeros are bytes too."""
    matrix = compressed_matrix(_weight(), bits, group_size, symmetric, form="int-quantized")
    assert matrix.tensors["weight"].dtype == torch.int8
    assert_every_part(matrix.tensors, _scheme(bits, group_size, symmetric), matrix.weight, (5,), (33,))


def test_one_scale_for_the_whole_matrix() -> None:
    matrix = compressed_matrix(_weight().sign(), 4, 0, symmetric=True)
    assert torch.equal(matrix.tensors["weight_scale"], matrix.tensors["weight_scale"][:1].expand(OUTPUTS, 1))
    tensors = {**matrix.tensors, "weight_scale": matrix.tensors["weight_scale"][0]}
    assert_every_part(tensors, _scheme(4, 0), matrix.weight, (5,), (33,))


@pytest.mark.parametrize(
    ("name", "tensor", "fact"),
    [
        ("weight_shape", torch.tensor([OUTPUTS, INPUTS + 1]), r"`m.weight_shape` says \[32, 97\], .* \[32, 96\]"),
        ("weight_packed", torch.zeros(OUTPUTS, 11, dtype=torch.int32), "does not hold 96 codes of 4 bits"),
        ("weight_packed", torch.zeros(OUTPUTS, 12), "`m.weight_packed` has type F32; only I32"),
        ("weight_scale", torch.ones(OUTPUTS, 2), r"`m.weight_scale` has shape \[32, 2\], .* \[32, 3\]"),
        ("weight_zero_point", torch.zeros(5, 3, dtype=torch.int32), "does not hold 32 codes of 4 bits"),
        ("weight_g_idx", torch.zeros(INPUTS, dtype=torch.int32), "does not put 32 inputs into each of 3 groups"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name: str, tensor: Tensor, fact: str) -> None:
    tensors = {**compressed_matrix(_weight(), 4, 32, symmetric=False).tensors, name: tensor}
    with pytest.raises(ModelFilesError, match=fact):
        read_groups(module(tensors, (OUTPUTS, INPUTS)), _scheme(4, symmetric=False))
