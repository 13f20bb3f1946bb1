"""The Triton kernel as it serves: through the dispatcher, on the device."""

import pytest
import torch
from kernel_support import reference

import text_generation_kernels as kernels
from text_generation_kernels.norm.act_and_mul import act_and_mul_torch

pytestmark = pytest.mark.gpu
ACTIVATIONS = ["silu", "gelu", "gelu_tanh"]


def _check(gate_up: torch.Tensor, activation: str) -> None:
    expected = reference.act_and_mul(gate_up, activation)
    torch_out, out = (expected.to(gate_up.dtype).fill_(float("nan")) for _ in range(2))
    act_and_mul_torch(gate_up, activation, torch_out)

    kernels.act_and_mul(gate_up, activation, out)

    assert (out.double() - expected).abs().max() <= 2 * (torch_out.double() - expected).abs().max() + 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("tokens", "n"), [(1, 14336), (7, 100), (3, 33), (256, 14336), (70_000, 16)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_as_close_to_the_formula_as_torch(activation: str, tokens: int, n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    _check(2 * torch.randn(tokens, 2 * n, device="cuda", dtype=dtype), activation)


@pytest.mark.parametrize("activation", ["relu", "relu2", "clamped_swiglu", "silu_within_7", "silu_below_10"])
def test_other_activations(activation: str) -> None:
    _check(5 * torch.randn(7, 5760, device="cuda", dtype=torch.bfloat16), activation)


@pytest.mark.parametrize("activation", [*ACTIVATIONS, "relu", "relu2"])
def test_without_a_gate(activation: str) -> None:
    x = 2 * torch.randn(7, 10240, device="cuda", dtype=torch.bfloat16)
    expected = reference.activate(x, activation)
    kernels.activate(x, activation, x)
    torch.testing.assert_close(x.double(), expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_large_values_saturate(activation: str) -> None:
    gate = torch.tensor([-1e30, -1e4, -90.0, -0.0, 0.0, 90.0, 1e4, 1e30], device="cuda")
    out = torch.full((1, 8), float("nan"), device="cuda")
    kernels.act_and_mul(torch.cat((gate, torch.ones_like(gate)))[None], activation, out)
    torch.testing.assert_close(out[0], gate.clamp(min=0), atol=1e-30, rtol=0)


def test_offsets_beyond_32_bits() -> None:
    storage = torch.empty(2**31 + 64, device="cuda", dtype=torch.bfloat16)
    gate_up = storage.as_strided((3, 32), (2**30, 1)).normal_()
    _check(gate_up, "silu")
