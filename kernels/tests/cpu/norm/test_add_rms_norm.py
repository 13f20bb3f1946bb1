import pytest
import torch
from kernel_support import reference
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm

import text_generation_kernels as kernels

EPS = 1e-5
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_residual_and_output_are_those_of_the_formula(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, residual, weight = torch.randn(5, 48).to(dtype), torch.randn(5, 48).to(dtype), torch.rand(48).to(dtype)
    expected_residual, expected = reference.add_rms_norm(x, residual, weight, EPS)
    out = torch.full_like(x, float("nan"))

    kernels.add_rms_norm(x, residual, weight, EPS, out)

    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    torch.testing.assert_close(residual.double(), expected_residual, **tolerance)
    torch.testing.assert_close(out.double(), expected, **tolerance)


def test_output_may_be_the_input_and_strides_are_kept() -> None:
    torch.manual_seed(1)
    storage = torch.randn(6, 3, 32)
    x, residual, weight = storage[:, 0], storage[:, 1], torch.rand(32)
    untouched = storage[:, 2].clone()
    expected_residual, expected = reference.add_rms_norm(x, residual, weight, EPS)

    kernels.add_rms_norm(x, residual, weight, EPS, x)

    torch.testing.assert_close(storage[:, 0].double(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(storage[:, 1].double(), expected_residual, atol=1e-6, rtol=1e-6)
    assert torch.equal(storage[:, 2], untouched)


def test_no_tokens() -> None:
    empty = torch.empty(0, 16)
    kernels.add_rms_norm(empty, empty.clone(), torch.ones(16), EPS, empty.clone())


def test_rms_norm_is_add_rms_norm_of_nothing_added() -> None:
    torch.manual_seed(2)
    x, weight = torch.randn(4, 40), torch.rand(40)
    out = torch.full_like(x, float("nan"))
    kernels.rms_norm(x, weight, EPS, out)
    _, expected = reference.add_rms_norm(torch.zeros_like(x), x, weight, EPS)
    torch.testing.assert_close(out.double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_weight_in_float32_is_applied_before_the_only_rounding(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    x = torch.randn(4, 40).to(dtype)
    norm = Gemma2RMSNorm(40, EPS)  # whose weight is 1 + w
    norm.weight.data.normal_()
    out = torch.full_like(x, float("nan"))
    kernels.rms_norm(x, 1 + norm.weight.detach(), EPS, out)
    difference = (out.double() - norm(x).detach().double()).abs()
    # In the last bit: sums of squares have another order.
    assert (difference <= out.double().abs() * torch.finfo(dtype).eps).all()
    assert (difference != 0).sum() <= 2


def test_the_addend_may_be_scaled_and_normalised() -> None:
    torch.manual_seed(4)
    x, residual, weight, x_weight = torch.randn(4, 40), torch.randn(4, 40), torch.rand(40), torch.rand(40)
    total = residual.double() + 0.22 * reference.rms_norm(x, x_weight, EPS)
    kernels.add_rms_norm(x, residual, weight, EPS, x, 0.22, x_weight)
    torch.testing.assert_close(residual.double(), total, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(x.double(), reference.rms_norm(total, weight, EPS), atol=1e-5, rtol=1e-5)
