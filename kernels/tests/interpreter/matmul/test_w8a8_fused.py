"""W8A8 GEMMs with split-K partials or an activation in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from kernel_support.choices import measured
from torch import Tensor

from text_generation_kernels.matmul import w8a8_ladder
from text_generation_kernels.matmul.w8a8_gated import w8a8_gated_torch, w8a8_gated_triton
from text_generation_kernels.matmul.w8a8_linear import dequantise
from text_generation_kernels.matmul.w8a8_split_k import w8a8_split_k_triton
from text_generation_kernels.norm.add_rms_norm import add_rms_norm_torch, add_rms_norm_triton
from text_generation_kernels.norm.quantise import Quantised
from text_generation_kernels.norm.quantise_rows import quantise_rows_triton

DTYPES = [torch.float8_e4m3fn, torch.int8]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 128, "num_warps": 4, "num_stages": 2, "splits": 3, "AHEAD": 0}
    measured(monkeypatch, w8a8_ladder, w8a8_ladder.W8A8, config)


def _operands(tokens: int, outputs: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(tokens)
    x8, weight8 = (torch.randint(-120, 121, (rows, inputs)).float().to(dtype) for rows in (tokens, outputs))
    return x8, torch.rand(tokens) / 99, weight8, torch.rand(outputs) / 99


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "outputs", "inputs"), [(2, 31, 384), (16, 33, 200), (15, 64, 128)])
def test_partials_add_up_to_the_gemm(tokens: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x8, x_scale, weight8, weight_scale = _operands(tokens, outputs, inputs, dtype)
    out = torch.full((3, tokens, outputs), float("nan"))
    w8a8_split_k_triton(x8, x_scale, weight8, weight_scale, out)
    expected = dequantise(x8, x_scale).double() @ dequantise(weight8, weight_scale).double().t()
    assert (out.double().sum(0) - expected).norm() <= 1e-5 * expected.norm()


def test_another_number_of_partials_is_refused() -> None:
    with pytest.raises(ValueError, match=r"w8a8_split_k: out .* must be float32 \(3, 2, 8\)"):
        w8a8_split_k_triton(*_operands(2, 8, 128, torch.int8), torch.empty(2, 2, 8))


@pytest.mark.parametrize("hidden", [64, 65])
def test_a_norm_adds_up_partials(hidden: int) -> None:
    torch.manual_seed(0)
    splits, weight, residual = torch.randn(3, 4, hidden), torch.rand(hidden).half(), torch.randn(4, hidden).half()
    expected_residual, expected, out = residual.clone(), torch.empty_like(residual), torch.empty_like(residual)
    add_rms_norm_torch(((splits[0] + splits[1]) + splits[2]).half(), expected_residual, weight, 1e-5, expected)
    add_rms_norm_triton(splits, residual, weight, 1e-5, out)
    assert torch.equal(residual, expected_residual)
    torch.testing.assert_close(out, expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "inner", "bound"), [(2, 31, 0.0), (16, 33, 0.5), (13, 64, 0.0)])
def test_activation_and_codes(tokens: int, inner: int, bound: float, dtype: torch.dtype) -> None:
    operands, bias = _operands(tokens, 2 * inner, 256, dtype), torch.randn(2 * inner).half()
    out, expected = (torch.full((tokens, inner), float("nan")).half() for _ in range(2))
    eight, expected_eight = (torch.zeros(tokens, inner, dtype=dtype) for _ in range(2))
    scale, expected_scale = (torch.full((tokens,), float("nan")) for _ in range(2))
    w8a8_gated_torch(*operands, bias, "silu", expected, Quantised(expected_eight, expected_scale, bound=bound))

    w8a8_gated_triton(*operands, bias, "silu", out, Quantised(eight, scale, bound=bound))

    torch.testing.assert_close(out, expected, atol=2e-2, rtol=4e-3)
    torch.testing.assert_close(scale, expected_scale, atol=0, rtol=4e-3)
    alone, alone_scale = torch.zeros_like(eight), torch.zeros_like(scale)
    quantise_rows_triton(out, Quantised(alone, alone_scale, bound=bound))
    assert torch.equal(eight.view(torch.int8), alone.view(torch.int8))
    assert torch.equal(scale, alone_scale)


def test_what_is_not_finite_stays_so() -> None:
    x8, x_scale, weight8, weight_scale = _operands(2, 64, 128, torch.int8)
    x_scale[0] = float("nan")
    out, eight, scale = torch.empty(2, 32).half(), torch.empty(2, 32, dtype=torch.int8), torch.empty(2)
    w8a8_gated_triton(x8, x_scale, weight8, weight_scale, None, "silu", out, Quantised(eight, scale))
    assert scale[0].isnan()
    assert scale[1].isfinite()


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="w8a8_gated: unknown activation 'swish', use one of silu"):
        w8a8_gated_triton(*_operands(2, 8, 128, torch.int8), None, "swish", torch.empty(2, 4))
