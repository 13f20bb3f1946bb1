"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests, because
the interpreter's rounding to it differs from the hardware's."""

import pytest
import torch
from kernel_support import reference

from text_generation_kernels.norm.act_and_mul import act_and_mul_torch, act_and_mul_triton
from text_generation_kernels.runtime.settings import nearest

ACTIVATIONS = ["silu", "gelu", "gelu_tanh"]
TILES = sorted({nearest("act_and_mul", n=n)["BLOCK"] for n in (1, 1 << 16)})


def _check(gate_up: torch.Tensor, activation: str, out: torch.Tensor) -> None:
    expected = reference.act_and_mul(gate_up, activation)
    torch_out = torch.empty_like(out)
    act_and_mul_torch(gate_up, activation, torch_out)

    act_and_mul_triton(gate_up, activation, out)

    # At most twice as far from the formula as torch in the same type.
    assert (out.double() - expected).abs().max() <= 2 * (torch_out.double() - expected).abs().max() + 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("n", [1, *(tile + d for tile in TILES for d in (-1, 0, 1))])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_tile_boundaries(activation: str, n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(n)
    gate_up = (2 * torch.randn(3, 2 * n)).to(dtype)
    _check(gate_up, activation, torch.full((3, n), float("nan"), dtype=dtype))


@pytest.mark.parametrize(
    "activation", ["relu", "relu2", "clamped_swiglu", "silu_within_7", "silu_within_16", "silu_below_10"]
)
def test_other_activations(activation: str) -> None:
    torch.manual_seed(0)
    _check((9 * torch.randn(3, 70)).half(), activation, torch.full((3, 35), float("nan"), dtype=torch.float16))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_large_values_saturate(activation: str) -> None:
    gate = torch.tensor([-1e30, -1e4, -90.0, -0.0, 0.0, 90.0, 1e4, 1e30])
    out = torch.full((1, 8), float("nan"))
    act_and_mul_triton(torch.cat((gate, torch.ones(8)))[None], activation, out)
    assert torch.equal(out[0], gate.clamp(min=0))


def test_every_tensor_has_its_own_stride() -> None:
    torch.manual_seed(0)
    gate_up, out = torch.randn(4, 100)[:, 20:86], torch.full((4, 50), float("nan"))
    untouched = gate_up.clone()
    _check(gate_up, "silu", out[:, 5:38])
    assert torch.equal(gate_up, untouched)
    assert out[:, :5].isnan().all()
    assert out[:, 38:].isnan().all()


@pytest.mark.parametrize(("tokens", "n"), [(0, 16), (3, 0)])
def test_nothing_to_do(tokens: int, n: int) -> None:
    act_and_mul_triton(torch.empty(tokens, 2 * n), "silu", torch.empty(tokens, n))


def test_what_the_kernel_cannot_do_is_refused() -> None:
    gate_up, out = torch.randn(4, 16), torch.empty(4, 8)
    with pytest.raises(
        ValueError, match="use one of silu, gelu, gelu_tanh, relu, relu2, clamped_swiglu, silu_within_7, silu_within_16"
    ):
        act_and_mul_triton(gate_up, "tanh", out)
    with pytest.raises(ValueError, match="do not fit"):
        act_and_mul_triton(gate_up, "silu", torch.empty(4, 9))
    with pytest.raises(ValueError, match="stride 1"):
        act_and_mul_triton(torch.randn(16, 4).t(), "silu", out)
