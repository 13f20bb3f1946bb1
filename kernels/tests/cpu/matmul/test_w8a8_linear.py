import pytest
import torch

import text_generation_kernels as kernels


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("x_blocks", [False, True])
@pytest.mark.parametrize("weight_scales", ["rows", "rows by block", "blocks"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_is_the_affine_map_of_what_the_values_stand_for(
    with_bias: bool, weight_scales: str, x_blocks: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    tokens, outputs, inputs = 3, 130, 200
    x8, weight8 = (torch.randint(-9, 10, (rows, inputs)).float().to(dtype) for rows in (tokens, outputs))
    x_scale = torch.rand(tokens, 2) if x_blocks else torch.rand(tokens)
    weight_scale = torch.rand({"rows": (outputs,), "rows by block": (outputs, 2), "blocks": (2, 2)}[weight_scales])
    bias = torch.randn(outputs) if with_bias else None
    out = torch.full((tokens, outputs), float("nan"))

    kernels.w8a8_linear(x8, x_scale, weight8, weight_scale, bias, out)

    expected = torch.zeros(tokens, outputs, dtype=torch.float64)
    for t in range(tokens):
        for k in range(inputs):
            own = x_scale[t, k // 128] if x_blocks else x_scale[t]
            for_rows = {
                "rows": lambda _: weight_scale,
                "rows by block": lambda block: weight_scale[:, block],
                "blocks": lambda block: weight_scale[:, block].repeat_interleave(128)[:outputs],
            }[weight_scales](k // 128)
            expected[t] += x8[t, k].double() * own.double() * weight8[:, k].double() * for_rows.double()
    if bias is not None:
        expected += bias.double()
    torch.testing.assert_close(out.double(), expected, atol=1e-3, rtol=1e-5)


def test_no_tokens() -> None:
    weight8 = torch.zeros(8, 16, dtype=torch.int8)
    kernels.w8a8_linear(weight8[:0], torch.empty(0), weight8, torch.ones(8), None, torch.empty(0, 8))


def test_a_cpu_has_float8_gemms() -> None:
    assert kernels.has_fp8_gemms(torch.device("cpu"))
