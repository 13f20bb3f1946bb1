"""Operators that write 8-bit activations, on the device: alone, and fused into norms and activations."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels.norm.quantise import quantise_torch

pytestmark = pytest.mark.gpu
EPS = 1e-5


@pytest.fixture(autouse=True)
def _needs_float8() -> None:
    if not kernels.has_fp8_gemms(torch.device("cuda")):
        pytest.skip("the card has no float8")


def _check(x: Tensor, made: kernels.Quantised) -> None:
    """Exactly what torch makes of the same 16-bit values."""
    assert made.codes is not None
    assert made.scale is not None
    codes, scale = torch.empty_like(made.codes), torch.empty_like(made.scale)
    quantise_torch(x, replace(made, codes=codes, scale=scale))
    assert torch.equal(made.scale, scale)
    assert torch.equal(made.codes.view(torch.uint8), codes.view(torch.uint8))


@pytest.mark.parametrize("eight_type", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize(
    ("group", "with_static", "bound"), [(0, False, 0.0), (128, False, 0.0), (0, True, 0.0), (0, False, 2.0)]
)
@pytest.mark.parametrize(("tokens", "inputs"), [(1, 4096), (300, 14336), (5, 28672), (3, 1000)])
def test_all_that_quantise(
    tokens: int, inputs: int, group: int, with_static: bool, bound: float, eight_type: torch.dtype
) -> None:
    torch.manual_seed(inputs)
    x, residual, both, out = (
        torch.randn(tokens, columns, device="cuda").bfloat16() for columns in (inputs, inputs, 2 * inputs, inputs)
    )
    weight = torch.rand(inputs, device="cuda").bfloat16()
    static = torch.tensor([0.02], device="cuda") if with_static else None
    eight = torch.empty(tokens, inputs, device="cuda", dtype=eight_type)
    groups = -(-inputs // group) if group else 0
    scale = torch.full((tokens, groups) if group else (tokens,), float("nan"), device="cuda")
    quantised = kernels.Quantised(eight, scale, group, static, bound)

    kernels.quantise_rows(x, quantised)
    _check(x, quantised)
    kernels.rms_norm(x, weight, EPS, out, quantised)
    _check(out, quantised)
    kernels.add_rms_norm(x, residual, weight, EPS, out, quantised=quantised)
    _check(out, quantised)
    kernels.act_and_mul(both, "silu", out, quantised)
    _check(out, quantised)


def test_not_a_number_is_not_hidden() -> None:
    x = torch.zeros(2, 64, device="cuda", dtype=torch.bfloat16)
    x[1, 5] = float("nan")
    eight, scale = torch.empty(2, 64, device="cuda", dtype=torch.int8), torch.empty(2, device="cuda")
    kernels.quantise_rows(x, kernels.Quantised(eight, scale))
    assert scale[0].isfinite()
    assert not eight[0].any()
    assert scale[1].isnan()
