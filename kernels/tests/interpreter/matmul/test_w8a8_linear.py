"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from kernel_support.choices import measured
from torch import Tensor

from text_generation_kernels.matmul import w8a8_ladder, w8a8_library
from text_generation_kernels.matmul.w8a8_ladder import W8A8Problem, library_settings
from text_generation_kernels.matmul.w8a8_library import SUMS, library_gemm
from text_generation_kernels.matmul.w8a8_linear import dequantise, w8a8_linear_triton
from text_generation_kernels.runtime.launch import arrivals

DTYPES = [torch.float8_e4m3fn, torch.int8]


@pytest.fixture(params=[1, 3])
def splits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Small tiles, so that few tokens and outputs make several, of which some are prefetched; no library."""
    config = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 128, "num_warps": 4, "num_stages": 2}
    config |= {"splits": request.param, "AHEAD": 3 - request.param}
    measured(monkeypatch, w8a8_ladder, w8a8_ladder.W8A8, config)
    return request.param


def _operands(tokens: int, outputs: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(tokens)
    x8, weight8 = (torch.randint(-120, 121, (rows, inputs)).float().to(dtype) for rows in (tokens, outputs))
    return x8, weight8


def _check(
    x8: Tensor, x_scale: Tensor, weight8: Tensor, weight_scale: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    w8a8_linear_triton(x8, x_scale, weight8, weight_scale, bias, out)
    expected = dequantise(x8, x_scale).double() @ dequantise(weight8, weight_scale).double().t()
    if bias is not None:
        expected += bias.double()
    assert (out.double() - expected).norm() <= 1e-3 * expected.norm()


@pytest.mark.usefixtures("splits")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", [384, 200])
@pytest.mark.parametrize(("tokens", "outputs"), [(1, 31), (16, 33), (17, 64), (70, 5)])
def test_tile_boundaries(tokens: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x8, weight8 = _operands(tokens, outputs, inputs, dtype)
    bias = torch.randn(outputs).half() if tokens % 2 else None
    out = torch.full((tokens, outputs), float("nan")).half()
    _check(x8, torch.rand(tokens) / 99, weight8, torch.rand(outputs) / 99, bias, out)


@pytest.mark.usefixtures("splits")
@pytest.mark.parametrize(("x_blocks", "weight_rows"), [(True, 0), (True, 70), (True, 2), (False, 70), (False, 2)])
@pytest.mark.parametrize(("inputs", "dtype"), [(256, DTYPES[0]), (300, DTYPES[1])])
def test_scales_by_block(inputs: int, dtype: torch.dtype, x_blocks: bool, weight_rows: int) -> None:
    tokens, outputs, blocks = 3, 70 if weight_rows != 2 else 150, -(-inputs // 128)
    x8, weight8 = _operands(tokens, outputs, inputs, dtype)
    x_scale = torch.rand(blocks, tokens).t() / 99 if x_blocks else torch.rand(tokens) / 99
    weight_scale = torch.rand(weight_rows, blocks) / 99 if weight_rows else torch.rand(outputs) / 99
    _check(x8, x_scale, weight8, weight_scale, None, torch.full((tokens, outputs), float("nan")).half())


def test_counters_are_zero_again(splits: int) -> None:
    x8, weight8 = _operands(2, 40, 384, torch.int8)
    for _ in range(2):
        _check(x8, torch.ones(2) / 999, weight8, torch.ones(40) / 99, None, torch.empty(2, 40).half())
        assert not arrivals(x8.device, splits).any()


@pytest.mark.usefixtures("splits")
def test_every_tensor_has_its_own_stride() -> None:
    x8, weight8 = (each[:, 16:272] for each in _operands(4, 20, 288, torch.int8))
    x_scale, weight_scale = torch.rand(4, 2)[:, 0] / 99, torch.rand(20, 3)[:, 1] / 99
    out = torch.full((4, 30), float("nan")).half()
    _check(x8, x_scale, weight8, weight_scale, None, out[:, 3:23])
    assert out[:, :3].isnan().all()
    assert out[:, 23:].isnan().all()


@pytest.mark.parametrize("with_bias", [False, True])
def test_sums_of_a_library_are_scaled(with_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    int_mm = torch._int_mm

    def int_mm_of_a_card(x8: Tensor, weight8: Tensor) -> Tensor:
        if len(x8) <= 16:
            raise RuntimeError(f"self.size(0) needs to be greater than 16, but got {len(x8)}")
        return int_mm(x8, weight8)

    monkeypatch.setattr(torch, "_int_mm", int_mm_of_a_card)
    monkeypatch.setattr(w8a8_library, "_CHUNK", 32)
    x8, weight8 = _operands(40, 48, 64, torch.int8)
    x_scale, weight_scale = torch.rand(40) / 99, torch.rand(48) / 99
    bias = torch.randn(48).half() if with_bias else None
    out = torch.full((40, 60), float("nan")).half()[:, 5:53]
    assert library_settings(SUMS, W8A8Problem.of(x8, x_scale, weight8, weight_scale)) == {}
    library_gemm(SUMS, x8, x_scale, weight8, weight_scale, bias, out)
    expected = dequantise(x8, x_scale) @ dequantise(weight8, weight_scale).t() + (0 if bias is None else bias.float())
    torch.testing.assert_close(out.float(), expected, atol=1e-3, rtol=1e-3)


def test_no_tokens_and_what_does_not_fit() -> None:
    weight8, scale = torch.zeros(8, 16, dtype=torch.int8), torch.ones(8)
    w8a8_linear_triton(weight8[:0], scale[:0], weight8, scale, None, torch.empty(0, 8))
    with pytest.raises(ValueError, match="w8a8_linear: shapes"):
        w8a8_linear_triton(weight8, scale, weight8, scale[:7], None, torch.empty(8, 8))
    with pytest.raises(ValueError, match="one 8-bit type"):
        w8a8_linear_triton(weight8, scale, weight8.to(torch.float8_e4m3fn), scale, None, torch.empty(8, 8))
    with pytest.raises(ValueError, match="float32"):
        w8a8_linear_triton(weight8, scale.half(), weight8, scale, None, torch.empty(8, 8))
