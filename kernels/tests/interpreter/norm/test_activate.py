"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1."""

import pytest
import torch
from kernel_support import reference

from text_generation_kernels.norm.activate import activate_torch, activate_triton
from text_generation_kernels.runtime.settings import nearest

TILE = nearest("act_and_mul", n=1)["BLOCK"]


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu", "relu2"])
def test_in_place_at_tile_boundaries(activation: str) -> None:
    torch.manual_seed(0)
    for n in (1, TILE, TILE + 1):
        x = (2 * torch.randn(2, n + 3)).half()[:, 2:-1]
        expected, torch_out = reference.activate(x, activation), torch.empty_like(x)
        activate_torch(x, activation, torch_out)
        activate_triton(x, activation, x)
        # At most twice as far from the formula as torch in the same type.
        assert (x.double() - expected).abs().max() <= 2 * (torch_out.double() - expected).abs().max() + 1e-5


@pytest.mark.parametrize("activation", ["relu", "relu2"])
def test_what_is_not_a_number_stays_so(activation: str) -> None:
    x = torch.tensor([[float("nan"), -1.0]])
    activate_triton(x, activation, x)
    assert x[0, 0].isnan()
    assert x[0, 1] == 0


def test_what_the_kernel_cannot_do_is_refused() -> None:
    x = torch.randn(4, 8)
    with pytest.raises(ValueError, match="use one of silu"):
        activate_triton(x, "tanh", x)
    with pytest.raises(ValueError, match="do not fit"):
        activate_triton(x, "silu", torch.empty(4, 9))
    with pytest.raises(ValueError, match="stride 1"):
        activate_triton(torch.randn(8, 4).t(), "silu", x)
    activate_triton(torch.empty(0, 8), "silu", torch.empty(0, 8))
