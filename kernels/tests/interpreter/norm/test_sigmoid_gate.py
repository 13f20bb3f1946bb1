"""The Triton kernel in Triton's interpreter: run with TRITON_INTERPRET=1. bfloat16 is left to the GPU tests, because
the interpreter's rounding to it differs from the hardware's."""

import pytest
import torch

from text_generation_kernels.norm.sigmoid_gate import sigmoid_gate_triton
from text_generation_kernels.runtime.settings import nearest

TILE = nearest("act_and_mul", n=1)["BLOCK"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("n", [1, TILE - 1, TILE, TILE + 1])
def test_tile_boundaries(n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    # Strides of their own.
    x, gate, storage = (3 * torch.randn(2, n + 5 + each).to(dtype) for each in range(3))
    x, gate, out = x[:, 2 : n + 2], gate[:, 1 : n + 1], storage[:, 3 : n + 3]
    expected, untouched = x * torch.sigmoid(gate), storage.clone()

    sigmoid_gate_triton(x, gate, out)
    sigmoid_gate_triton(x, gate, x)

    # A unit in the last place, where the sigmoid is in the middle between two numbers.
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=2 * torch.finfo(dtype).eps)
    assert torch.equal(x, out)
    assert torch.equal(storage[:, :3], untouched[:, :3])
    assert torch.equal(storage[:, n + 3 :], untouched[:, n + 3 :])


def test_the_sigmoid_is_rounded_before_the_multiplication() -> None:
    gate = torch.linspace(-4, 4, 1000)[None].half()
    x, out = torch.full_like(gate, 1.25), torch.empty_like(gate)
    sigmoid_gate_triton(x, gate, out)
    assert (out == x * torch.sigmoid(gate)).float().mean() > 0.99
    assert (out == (x.float() * torch.sigmoid(gate.float())).half()).float().mean() < 0.95


def test_what_the_kernel_cannot_do_is_refused() -> None:
    x = torch.randn(4, 8)
    with pytest.raises(ValueError, match="sigmoid_gate: shapes of x, gate, out do not fit"):
        sigmoid_gate_triton(x, torch.empty(4, 9), x)
    with pytest.raises(ValueError, match="stride 1"):
        sigmoid_gate_triton(x, torch.randn(8, 4).t(), x)
    sigmoid_gate_triton(x[:0], x[:0], x[:0])
