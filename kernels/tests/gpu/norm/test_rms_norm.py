"""The Triton kernel as it serves: through the dispatcher, on the device."""

import pytest
import torch
from kernel_support import reference

import text_generation_kernels as kernels
from text_generation_kernels.norm.rms_norm import rms_norm_torch

pytestmark = pytest.mark.gpu
EPS = 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 7, 256])
@pytest.mark.parametrize("hidden", [64, 4096, 5120, 8192])
def test_as_close_to_the_formula_as_torch(hidden: int, tokens: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(tokens, hidden, device="cuda", dtype=dtype)
    weight = torch.rand(hidden, device="cuda", dtype=dtype)
    _, expected = reference.add_rms_norm(torch.zeros_like(x), x, weight, EPS)
    torch_out, out = torch.empty_like(x), torch.full_like(x, float("nan"))
    rms_norm_torch(x, weight, EPS, torch_out)

    kernels.rms_norm(x, weight, EPS, out)

    assert (out.double() - expected).abs().max() <= 2 * (torch_out.double() - expected).abs().max() + 1e-5
