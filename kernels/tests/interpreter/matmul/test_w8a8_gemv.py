"""The W8A8 GEMV in Triton's interpreter: run with TRITON_INTERPRET=1.

The interpreter's cast to float8 is not that of a device, so inputs that the GEMV quantises are compared with what
`quantise_rows` makes of them in the interpreter as well.
"""

import pytest
import torch
from torch import Tensor

from text_generation_kernels.matmul import w8a8_gemv
from text_generation_kernels.matmul.w8a8_linear import dequantise, w8a8_linear_triton
from text_generation_kernels.norm.act_and_mul import act_and_mul_torch
from text_generation_kernels.norm.quantise import Quantised
from text_generation_kernels.norm.quantise_rows import quantise_rows_triton

DTYPES = [torch.float8_e4m3fn, torch.int8]


@pytest.fixture(autouse=True, params=[(8, 256), (4, 1024)], ids=str)
def _small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in several steps and whole rows."""
    block_n, block_k = request.param
    config = {"BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": 4}
    monkeypatch.setattr(w8a8_gemv, "w8a8_blocks", lambda *_: config)


def _matrix(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(outputs)
    return torch.randint(-120, 121, (outputs, inputs)).float().to(dtype), torch.rand(outputs) / 999


def _quantised(x: Tensor, dtype: torch.dtype, static: Tensor | None, bound: float) -> tuple[Tensor, Tensor]:
    x8, scale = torch.empty(x.shape, dtype=dtype), torch.empty(len(x))
    quantise_rows_triton(x, Quantised(x8, scale, 0, static, bound))
    return x8, scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [(31, 512), (8, 768), (17, 272), (40, 1040)])
def test_sums_are_those_of_float32(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    weight8, weight_scale = _matrix(outputs, inputs, dtype)
    x8, x_scale = torch.randint(-120, 121, (1, inputs)).float().to(dtype), torch.rand(1)
    bias = torch.randn(outputs)
    out = torch.full((1, outputs), float("nan"))
    w8a8_linear_triton(x8, x_scale, weight8, weight_scale, bias, out)
    expected = dequantise(x8, x_scale).double() @ dequantise(weight8, weight_scale).double().t() + bias.double()
    torch.testing.assert_close(out.double(), expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("static", "bound"), [(None, 0.0), (None, 0.75), (torch.tensor([0.01]), 0.0)], ids=str)
@pytest.mark.parametrize("activation", [None, "silu"])
def test_what_is_not_quantised_yet_is_quantised_as_by_the_operator_for_it(
    activation: str | None, static: Tensor | None, bound: float, dtype: torch.dtype
) -> None:
    weight8, weight_scale = _matrix(22, 528, dtype)
    x = torch.randn(1, 528).half()
    given, from_codes = (torch.full((1, 22 if activation is None else 11), float("nan")) for _ in range(2))
    w8a8_linear_triton(x, static, weight8, weight_scale, None, given, activation, bound)
    w8a8_linear_triton(*_quantised(x, dtype, static, bound), weight8, weight_scale, None, from_codes, activation)
    assert torch.equal(given, from_codes)


def test_not_finite_inputs_are_not_hidden() -> None:
    weight8, weight_scale = _matrix(8, 256, torch.int8)
    x = torch.ones(1, 256)
    x[0, 7] = float("nan")
    out = torch.zeros(1, 8)
    w8a8_linear_triton(x, None, weight8, weight_scale, None, out)
    assert out.isnan().all()


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_activation_is_that_of_its_own_operator(activation: str) -> None:
    weight8, weight_scale = _matrix(26, 256, torch.int8)
    x8, x_scale = torch.randint(-120, 121, (1, 256), dtype=torch.int8), torch.rand(1)
    linear, expected, out = torch.empty(1, 26), torch.empty(1, 13), torch.full((1, 13), float("nan"))
    w8a8_linear_triton(x8, x_scale, weight8, weight_scale, None, linear)
    act_and_mul_torch(linear, activation, expected)
    w8a8_linear_triton(x8, x_scale, weight8, weight_scale, None, out, activation)
    torch.testing.assert_close(out, expected)
