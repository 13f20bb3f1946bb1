"""The Triton kernels as they serve: bfloat16, through the dispatcher, on the device."""

import pytest
import torch
from kernel_support import reference

import text_generation_kernels as kernels
from text_generation_kernels.norm.layer_norm import layer_norm_torch

pytestmark = pytest.mark.gpu
EPS = 1e-5


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("tokens", "hidden"), [(1, 2560), (256, 4096), (7, 12288)])
def test_as_close_to_the_formula_as_torch(tokens: int, hidden: int, weight_dtype: torch.dtype, with_bias: bool) -> None:
    torch.manual_seed(0)
    x = 3 + torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
    weight = torch.rand(hidden, device="cuda", dtype=weight_dtype)
    bias = torch.randn(hidden, device="cuda", dtype=weight_dtype) if with_bias else None
    expected, torch_out = reference.layer_norm(x, weight, bias, EPS), torch.empty_like(x)
    layer_norm_torch(x, weight, bias, EPS, torch_out)
    limit = 2 * (torch_out.double() - expected).abs().max() + 1e-5
    out, residual = torch.full_like(x, float("nan")), x.clone()

    kernels.layer_norm(x, weight, bias, EPS, out)
    kernels.add_layer_norm(torch.zeros_like(x), residual, weight, bias, EPS, x)

    assert (out.double() - expected).abs().max() <= limit
    assert (x.double() - expected).abs().max() <= limit
