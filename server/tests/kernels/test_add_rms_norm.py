import pytest
import torch
from support import reference

from text_generation_server import kernels

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
