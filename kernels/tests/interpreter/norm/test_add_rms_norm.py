"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests, because
the interpreter's rounding to it differs from the hardware's."""

import pytest
import torch
from kernel_support import reference

from text_generation_kernels.norm.add_rms_norm import add_rms_norm_torch, add_rms_norm_triton

EPS = 1e-5


def _check(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    expected_residual, expected = reference.add_rms_norm(x, residual, weight, EPS)
    torch_residual, torch_out = residual.clone(), torch.empty_like(out)
    add_rms_norm_torch(x.clone(), torch_residual, weight, EPS, torch_out)

    add_rms_norm_triton(x, residual, weight, EPS, out)

    # Addition and one rounding: nothing may differ.
    assert torch.equal(residual, torch_residual)
    # At most twice as far from the formula as torch in the same type.
    error = (out.double() - expected).abs().max()
    assert error <= 2 * (torch_out.double() - expected).abs().max() + 1e-5
    assert (residual.double() - expected_residual).abs().max() <= 4e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("hidden", [1, 63, 64, 65, 127, 128, 129])
@pytest.mark.parametrize("tokens", [1, 3])
def test_tile_boundaries(tokens: int, hidden: int, dtype: torch.dtype) -> None:
    torch.manual_seed(hidden)
    x, residual = (torch.randn(tokens, hidden).to(dtype) for _ in range(2))
    _check(x, residual, torch.rand(hidden).to(dtype), torch.full_like(x, float("nan")))


def test_every_tensor_has_its_own_stride() -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(4, 100)[:, :33], torch.randn(4, 70)[:, 20:53]
    out = torch.full((4, 50), float("nan"))
    _check(x, residual, torch.rand(33), out[:, 5:38])
    assert out[:, :5].isnan().all()
    assert out[:, 38:].isnan().all()


def test_output_may_be_the_input() -> None:
    torch.manual_seed(0)
    x, residual, weight = torch.randn(3, 40), torch.randn(3, 40), torch.rand(40)
    _, expected = reference.add_rms_norm(x, residual, weight, EPS)
    add_rms_norm_triton(x, residual, weight, EPS, x)
    torch.testing.assert_close(x.double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("hidden", [64, 65])
def test_the_addend_may_be_scaled_and_normalised(hidden: int) -> None:
    torch.manual_seed(0)
    x, residual = (torch.randn(3, hidden).half() for _ in range(2))
    weight, x_weight = 1 + torch.randn(hidden), 1 + torch.randn(hidden)  # float32
    total = residual.double() + 0.22 * reference.rms_norm(x, x_weight, EPS)
    expected = reference.rms_norm(total, weight, EPS)

    add_rms_norm_triton(x, residual, weight, EPS, x, 0.22, x_weight)

    torch.testing.assert_close(residual.double(), total, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(x.double(), expected, atol=4e-3, rtol=4e-3)


def test_no_tokens() -> None:
    empty = torch.empty(0, 16)
    add_rms_norm_triton(empty, empty.clone(), torch.ones(16), EPS, empty.clone())


def test_layouts_that_the_kernel_cannot_read_are_refused() -> None:
    x, weight = torch.randn(4, 8), torch.ones(8)
    with pytest.raises(ValueError, match="shapes"):
        add_rms_norm_triton(x, torch.randn(5, 8), weight, EPS, x)
    with pytest.raises(ValueError, match="stride 1"):
        add_rms_norm_triton(torch.randn(8, 4).t(), x.clone(), weight, EPS, x)
