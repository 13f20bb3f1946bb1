"""GPTQ: every width, both conventions of zeros, groups in any order of inputs."""

import pytest
import torch
from support.gptq_files import gptq_matrix
from support.grouped_matrices import assert_every_part, module
from torch import Tensor

from text_generation_server.config.quantisation import Packed, PackedFormat
from text_generation_server.errors import ModelFilesError
from text_generation_server.layers.weights.formats import input_order, read_groups


def _weight(outputs: int = 32, inputs: int = 96) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(outputs, inputs)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize(("form", "symmetric"), [("gptq", True), ("gptq", False), ("gptq_v2", False)])
def test_every_part_of_every_width(bits: int, form: PackedFormat, symmetric: bool) -> None:
    """Parts whose edges are neither those of words nor those of groups too."""
    matrix = gptq_matrix(_weight(), bits, 32, symmetric=symmetric, zeros_less_one=form == "gptq")
    scheme = Packed(form, bits, 32, symmetric)
    whole = assert_every_part(matrix.tensors, scheme, matrix.weight, (3, 16, 29), (8, 48, 77))
    assert whole.bits == (4 if bits <= 4 else 8)
    assert (whole.zeros is None) == symmetric


@pytest.mark.parametrize("group_size", [0, 48, 128])
def test_groups_of_all_inputs_and_shorter_last_ones(group_size: int) -> None:
    matrix = gptq_matrix(_weight(), 4, min(group_size, 96), symmetric=False)
    assert_every_part(matrix.tensors, Packed("gptq", 4, group_size, False), matrix.weight, (8,), (24, 60))
    shorter = gptq_matrix(_weight(inputs=80), 4, 32, symmetric=False)
    assert_every_part(shorter.tensors, Packed("gptq", 4, 32, False), shorter.weight, (8,), (40,))


def test_zeros_of_the_first_format_are_one_less_and_wrap() -> None:
    """A group of positive weights has the zero 0, which is stored as 15; most symmetric files hold 0x77777777."""
    positive = gptq_matrix(_weight(8, 32).abs(), 4, 32, symmetric=False)
    assert positive.tensors["qzeros"].tolist() == [[-1]]
    assert read_groups(module(positive.tensors, (8, 32)), Packed("gptq", 4, 32, False)).dequantised().min() >= 0
    symmetric = gptq_matrix(_weight(8, 32), 4, 32)
    assert symmetric.tensors["qzeros"].tolist() == [[0x77777777]]
    as_second = read_groups(module(symmetric.tensors, (8, 32)), Packed("gptq_v2", 4, 32))
    assert as_second.zeros is not None
    assert bool((as_second.zeros == 7).all())


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_inputs_in_an_order_of_their_own(bits: int) -> None:
    """Codes come sorted by group, with the inputs they multiply; parts are of places in that order."""
    order = torch.randperm(96, generator=torch.Generator().manual_seed(1))
    matrix = gptq_matrix(_weight(), bits, 32, symmetric=False, act_order=order)
    scheme = Packed("gptq", bits, 32, symmetric=False)
    whole = assert_every_part(matrix.tensors, scheme, matrix.weight, (8, 20), (32, 48))
    found = input_order(module(matrix.tensors, (32, 96)), scheme)
    assert found is not None
    assert whole.perm is not None
    assert torch.equal(found, whole.perm)
    assert [set(group.tolist()) for group in found.split(32)] == [set(group.tolist()) for group in order.split(32)]


def test_neighbours_are_recognised_whatever_the_configuration_says() -> None:
    matrix = gptq_matrix(_weight(), 4, 32)
    part = module(matrix.tensors, (32, 96))
    assert input_order(part, Packed("gptq", 4, 32)) is None
    without = {name: tensor for name, tensor in matrix.tensors.items() if name != "g_idx"}
    assert torch.equal(read_groups(module(without, (32, 96)), Packed("gptq", 4, 32)).dequantised(), matrix.weight)


@pytest.mark.parametrize(
    ("name", "change", "fact"),
    [
        ("qweight", lambda tensor: tensor[:-1], r"`m.qweight` has shape \[11, 32\], but .* asks for \[12, 32\]"),
        ("qweight", lambda tensor: tensor.float(), "`m.qweight` has type F32; only I32"),
        ("qzeros", lambda tensor: tensor[:, :2], r"`m.qzeros` has shape \[3, 2\]"),
        ("scales", lambda tensor: tensor.t(), r"`m.scales` has shape \[32, 3\]"),
        ("scales", lambda tensor: tensor.int(), "`m.scales` has type I32"),
        ("g_idx", lambda tensor: tensor[:-1], r"`m.g_idx` has shape \[95\]"),
        ("g_idx", lambda tensor: tensor.clamp(max=1), "`m.g_idx` does not put 32 inputs into each of 3 groups"),
        ("g_idx", lambda tensor: tensor + 7, "`m.g_idx` does not put"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name: str, change: object, fact: str) -> None:
    tensors = gptq_matrix(_weight(), 4, 32).tensors
    tensors[name] = change(tensors[name])  # type: ignore[operator]
    with pytest.raises(ModelFilesError, match=fact):
        read_groups(module(tensors, (32, 96)), Packed("gptq", 4, 32))


def test_a_tensor_that_is_missing_is_named() -> None:
    tensors = gptq_matrix(_weight(), 4, 32).tensors
    del tensors["qzeros"]
    with pytest.raises(ModelFilesError, match=r"`m\.qzeros` is in none"):
        read_groups(module(tensors, (32, 96)), Packed("gptq", 4, 32))
