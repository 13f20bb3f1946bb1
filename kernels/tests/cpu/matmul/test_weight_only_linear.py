import pytest
import torch

import text_generation_kernels as kernels


@pytest.mark.parametrize(("bits", "inputs"), [(4, 256), (4, 300), (4, 40), (8, 40)])
def test_codes_are_packed_and_unpacked(bits: int, inputs: int) -> None:
    torch.manual_seed(0)
    codes = torch.randint(0, 2**bits, (5, inputs), dtype=torch.uint8)
    packed = kernels.pack_codes(codes, bits)
    assert torch.equal(kernels.unpack_codes(packed, inputs), codes)
    assert packed.element_size() * packed.shape[1] == (-(-inputs // 256) * 128 if bits == 4 else inputs)


def test_codes_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="3 bits"):
        kernels.pack_codes(torch.zeros(2, 8, dtype=torch.uint8), 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_scales_keep_every_bit_in_the_smallest_type(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values = torch.rand(3, 4).to(dtype)
    packed, group_size = kernels.pack_scales(values.float(), 500, 128)
    assert (packed.dtype, group_size) == (dtype, 128)
    # Two groups to a block of 256 inputs.
    assert torch.equal(packed.transpose(1, 2).flatten(0, 1).t(), values)


def test_groups_that_begin_on_another_rank_become_smaller_whole_ones() -> None:
    values = torch.tensor([[1.0, 2.0, 3.0]])
    # Inputs 96 to 299 of 128 a group: 32 of the first, 128 of the second, 44 of the third.
    packed, group_size = kernels.pack_scales(values, 204, 128, group_offset=96)
    assert group_size == 32
    # The last place of the block has no input.
    assert packed.flatten().tolist() == [1, 2, 2, 2, 2, 3, 3, 0]


@pytest.mark.parametrize("kind", ["symmetric", "zeros", "table", "eight", "float8"])
@pytest.mark.parametrize(("group_size", "inputs"), [(32, 80), (0, 40)])
def test_is_the_affine_map_of_what_codes_stand_for(kind: str, group_size: int, inputs: int) -> None:
    torch.manual_seed(0)
    tokens, outputs = 3, 7
    size = group_size or inputs
    groups = -(-inputs // size)
    bits = 8 if kind in ("eight", "float8") else 4
    codes = torch.randint(0, 2**bits, (outputs, inputs), dtype=torch.uint8)
    values = codes.double() - 2 ** (bits - 1)
    packed, zeros, table = kernels.pack_codes(codes, bits), None, None
    spread = lambda tensor: tensor.double().repeat_interleave(size, 1)[:, :inputs]  # noqa: E731
    if kind == "zeros":
        points = torch.randint(0, 17, (outputs, groups)).float()
        zeros, _ = kernels.pack_scales(points, inputs, group_size)
        values = codes.double() - spread(points)
    if kind == "table":
        table = torch.randn(16)
        values = table.double()[codes.int()]
    if kind == "float8":
        packed = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
        values = packed.double()
    scales = torch.rand(outputs, groups)
    weight = values * spread(scales)
    x, bias, perm = torch.randn(tokens, inputs), torch.randn(outputs), torch.randperm(inputs)
    packed_scales, size_in_kernel = kernels.pack_scales(scales, inputs, group_size)
    packed_matrix = kernels.PackedMatrix(packed, packed_scales, zeros, table, size_in_kernel)

    out, matrix = torch.full((tokens, outputs), float("nan")), torch.full((outputs, inputs), float("nan"))
    kernels.weight_only_linear(x, packed_matrix, perm, bias, out)
    kernels.dequantise(packed_matrix, matrix)

    torch.testing.assert_close(matrix.double(), weight, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(out.double(), x[:, perm].double() @ weight.t() + bias.double(), atol=1e-4, rtol=1e-4)
