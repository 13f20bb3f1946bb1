"""FP8 weights with 16-bit activations (W8A16), as GPUs before sm_89 compute them, which have no FP8 instructions."""

import pytest
import torch

import text_generation_kernels as kernels
from text_generation_server.config.quantisation import Fp8
from text_generation_server.layers.weights.activations import Activations
from text_generation_server.layers.weights.readers.w8 import W8
from text_generation_server.layers.weights.weight_only import WeightOnlyLinear

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("weights", ["channel", "block"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float8_rows_are_exact_but_for_rounding(
    weights: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "has_fp8_gemms", lambda _: False)
    torch.manual_seed(0)
    outputs, inputs = 1000, 2048
    weight = torch.randn(outputs, inputs, device="cuda").to(torch.float8_e4m3fn)
    shape = (outputs,) if weights == "channel" else (-(-outputs // 128), inputs // 128)
    held = W8(Fp8(weights), weight, torch.rand(shape, device="cuda") / 16)
    linear = held.linear()
    assert isinstance(linear, WeightOnlyLinear)
    matrix = held.dequantised().double()
    for tokens in (1, 16, 33, 64, 65, 300):
        x = torch.randn(tokens, inputs, device="cuda", dtype=dtype)
        expected = x.double() @ matrix.t()
        out = linear.apply(Activations(x)).double()
        assert (out - expected).norm() <= 5e-3 * expected.norm()
