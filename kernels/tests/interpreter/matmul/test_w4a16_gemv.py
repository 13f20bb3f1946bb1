"""The W4A16 GEMV in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from torch import Tensor

from text_generation_kernels import PackedMatrix, pack_codes, pack_scales
from text_generation_kernels.matmul import w4a16_gemv
from text_generation_kernels.matmul.weight_only_linear import weight_only_linear_triton
from text_generation_kernels.norm.act_and_mul import act_and_mul_torch


@pytest.fixture(autouse=True, params=[(8, 32), (4, 128), (16, 64)], ids=str)
def _small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in several steps and whole rows."""
    block_n, block_w = request.param
    config = {"BLOCK_N": block_n, "BLOCK_W": block_w, "num_warps": 4}
    monkeypatch.setattr(w4a16_gemv, "w4a16_blocks", lambda *_: config)


def _weight(outputs: int, inputs: int, with_zeros: bool) -> PackedMatrix:
    torch.manual_seed(outputs)
    groups = inputs // 128
    scales, size = pack_scales((torch.rand(outputs, groups) + 0.5).bfloat16() / 16, inputs, 128)
    zeros = pack_scales(torch.randint(0, 17, (outputs, groups)), inputs, 128)[0] if with_zeros else None
    packed = pack_codes(torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8), 4)
    return PackedMatrix(packed, scales, zeros, group_size=size)


def _expected(x: Tensor, weight: PackedMatrix) -> Tensor:
    return x.double() @ weight.values(x.shape[1]).double().t()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_zeros", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(31, 512), (8, 768), (17, 1280)])
def test_little_is_lost_of_inputs_of_any_size(outputs: int, inputs: int, with_zeros: bool, dtype: torch.dtype) -> None:
    weight = _weight(outputs, inputs, with_zeros)
    x = (torch.randn(1, inputs) * 10 ** torch.randn(1, inputs)).to(dtype)
    bias, out = torch.randn(outputs), torch.full((1, outputs), float("nan"))
    w4a16_gemv.w4a16_gemv(x, weight, bias, out, None)
    expected = _expected(x, weight) + bias.double()
    assert (out.double() - expected).norm() <= 1e-4 * expected.norm()


def test_inputs_that_differ_little_lose_nothing() -> None:
    weight = _weight(16, 512, with_zeros=True)
    x = (torch.rand(1, 512) + 1).bfloat16()
    out = torch.empty(1, 16)
    w4a16_gemv.w4a16_gemv(x, weight, None, out, None)
    torch.testing.assert_close(out.double(), _expected(x, weight), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_finite_inputs_are_not_hidden(bad: float) -> None:
    weight = _weight(16, 512, with_zeros=False)
    x = torch.ones(1, 512).bfloat16()
    x[0, 300] = bad
    out = torch.zeros(1, 16)
    w4a16_gemv.w4a16_gemv(x, weight, None, out, None)
    assert not out.isfinite().any()


def test_zeros_as_inputs_and_tiny_ones() -> None:
    weight = _weight(16, 512, with_zeros=False)
    out = torch.ones(1, 16)
    w4a16_gemv.w4a16_gemv(torch.zeros(1, 512).bfloat16(), weight, None, out, None)
    assert not out.any()
    w4a16_gemv.w4a16_gemv(torch.full((1, 512), 1e-38).bfloat16(), weight, None, out, None)
    assert out.abs().max() < 1e-34


@pytest.mark.parametrize("order", [False, True])
def test_the_operator_with_an_activation_and_an_order_of_inputs(order: bool) -> None:
    weight = _weight(22, 512, with_zeros=True)
    x = torch.randn(1, 512).half()
    perm = torch.randperm(512) if order else None
    linear, out = torch.empty(1, 22).half(), torch.full((1, 11), float("nan")).half()
    expected = torch.empty_like(out)
    weight_only_linear_triton(x, weight, perm, None, linear)
    torch.testing.assert_close(
        linear.double(), _expected(x if perm is None else x[:, perm], weight), rtol=2e-3, atol=2e-3
    )
    act_and_mul_torch(linear, "silu", expected)
    weight_only_linear_triton(x, weight, perm, None, out, "silu")
    torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)
