import pytest
import torch
from kernel_support import reference
from torch.nn import functional

import text_generation_kernels as kernels

EPS = 1e-5
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("weight_dtype", [None, torch.float32])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_layer_norm_is_that_of_torch(dtype: torch.dtype, with_bias: bool, weight_dtype: torch.dtype | None) -> None:
    torch.manual_seed(0)
    x, weight = 3 + torch.randn(5, 48).to(dtype), torch.rand(48).to(weight_dtype or dtype)
    bias = torch.randn(48).to(weight_dtype or dtype) if with_bias else None
    out = torch.full_like(x, float("nan"))
    wide_bias = None if bias is None else bias.double()

    kernels.layer_norm(x, weight, bias, EPS, out)

    expected = functional.layer_norm(x.double(), (48,), weight.double(), wide_bias, EPS)
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    torch.testing.assert_close(reference.layer_norm(x, weight, bias, EPS), expected)


def test_the_sum_stays_in_the_residual() -> None:
    torch.manual_seed(0)
    storage, weight, bias = torch.randn(6, 3, 32), torch.rand(32), torch.randn(32)
    x, residual, untouched = storage[:, 0], storage[:, 1], storage[:, 2].clone()
    total = x.double() + residual.double()

    kernels.add_layer_norm(x, residual, weight, bias, EPS, x)

    torch.testing.assert_close(storage[:, 1].double(), total, atol=1e-6, rtol=1e-6)
    expected = reference.layer_norm(total, weight, bias, EPS)
    torch.testing.assert_close(storage[:, 0].double(), expected, atol=1e-6, rtol=1e-6)
    assert torch.equal(storage[:, 2], untouched)
