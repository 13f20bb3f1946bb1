import pytest
import torch

import text_generation_kernels as kernels

EPS = 1e-5
LIMITS = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
# Half a step of the largest values, as a fraction of the largest one.
ROUNDING = {torch.float8_e4m3fn: 16 / 448, torch.int8: 0.5 / 127}


@pytest.mark.parametrize("dtype", list(LIMITS))
def test_a_row_reaches_the_limit_and_is_rounded_to_the_nearest(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 48).bfloat16()
    eight, scale = torch.empty(5, 48, dtype=dtype), torch.full((5,), float("nan"))
    kernels.quantise_rows(x, kernels.Quantised(eight, scale))
    torch.testing.assert_close(scale, x.float().abs().amax(1) / LIMITS[dtype])
    error = (eight.double() * scale.double()[:, None] - x.double()).abs().amax(1)
    assert (error <= x.double().abs().amax(1) * ROUNDING[dtype] * 1.001).all()


def test_int8_rounds_half_to_even() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]])
    eight, scale = torch.empty(1, 6, dtype=torch.int8), torch.empty(1)
    kernels.quantise_rows(x, kernels.Quantised(eight, scale))
    assert eight.tolist() == [[127, 0, 2, 2, 0, -2]]


def test_groups_have_scales_of_their_own_in_any_layout() -> None:
    x = torch.cat((torch.full((2, 128), 4.48), torch.full((2, 72), 448.0)), dim=1)
    eight, scale = torch.empty(2, 200, dtype=torch.float8_e4m3fn), torch.empty(2, 2).t()
    kernels.quantise_rows(x, kernels.Quantised(eight, scale, 128))
    torch.testing.assert_close(scale, torch.tensor([[0.01, 1.0]] * 2))
    assert (eight.float() == 448.0).all()


@pytest.mark.parametrize("dtype", list(LIMITS))
def test_values_above_a_given_scale_or_bound_saturate(dtype: torch.dtype) -> None:
    x = torch.tensor([[1000.0, -1000.0, 1.0]])
    eight, scale = torch.empty(1, 3, dtype=dtype), torch.empty(1)
    limit = LIMITS[dtype]
    kernels.quantise_rows(x, kernels.Quantised(eight, scale, 0, torch.tensor([0.5])))
    assert scale.tolist() == [0.5]
    assert eight.tolist() == [[limit, -limit, 2.0]]
    kernels.quantise_rows(x, kernels.Quantised(eight, scale, 0, None, limit))
    assert scale.item() == pytest.approx(1.0)
    assert eight.tolist() == [[limit, -limit, 1.0]]


@pytest.mark.parametrize("dtype", list(LIMITS))
def test_zeros_and_what_is_not_a_number(dtype: torch.dtype) -> None:
    x = torch.zeros(2, 4)
    x[1, 2] = float("nan")
    eight, scale = torch.empty(2, 4, dtype=dtype), torch.empty(2)
    kernels.quantise_rows(x, kernels.Quantised(eight, scale))
    assert scale[0] > 0
    assert not eight[0].float().any()
    assert scale[1].isnan()


def test_no_tokens() -> None:
    kernels.quantise_rows(torch.empty(0, 16), kernels.Quantised(torch.empty(0, 16, dtype=torch.int8), torch.empty(0)))


@pytest.mark.parametrize("dtype", list(LIMITS))
@pytest.mark.parametrize("group", [0, 16])
def test_norms_and_activations_quantise_what_they_store(group: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x, residual, gate_up, out = (torch.randn(3, columns).half() for columns in (40, 40, 80, 40))
    weight = torch.rand(40).half()
    eight, expected = torch.empty(3, 40, dtype=dtype), torch.empty(3, 40, dtype=dtype)
    scale, expected_scale = (torch.empty((3, 3) if group else (3,)) for _ in range(2))

    quantised = kernels.Quantised(eight, scale, group, None, 2.0)

    def check() -> None:
        kernels.quantise_rows(out, kernels.Quantised(expected, expected_scale, group, None, 2.0))
        assert torch.equal(scale, expected_scale)
        assert torch.equal(eight.float(), expected.float())

    kernels.rms_norm(x, weight, EPS, out, quantised)
    check()
    kernels.add_rms_norm(x, residual, weight, EPS, out, quantised=quantised)
    check()
    kernels.act_and_mul(gate_up, "silu", out, quantised)
    check()
