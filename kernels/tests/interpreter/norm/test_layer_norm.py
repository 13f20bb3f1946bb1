"""The Triton kernels in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from kernel_support import reference

from text_generation_kernels.norm.add_layer_norm import add_layer_norm_triton
from text_generation_kernels.norm.layer_norm import layer_norm_torch, layer_norm_triton

EPS = 1e-5


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("hidden", [1, 63, 64, 65])
def test_tile_boundaries(hidden: int, with_bias: bool, weight_dtype: torch.dtype) -> None:
    torch.manual_seed(hidden)
    # A mean far from zero, and strides of its own.
    x, weight = (10 + torch.randn(3, hidden + 7)).half()[:, 7:], torch.rand(hidden).to(weight_dtype)
    bias = torch.randn(hidden).to(weight_dtype) if with_bias else None
    expected, torch_out = reference.layer_norm(x, weight, bias, EPS), torch.empty_like(x)
    layer_norm_torch(x, weight, bias, EPS, torch_out)
    limit = 2 * (torch_out.double() - expected).abs().max() + 1e-5
    residual, out = x.clone(), torch.full_like(x, float("nan"))

    layer_norm_triton(x, weight, bias, EPS, out)
    add_layer_norm_triton(torch.zeros_like(x), residual, weight, bias, EPS, x)

    assert (out.double() - expected).abs().max() <= limit
    assert torch.equal(x, out)


def test_the_sum_stays_in_the_residual() -> None:
    torch.manual_seed(0)
    x, residual, weight, bias = torch.randn(3, 40), torch.randn(3, 40), torch.rand(40), torch.randn(40)
    total = x.double() + residual.double()
    add_layer_norm_triton(x, residual, weight, bias, EPS, x)
    torch.testing.assert_close(residual.double(), total, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(x.double(), reference.layer_norm(total, weight, bias, EPS), atol=1e-5, rtol=1e-5)


def test_layouts_that_the_kernel_cannot_read_are_refused() -> None:
    x, weight = torch.randn(4, 8), torch.ones(8)
    with pytest.raises(ValueError, match="layer_norm: shapes"):
        layer_norm_triton(x, weight, torch.ones(7), EPS, x)
    with pytest.raises(ValueError, match="add_layer_norm: shapes"):
        add_layer_norm_triton(x, torch.randn(5, 8), weight, None, EPS, x)
    with pytest.raises(ValueError, match="stride 1"):
        layer_norm_triton(torch.randn(8, 4).t(), weight, None, EPS, x)
    layer_norm_triton(torch.empty(0, 8), weight, None, EPS, torch.empty(0, 8))
