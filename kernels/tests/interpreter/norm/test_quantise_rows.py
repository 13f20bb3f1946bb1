"""Kernels that write 8-bit activations in Triton's interpreter: run with TRITON_INTERPRET=1.

The interpreter's cast to float8 loses the carry of a mantissa that is rounded up; tests on a GPU compare bits.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from text_generation_kernels.norm.act_and_mul import act_and_mul_triton
from text_generation_kernels.norm.add_rms_norm import add_rms_norm_triton
from text_generation_kernels.norm.quantise import Quantised, quantise_torch
from text_generation_kernels.norm.quantise_rows import quantise_rows_triton
from text_generation_kernels.norm.rms_norm import rms_norm_triton

EPS = 1e-5
DTYPES = [torch.float8_e4m3fn, torch.int8]


def _check(x: Tensor, made: Quantised) -> None:
    eight = made.codes
    assert eight is not None
    assert made.scale is not None
    expected, expected_scale = torch.empty_like(eight), torch.empty_like(made.scale)
    quantise_torch(x, replace(made, codes=expected, scale=expected_scale))
    assert torch.equal(made.scale, expected_scale)
    difference = (eight.float() - expected.float()).abs()
    # A value rounded up to a power of two becomes half of it; the smallest step is 2 ** -9.
    lost = (expected.float().abs() / 2).clamp(min=2**-9) if eight.dtype == torch.float8_e4m3fn else 0
    assert (difference <= lost).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", [64, 65, 130])
@pytest.mark.parametrize(
    ("group", "given", "bound"), [(0, False, 0.0), (32, False, 0.0), (32, True, 0.0), (0, False, 1.0)]
)
def test_tile_boundaries(group: int, given: bool, bound: float, inputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(inputs)
    x, residual, out = (torch.randn(2, inputs).half() for _ in range(3))
    gate_up, weight = torch.randn(2, 2 * inputs).half(), torch.rand(inputs).half()
    static = torch.tensor([0.01]) if given else None
    eight = torch.zeros(2, inputs + 2, dtype=dtype)
    groups = -(-inputs // group) if group else 0
    scale = torch.full((groups, 2), float("nan")).t() if group else torch.full((2,), float("nan"))
    quantised = Quantised(eight[:, 1:-1], scale, group, static, bound)

    quantise_rows_triton(x, quantised)
    _check(x, quantised)
    rms_norm_triton(x, weight, EPS, out, quantised)
    _check(out, quantised)
    add_rms_norm_triton(x, residual, weight, EPS, out, quantised=quantised)
    _check(out, quantised)
    act_and_mul_triton(gate_up, "silu", out, quantised)
    _check(out, quantised)
    assert not eight[:, (0, -1)].float().any()


def test_an_activation_with_a_thread_block_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(act_and_mul_triton.__globals__, "_FEW_TOKENS", 0)
    torch.manual_seed(0)
    gate_up, out = torch.randn(3, 140).half(), torch.empty(3, 70).half()
    eight, scale = torch.empty(3, 70, dtype=torch.int8), torch.empty(3)
    act_and_mul_triton(gate_up, "silu", out, Quantised(eight, scale))
    _check(out, Quantised(eight, scale))


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_and_what_is_not_a_number(dtype: torch.dtype) -> None:
    x = torch.zeros(2, 40).half()
    x[1, 2] = float("nan")
    eight, scale = torch.empty(2, 40, dtype=dtype), torch.empty(2)
    quantise_rows_triton(x, Quantised(eight, scale))
    assert scale[0] > 0
    assert not eight[0].float().any()
    assert scale[1].isnan()


def test_what_does_not_fit_is_refused() -> None:
    x, eight, scale = torch.zeros(2, 40).half(), torch.empty(2, 40, dtype=torch.int8), torch.empty(2)
    quantise_rows_triton(x[:0], Quantised(eight[:0], scale[:0]))
    with pytest.raises(ValueError, match="quantise_rows: shapes"):
        quantise_rows_triton(x, Quantised(eight, scale, 32))
    with pytest.raises(ValueError, match="power of two"):
        quantise_rows_triton(x, Quantised(eight, scale, 40))
    with pytest.raises(ValueError, match="float8_e4m3fn or int8"):
        quantise_rows_triton(x, Quantised(eight.short(), scale))
    with pytest.raises(ValueError, match="must both be given"):
        rms_norm_triton(x, x[0], EPS, x, Quantised(eight))
