"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from kernel_support.expert_codes import nvfp4_scales

from text_generation_kernels import PackedMatrix, pack_codes, pack_scales
from text_generation_kernels.matmul.code_conversion import float8_scales
from text_generation_kernels.matmul.dequantise import dequantise_torch, dequantise_triton
from text_generation_kernels.runtime.triton import tl, triton


@pytest.mark.parametrize(
    ("kind", "outputs", "inputs", "group_size"),
    [
        ("symmetric", 33, 300, 128),
        ("zeros", 5, 256, 32),
        ("zeros", 5, 256, 0),
        ("table", 40, 264, 64),
        ("eight", 31, 300, 64),
        ("eight zeros", 7, 40, 0),
        ("float8", 3, 300, 0),
        ("symmetric", 3, 100, 48),
        ("zeros", 7, 300, 16),
        ("eight zeros", 7, 40, 16),
        ("nvfp4 table", 9, 600, 16),
    ],
)
def test_as_torch(kind: str, outputs: int, inputs: int, group_size: int) -> None:
    torch.manual_seed(0)
    bits = 8 if "eight" in kind else 4
    groups = -(-inputs // (group_size or inputs))
    packed = pack_codes(torch.randint(0, 2**bits, (outputs + 2, inputs), dtype=torch.uint8), bits)
    if kind == "float8":
        packed = torch.randn(outputs + 2, inputs).to(torch.float8_e4m3fn)
    scales, size = pack_scales((torch.rand(outputs + 2, groups) + 0.5).half(), inputs, group_size)
    points = torch.randint(0, 2**bits, (outputs + 2, groups))
    zeros = pack_scales(points, inputs, group_size)[0] if "zeros" in kind else None
    table = torch.randn(16).half().float() if "table" in kind else None
    scales, factors = nvfp4_scales(outputs + 2, inputs) if "nvfp4" in kind else (scales, None)
    rows = slice(1, outputs + 1)
    weight = PackedMatrix(packed, scales, zeros, table, size, factors).rows(rows)
    out, expected = (torch.full((outputs + 2, inputs + 8), float("nan")).half() for _ in range(2))
    dequantise_triton(weight, out[rows, :inputs])
    dequantise_torch(weight, expected[rows, :inputs])
    assert torch.equal(out.nan_to_num(nan=7e4), expected.nan_to_num(nan=7e4))


@triton.jit
def _every_scale_kernel(bytes_ptr, out_ptr, POWER: tl.constexpr):
    places = tl.arange(0, 256)
    tl.store(out_ptr + places, float8_scales(tl.load(bytes_ptr + places), POWER, out_ptr.dtype.element_ty))


def test_every_float8_scale_is_exact() -> None:
    """In float16: the interpreter has no constants of bfloat16."""
    stored, out = torch.arange(256, dtype=torch.uint8), torch.empty(256, dtype=torch.float16)
    _every_scale_kernel[(1,)](stored.view(torch.int8), out, 0)
    expected = stored.view(torch.float8_e4m3fn).double()
    is_number = expected.isfinite()
    assert torch.equal(out.double()[is_number], expected[is_number])
