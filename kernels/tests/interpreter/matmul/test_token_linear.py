"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from torch import Tensor

from text_generation_kernels.matmul.token_linear import NormPrologue, token_linear_torch, token_linear_triton
from text_generation_kernels.norm.act_and_mul import act_and_mul_triton
from text_generation_kernels.norm.rms_norm import rms_norm_triton

EPS = 1e-6


def _inputs(outputs: int, inputs: int, dtype: torch.dtype = torch.float16) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(inputs)
    x, weight = torch.randn(1, inputs), torch.randn(outputs, inputs + 8)[:, :inputs] / inputs**0.5
    return x.to(dtype), weight.to(dtype), torch.randn(outputs).to(dtype), (1 + 0.1 * torch.randn(inputs)).to(dtype)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(5, 768), (9, 4096), (3, 9000), (70, 40)])
def test_is_the_affine_map(outputs: int, inputs: int, with_bias: bool) -> None:
    """Rows of a thread block's size, shorter ones and longer ones, which take several steps."""
    x, weight, bias, _ = _inputs(outputs, inputs)
    out = torch.full((1, outputs), float("nan")).half()
    token_linear_triton(x, weight, bias if with_bias else None, out)
    expected = x.double() @ weight.double().t() + (bias.double() if with_bias else 0)
    torch.testing.assert_close(out.double(), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(("outputs", "inputs"), [(14, 64), (50, 1000), (6, 4096)])
def test_fused_activation(outputs: int, inputs: int) -> None:
    """As if it were an operator of its own, to the bit."""
    x, weight, bias, _ = _inputs(outputs, inputs)
    linear = torch.empty(1, outputs).half()
    out, expected = torch.full((2, 1, outputs // 2), float("nan")).half()
    token_linear_triton(x, weight, bias, linear)
    act_and_mul_triton(linear, "silu", expected)
    token_linear_triton(x, weight, bias, out, "silu")
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("inputs", [40, 37, 768, 4096, 9000])
def test_fused_residual_add(inputs: int, dtype: torch.dtype) -> None:
    """As if it were an operator of its own, to the bit."""
    x, weight, bias, _ = _inputs(9, inputs, dtype)
    before = torch.randn(1, 9).to(dtype)
    linear, total = torch.empty(1, 9).to(dtype), before.clone()
    token_linear_triton(x, weight, bias, linear)
    token_linear_triton(x, weight, bias, total, adds=True)
    assert torch.equal(total, before + linear)


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    ("inputs", "dtype"), [(40, torch.float16), (2048, torch.float16), (9000, torch.float16), (64, torch.float32)]
)
def test_norm_before_it(inputs: int, dtype: torch.dtype, wide: bool, activation: str | None) -> None:
    """The normalised token is that of the norm's operator to the bit; the GEMV is as close as torch's."""
    x, weight, bias, norm = _inputs(10, inputs, dtype)
    norm = norm.float() if wide else norm
    outputs = 10 if activation is None else 5
    normalised, expected_row = torch.full((2, 1, inputs), float("nan"), dtype=dtype)
    out, by_torch = torch.full((2, 1, outputs), float("nan"), dtype=dtype)
    rms_norm_triton(x, norm, EPS, expected_row)
    token_linear_torch(x, weight, bias, by_torch, activation, NormPrologue(norm, EPS, torch.empty_like(x)))

    token_linear_triton(x, weight, bias, out, activation, NormPrologue(norm, EPS, normalised))

    assert torch.equal(normalised, expected_row)
    torch.testing.assert_close(out, by_torch, atol=4e-3, rtol=4e-3)
