"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests, because
the interpreter's rounding to it differs from the hardware's."""

import pytest
import torch
from kernel_support import reference

from text_generation_kernels.norm.rms_norm import rms_norm_torch, rms_norm_triton

EPS = 1e-5


def _check(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    _, expected = reference.add_rms_norm(torch.zeros_like(x), x, weight, EPS)
    torch_out = torch.empty_like(out)
    rms_norm_torch(x, weight, EPS, torch_out)

    rms_norm_triton(x, weight, EPS, out)

    # At most twice as far from the formula as torch in the same type.
    assert (out.double() - expected).abs().max() <= 2 * (torch_out.double() - expected).abs().max() + 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("hidden", [1, 63, 64, 65, 127, 128, 129])
@pytest.mark.parametrize("tokens", [1, 3])
def test_tile_boundaries(tokens: int, hidden: int, dtype: torch.dtype) -> None:
    torch.manual_seed(hidden)
    x, weight = torch.randn(tokens, hidden).to(dtype), torch.rand(hidden).to(dtype)
    _check(x, weight, torch.full_like(x, float("nan")))


def test_every_tensor_has_its_own_stride() -> None:
    torch.manual_seed(0)
    x, out = torch.randn(4, 70)[:, 20:53], torch.full((4, 50), float("nan"))
    untouched = x.clone()
    _check(x, torch.rand(33), out[:, 5:38])
    assert torch.equal(x, untouched)
    assert out[:, :5].isnan().all()
    assert out[:, 38:].isnan().all()


def test_output_may_be_the_input() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 40), torch.rand(40)
    _, expected = reference.add_rms_norm(torch.zeros_like(x), x, weight, EPS)
    rms_norm_triton(x, weight, EPS, x)
    torch.testing.assert_close(x.double(), expected, atol=1e-6, rtol=1e-6)


def test_no_tokens() -> None:
    empty = torch.empty(0, 16)
    rms_norm_triton(empty, torch.ones(16), EPS, empty.clone())


def test_layouts_that_the_kernel_cannot_read_are_refused() -> None:
    x, weight = torch.randn(4, 8), torch.ones(8)
    with pytest.raises(ValueError, match="do not fit"):
        rms_norm_triton(x, weight, EPS, torch.empty(5, 8))
    with pytest.raises(ValueError, match="stride 1"):
        rms_norm_triton(torch.randn(8, 4).t(), weight, EPS, x)
